"""What travels between the sweep's clients, the lane pool and the trainer actors. Plain data: no torch, no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TrialRequest:
    """One trial to train: a configuration and the epochs at which its score is wanted."""

    trial_id: str
    config: Mapping[str, Any]  # TrialConfig as JSON values
    rungs: tuple[int, ...]  # rising; the last is the budget, = config's training.epochs


@dataclass(frozen=True)
class RungReport:
    """A trial at a rung, at its end, or when it failed."""

    trial_id: str
    epoch: int
    score: float | None  # None where it failed
    folds: tuple[Mapping[str, float], ...] = ()  # numbers of each fold at this epoch
    final: bool = False  # the budget is used up
    error: str | None = None  # why it failed
    capacities: tuple[int, ...] = field(
        default=()
    )  # lanes of the group in each epoch so far: what a CUDA rerun replays
