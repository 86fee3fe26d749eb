"""What became of a sweep's trials: the log's events folded into one record per trial, and ``sweep.json`` from them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from search.searchers.base import Ending
from search.space import Value
from search.sweep_config import write_whole
from trainer.errors import UserError

RESULTS = "sweep.json"


class State(StrEnum):
    """Where a trial stands. ``parked``: asked for, not ended, and nobody trains it; a resume continues it."""

    RUNNING = "running"
    PARKED = "parked"
    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"
    INFEASIBLE = "infeasible"


@dataclass
class TrialRecord:
    """One trial. ``score`` is the last one reported: at full budget only where the trial is complete."""

    trial_id: str
    values: dict[str, Value]
    ending: Ending | None = None
    score: float | None = None
    epoch: int = 0
    rungs: list[tuple[int, float]] = field(default_factory=list)
    folds: tuple[Mapping[str, float | None], ...] = ()
    because: str = ""
    run_id: str | None = None

    @property
    def mechanical_folds(self) -> list[int]:
        """Folds whose Sharpe came without a Q-gap: nothing was learned there, so the trial is never selected."""
        return [int(fold["fold"] or 0) for fold in self.folds if (fold.get("mechanical_bias") or 0.0) > 0.0]

    def to_json(self, *, live: bool, parked_because: str) -> dict[str, Any]:
        """The trial's entry in ``sweep.json``."""
        state = self.state(live=live)
        because = self.because
        if state is State.PARKED:
            because = parked_because
        if self.mechanical_folds:
            named = ", ".join(str(fold) for fold in self.mechanical_folds)
            because += f"; mechanical bias in fold {named}, a Sharpe without a Q-gap: never selected"
        return {
            "trial_id": self.trial_id,
            "state": state.value,
            "config": self.values,
            "score": self.score,
            "folds": [dict(fold) for fold in self.folds],
            "rungs": [{"epoch": epoch, "score": score} for epoch, score in self.rungs],
            "mlflow_run_id": self.run_id,
            "ended_because": because,
        }

    def state(self, *, live: bool) -> State:
        """``live``: whether a driver is at work."""
        if self.ending is not None:
            return State(self.ending.value)
        return State.RUNNING if live else State.PARKED


class Ledger:
    """All trials, from the events of the log in their order."""

    def __init__(self) -> None:
        self.trials: dict[str, TrialRecord] = {}
        self.asks = 0
        self.exhausted = False  # the searcher's space holds nothing untried
        self.parent_run_id: str | None = None
        self.stopped_because = "the driver ended without a word"

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        match event["kind"]:
            case "ask":
                self.asks += 1
                self.exhausted = event["point"] is None
                if not self.exhausted:
                    self.trials[event["trial_id"]] = TrialRecord(event["trial_id"], event["values"])
            case "rung":
                trial = self.trials[event["trial_id"]]
                trial.rungs.append((event["epoch"], event["score"]))
                trial.epoch, trial.score, trial.folds = event["epoch"], event["score"], tuple(event["folds"])
            case "tell":
                trial = self.trials[event["trial_id"]]
                trial.ending, trial.because = Ending(event["outcome"]["ending"]), event["because"]
                trial.epoch = event["epoch"]
                if trial.ending is Ending.FAILED or trial.ending is Ending.INFEASIBLE:
                    trial.score = None
            case "run":
                self._named(event["trial_id"], event["run_id"])
            case "start":
                self.stopped_because = "the driver ended without a word"
            case "stop":
                self.stopped_because = event["because"]

    def _named(self, trial_id: str, run_id: str) -> None:
        if trial_id:
            self.trials[trial_id].run_id = run_id
        else:
            self.parent_run_id = run_id

    @property
    def open_trials(self) -> list[TrialRecord]:
        """Asked for and not ended, in the order of asks."""
        return [trial for trial in self.trials.values() if trial.ending is None]

    def count(self, ending: Ending) -> int:
        """Trials that ended so."""
        return sum(trial.ending is ending for trial in self.trials.values())

    def ranking(self) -> list[TrialRecord]:
        """Trials with a score that may be selected, best first: by full-budget score, then those stopped early by how
        far they came and their score there."""
        scored = [t for t in self.trials.values() if t.ending in _SELECTABLE and t.score is not None]
        allowed = [trial for trial in scored if not trial.mechanical_folds and math.isfinite(trial.score or 0.0)]
        return sorted(allowed, key=_rank, reverse=True)

    @property
    def best(self) -> TrialRecord | None:
        """The best trial of full budget; one that was stopped early only where none is complete."""
        ranking = self.ranking()
        return ranking[0] if ranking else None


def write_results(
    ledger: Ledger,
    folder: Path,
    *,
    sweep_id: str,
    tracking_uri: str,
    live: bool,
    trainers: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write ``sweep.json`` anew, whole."""
    parked = f"not ended: {ledger.stopped_because}"
    content = {
        "sweep_id": sweep_id,
        "tracking_uri": tracking_uri,
        "best_trial": None if ledger.best is None else ledger.best.trial_id,
        "trainers": [{"trainer": name, **account} for name, account in trainers.items()],
        "trials": [trial.to_json(live=live, parked_because=parked) for trial in ledger.trials.values()],
    }
    write_whole(folder / RESULTS, json.dumps(content, indent=1, allow_nan=False))


def read_earlier(folders: Iterable[str]) -> list[tuple[dict[str, Value], float]]:
    """``(values, score)`` of the complete trials of earlier sweeps that may be selected: what a warm start uses.

    Raises:
        UserError: a folder holds no results.
    """
    earlier: list[tuple[dict[str, Value], float]] = []
    for folder in folders:
        path = Path(folder) / RESULTS
        try:
            trials = json.loads(path.read_text(encoding="utf-8"))["trials"]
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"sweep.warm_start: {path} cannot be read as the results of a sweep") from error
        for trial in trials:
            mechanical = any((fold.get("mechanical_bias") or 0.0) > 0.0 for fold in trial["folds"])
            if trial["state"] == State.COMPLETE and trial["score"] is not None and not mechanical:
                earlier.append((trial["config"], trial["score"]))
    return earlier


_SELECTABLE = (Ending.COMPLETE, Ending.PRUNED)


def _rank(trial: TrialRecord) -> tuple[bool, int, float]:
    complete = trial.ending is Ending.COMPLETE
    return complete, 0 if complete else trial.epoch, trial.score if trial.score is not None else -math.inf
