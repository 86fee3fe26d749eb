"""What travels between the sweep's clients, the lane pool and the trainer actors. Plain data: no torch, no Ray.

A client submits a :class:`TrialRequest` and then asks for one :class:`RungReport` after the other. Between pool and
trainers one call goes to and fro: a trainer brings :class:`News` of the epoch it finished and takes :class:`Orders`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

StopReason = Literal["complete", "pruned", "stopped", "failed", "paused"]


@dataclass(frozen=True)
class TrialRequest:
    """One trial to train: a configuration and the epochs at which its score is wanted.

    Where the sweep's folder holds a checkpoint of this trial id, training continues from the newest one.
    """

    trial_id: str
    config: Mapping[str, Any]  # TrialConfig as JSON values
    rungs: tuple[int, ...]  # rising; the last is the budget, = config's training.epochs


@dataclass(frozen=True)
class RungReport:
    """A trial at a rung, at its end, when it failed, or when the pool was drained under it."""

    trial_id: str
    epoch: int
    score: float | None  # None where it failed or is parked
    folds: tuple[Mapping[str, float], ...] = ()  # numbers of each fold at this epoch; "fold" is its index
    final: bool = False  # the budget is used up
    error: str | None = None  # why it failed
    parked: bool = False  # the pool was drained: submitted again, the trial continues from its newest checkpoint
    capacities: tuple[int, ...] = ()  # lanes of the group in each epoch so far: what a CUDA rerun replays

    @property
    def ends(self) -> bool:
        """Whether this is the last report of the trial in this pool."""
        return self.final or self.error is not None or self.parked


@dataclass(frozen=True)
class Admission:
    """A trial given to a trainer; ``attempt`` counts how often, so that news of a lost trainer is told apart."""

    request: TrialRequest
    attempt: int
    recorded: int = 0  # epochs whose numbers tracking has already
    passed: int = 0  # epoch of the last rung past which the client asked for more


@dataclass(frozen=True)
class Orders:
    """What a trainer does at its next epoch boundary: stop, give back, admit; or checkpoint everything and leave."""

    admit: tuple[Admission, ...] = ()
    stop: tuple[str, ...] = ()
    give_back: tuple[str, ...] = ()  # trials to checkpoint and return: another trainer has less to do
    passed: Mapping[str, int] = field(default_factory=dict)  # trial id -> rung past which its client asked for more
    leave: bool = False


@dataclass(frozen=True)
class Offer:
    """Room of a trainer at its next boundary. A signature it has never held is tried with one trial first."""

    lanes: int  # free lanes, whatever the signature
    bytes_free: int = 1 << 62
    lane_bytes: Mapping[str, int] = field(default_factory=dict)  # signature -> bytes of one lane, where known
    lane_limit: Mapping[str, int] = field(default_factory=dict)  # signature -> most lanes, after running out of memory
    groups: tuple[str, ...] = ()  # signatures that are resident


@dataclass(frozen=True)
class News:
    """What happened in a trainer since its last call. Trials are named with their attempt."""

    offer: Offer
    reports: tuple[tuple[int, RungReport], ...] = ()  # (attempt, report)
    returned: tuple[tuple[int, str], ...] = ()  # (attempt, trial id), to be queued again: no room, or given back
    epochs: Mapping[str, int] = field(default_factory=dict)  # trial id -> epochs finished, of the residents
    place: str = ""  # host and process, for people
    device: str = ""  # what it trains on, for people
    busy: float = 0.0  # share of its time so far in which it trained or validated
