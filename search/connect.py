"""Which Ray a sweep runs on: the cluster of its job or of ``RAY_ADDRESS``, what ``ray start`` began here, or its own.

Another sweep's own Ray is never joined: it ends with that sweep.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import ray
from ray._private import services, worker

from trainer.errors import UserError

OBJECT_STORE_BYTES = 128 << 20  # configurations and rung reports only; Ray's default is a third of the memory
LOCAL = "local"
_NO_NEWS = "worker processes have been started"
"""Ray minds that there are more processes than CPUs. Clients of trials only wait."""


def in_ray_job() -> bool:
    """Whether ``ray job submit`` started this process."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def connect_ray() -> str:
    """Connect, or start a local Ray; returns a few words on what it is.

    Raises:
        UserError: ``RAY_ADDRESS`` names a cluster that does not answer.
    """
    _hush()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    address = _address()
    if address == LOCAL:
        os.environ.pop("RAY_ADDRESS", None)
        ray.init(address=LOCAL, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **quiet)
        return "a local Ray"
    try:
        ray.init(address=address, **quiet)
    except ConnectionError as error:
        raise UserError(f"RAY_ADDRESS={address}: no Ray cluster answers there; unset it for a local one") from error
    return f"the Ray cluster at {ray.get_runtime_context().gcs_address}"


def _address() -> str:
    """Where to connect to, or ``local``."""
    named = os.environ.get("RAY_ADDRESS", "")
    if named not in ("", "auto"):
        return named
    started = services.find_bootstrap_address(None)
    running: set[str] = services.find_gcs_addresses()  # type: ignore[no-untyped-call]
    return started if started is not None and started in running else LOCAL


def _hush() -> None:
    """Keep what Ray says about its own affairs from people."""
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    tell = worker.print_to_stdstream

    def tell_news(data: Any, ignore_prefix: bool) -> None:
        if not any(_NO_NEWS in str(line) for line in data.get("lines", ())):
            tell(data, ignore_prefix)

    worker.print_to_stdstream = tell_news
