"""A sweep in progress: what happens to a trial is written to the log, then told to searcher, tracking and people.

:meth:`Course.open` rebuilds all of it from the log: the searcher is asked and told in the log's order and must give the
points that the log has.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from cluster.pool import PoolHandle
from cluster.protocol import RungReport, TrialRequest
from search.log import LOG, SweepLog
from search.results import Ledger, State, TrialRecord, write_results
from search.scheduler import rungs
from search.searchers.base import Earlier, Event, Outcome, Searcher, replay
from search.searchers.optuna import OptunaSearcher
from search.searchers.pso import PsoSearcher
from search.searchers.random import RandomSearcher
from search.sweep_config import Profile, write_whole
from search.sweep_tracking import SweepTracking
from trainer.config import TrialConfig
from trainer.tracking import redact

Told = Callable[[TrialRecord], None]
SWEEP_ID = "sweep_id"
WRITE_EVERY_S = 5.0
"""``sweep.json`` is not rewritten more often, nor so often that it takes a twentieth of the time."""


class Course:
    """The driver's view of its sweep. Safe to use from the threads of Tune and of signal handling.

    Args:
        folder: the sweep's folder.
        profile: its configuration.
        earlier: results of other sweeps to start from.
        tracking: where the verdicts go, None for nowhere.
        told: called when a trial reached a rung or ended.
    """

    def __init__(
        self,
        folder: Path,
        profile: Profile,
        earlier: list[Earlier],
        tracking: SweepTracking | None,
        told: Told = lambda _trial: None,
    ) -> None:
        self.folder, self.profile, self.tracking, self.told = folder, profile, tracking, told
        self.log = SweepLog(folder / LOG)
        self.ledger = Ledger()
        self.searcher = make_searcher(profile, earlier, study_name=self.sweep_id)
        self.pool: PoolHandle | None = None
        self.live = False
        self.appended = 0  # events this driver wrote
        self.trainers: dict[str, dict[str, Any]] = {}  # the pool's account of each, those that are gone too
        self._begun: set[str] = set()
        self._lock = threading.RLock()
        self._next_write_s = 0.0
        replay(self.searcher, self._replayed())
        self._parked = {trial.trial_id for trial in self.ledger.open_trials}  # an earlier driver began them

    def start(self) -> None:
        """A driver is at work."""
        with self._lock:
            self.live = True
            self._append({"kind": "start", "time": time.time()})
            self.write()

    def stop(self, because: str) -> None:
        """No driver is at work any more; what has not ended is parked."""
        with self._lock:
            if self.live:
                self.live = False
                self._append({"kind": "stop", "because": because, "time": time.time()})
                if self.tracking is not None and not self.finished:
                    self.tracking.parked((trial.trial_id for trial in self.ledger.open_trials), because)
            self.write()

    @property
    def budget(self) -> int:
        """Most epochs of any trial."""
        searched = [d.high for d in self.profile.space.dimensions if d.name == "training.epochs"]
        return int(searched[0]) if searched else self.profile.trial.training.epochs

    @property
    def finished(self) -> bool:
        """Every trial was asked for and has ended."""
        return not self.more and not self.ledger.open_trials

    @property
    def more(self) -> bool:
        """Trials are left to ask for."""
        return len(self.ledger.trials) < self.profile.sweep.trials and not self.ledger.exhausted

    def ask(self) -> TrialRecord | None:
        with self._lock:
            if not self.more or not self.live:
                return None
            trial_id = f"t{self.ledger.asks:05d}"
            suggestion = self.searcher.ask(trial_id)
            point = None if suggestion is None else list(suggestion.point)
            values = None if suggestion is None else suggestion.values
            self._append({"kind": "ask", "trial_id": trial_id, "point": point, "values": values, "time": time.time()})
            return None if suggestion is None else self.ledger.trials[trial_id]

    def begin(self, trial: TrialRecord) -> None:
        if self.pool is None or trial.trial_id in self._begun:
            return
        self._begun.add(trial.trial_id)
        if self.tracking is not None:
            self.tracking.begun(trial.trial_id, trial.values, again=trial.trial_id in self._parked)
        config = self.config_of(trial)
        plan = rungs(self.profile.sweep.scheduler, config.training.epochs)
        self.pool.submit(TrialRequest(trial.trial_id, config.model_dump(mode="json"), plan))
        if trial.epoch:
            self.pool.go_on(trial.trial_id, trial.epoch)

    def rung(self, report: RungReport) -> None:
        with self._lock:
            if self._note_rung(report):
                self.told(self.ledger.trials[report.trial_id])
            self.write(often=False)
        if self.pool is not None:
            self.pool.go_on(report.trial_id, report.epoch)

    def end(self, report: RungReport, *, pruned: bool) -> None:
        with self._lock:
            trial = self.ledger.trials[report.trial_id]
            if report.parked or trial.ending is not None or not self.live:
                return
            self._note_rung(report)
            outcome, because = self._verdict(report, pruned)
            event = {
                "kind": "tell",
                "trial_id": report.trial_id,
                "outcome": Event("tell", report.trial_id, outcome=outcome).to_json()["outcome"],
                "because": because,
                "epoch": report.epoch,
                "capacities": list(report.capacities),
                "time": time.time(),
            }
            self._append(event)
            self.searcher.tell(report.trial_id, outcome)
            self._settle(trial)
            self.told(trial)
            self.write(often=False)
        if self.pool is not None:
            self.pool.stop(report.trial_id, "pruned" if pruned else "failed" if report.error else "complete")

    def config_of(self, trial: TrialRecord) -> TrialConfig:
        """The trial's whole configuration."""
        return cast(TrialConfig, self.profile.space.config(trial.values))

    def named(self, run_ids: Mapping[str, str]) -> None:
        """MLflow's ids of runs."""
        with self._lock:
            for trial_id, run_id in run_ids.items():
                known = self.ledger.trials[trial_id].run_id if trial_id in self.ledger.trials else None
                if trial_id in self.ledger.trials and known != run_id:
                    self._append({"kind": "run", "trial_id": trial_id, "run_id": run_id})

    def write(self, *, often: bool = True) -> None:
        """Write ``sweep.json``; with ``often`` False only where the last time is long enough ago."""
        with self._lock:
            began = time.monotonic()
            if not often and began < self._next_write_s:
                return
            uri = "" if self.tracking is None else redact(self.tracking.target.uri)
            write_results(
                self.ledger,
                self.folder,
                sweep_id=self.sweep_id,
                tracking_uri=uri,
                live=self.live,
                trainers=self.trainers,
            )
            now = time.monotonic()
            self._next_write_s = now + max(WRITE_EVERY_S, 20 * (now - began))

    @property
    def sweep_id(self) -> str:
        """Names the sweep in tracking."""
        return (self.folder / SWEEP_ID).read_text(encoding="utf-8").strip()

    def states(self) -> dict[str, State]:
        """Every trial's state."""
        return {trial_id: trial.state(live=self.live) for trial_id, trial in self.ledger.trials.items()}

    def close(self) -> None:
        """Let another driver open the sweep."""
        self.log.close()

    def _note_rung(self, report: RungReport) -> bool:
        trial = self.ledger.trials[report.trial_id]
        if report.score is None or not math.isfinite(report.score):
            return False
        if report.epoch in (epoch for epoch, _ in trial.rungs):
            return False
        folds = [{name: _finite(value) for name, value in fold.items()} for fold in report.folds]
        event = {"kind": "rung", "trial_id": report.trial_id, "epoch": report.epoch, "score": report.score}
        self._append({**event, "folds": folds, "time": time.time()})
        return True

    def _verdict(self, report: RungReport, pruned: bool) -> tuple[Outcome, str]:
        if report.error is not None:
            return Outcome.failed(), report.error
        if report.score is None or not math.isfinite(report.score):
            return Outcome.failed(), f"score {report.score} at epoch {report.epoch}"
        if pruned:
            name = self.profile.sweep.scheduler.name
            return Outcome.pruned(report.score, report.epoch), f"stopped by {name} at epoch {report.epoch}"
        return Outcome.complete(report.score), f"budget of {report.epoch} epochs used up"

    def _settle(self, trial: TrialRecord) -> None:
        """Leave the trial's entry beside its files and tell tracking."""
        entry = json.dumps(trial.to_json(live=True, parked_because=""), indent=1)
        write_whole(self.folder / "trials" / trial.trial_id / "trial.json", entry)
        if self.tracking is not None:
            state = trial.state(live=True)
            self.tracking.ended(trial.trial_id, state, trial.because, trial.score, trial.epoch)

    def _append(self, event: Mapping[str, Any]) -> None:
        self.log.append(event)
        self.appended += 1
        self.ledger.apply(event)

    def _replayed(self) -> Any:
        for event in self.log.events():
            self.ledger.apply(event)
            if event["kind"] in ("ask", "tell"):
                yield Event.from_json(event)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def new_sweep_id(folder: Path) -> str:
    """Write a new id into the sweep's folder: its name and when it began, unlike any other's."""
    stamp = f"{time.time_ns()}-{folder.resolve()}"
    sweep_id = f"{folder.resolve().name}-{hashlib.sha256(stamp.encode()).hexdigest()[:8]}"
    write_whole(folder / SWEEP_ID, sweep_id + "\n")
    return sweep_id


def make_searcher(profile: Profile, earlier: list[Earlier], study_name: str = "") -> Searcher:
    """The searcher of a sweep, before its first ask. ``study_name`` is for Optuna, where the profile names none."""
    sweep, space = profile.sweep, profile.space
    match sweep.searcher:
        case "pso":
            return PsoSearcher(space, sweep.seed, sweep.first, earlier, sweep.pso)
        case "optuna":
            optuna = sweep.optuna
            if not optuna.study_name:
                optuna = optuna.model_copy(update={"study_name": study_name})
            return OptunaSearcher(space, sweep.seed, sweep.first, earlier, optuna)
        case _:
            return RandomSearcher(space, sweep.seed, sweep.first, earlier)
