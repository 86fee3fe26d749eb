"""Requests for the tiny trial of ``tests/trainer/training``."""

from __future__ import annotations

from typing import Any

from cluster.protocol import TrialRequest
from tests.trainer.training.conftest import tiny


def request_of(trial_id: str, rungs: tuple[int, ...] = (1, 2, 4), **changes: Any) -> TrialRequest:
    """A request for the tiny configuration with dotted-key changes; the last rung is its budget."""
    config = tiny(**{"training.epochs": rungs[-1], **changes})
    return TrialRequest(trial_id, config.model_dump(mode="json"), rungs)
