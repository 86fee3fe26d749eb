"""Which Ray a sweep runs on: the cluster of its job or of ``RAY_ADDRESS``, one that runs here already, or its own."""

from __future__ import annotations

import logging
import os
from typing import Any

import ray

from trainer.errors import UserError

OBJECT_STORE_BYTES = 128 << 20  # configurations and rung reports only; Ray's default is a third of the memory


def in_ray_job() -> bool:
    """Whether ``ray job submit`` started this process."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def connect_ray() -> str:
    """Connect, or start a local Ray; returns a few words on what it is.

    Raises:
        UserError: ``RAY_ADDRESS`` names a cluster that does not answer.
    """
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if os.environ.get("RAY_ADDRESS", "auto") != "local":
        try:
            ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), **quiet)
        except ConnectionError as error:
            if "RAY_ADDRESS" in os.environ:
                address = os.environ["RAY_ADDRESS"]
                raise UserError(
                    f"RAY_ADDRESS={address}: no Ray cluster answers there; unset it for a local one"
                ) from error
        else:
            return f"the Ray cluster at {ray.get_runtime_context().gcs_address}"
    os.environ.pop("RAY_ADDRESS", None)
    ray.init(address="local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **quiet)
    return "a local Ray"
