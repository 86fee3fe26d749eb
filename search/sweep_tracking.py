"""The sweep in MLflow: the parent run is the sweep, each trial a child found by its tags ``sweep_id`` and ``trial_id``.

The driver writes a journal beside those of the trainers: what a trial was given, and what became of it. A trainer's
has the numbers of each epoch. One process ships them all (``cluster.journal``), so that a trial has one run whoever
recorded it first. The driver itself talks to MLflow at the start and at the end alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cluster.journal import Journal, JournalShipper, TrackingTarget, runs_of
from search.results import State
from search.space import Value
from trainer.tracking import RunKey, check_uri, connect, ensure_experiment

TRACKING = "tracking"
STATUS = {
    State.RUNNING: "RUNNING",
    State.PARKED: "KILLED",
    State.COMPLETE: "FINISHED",
    State.PRUNED: "KILLED",
    State.FAILED: "FAILED",
    State.INFEASIBLE: "FAILED",
}


class SweepTracking:
    """What the driver records: the sweep's own run with what all trials share, and of each trial the rest.

    Args:
        folder: the sweep's folder.
        target: where its trials are tracked.
    """

    def __init__(self, folder: Path, target: TrackingTarget) -> None:
        self.folder, self.target = folder, target
        self._journal = Journal(folder / TRACKING / "verdicts.jsonl")

    def start(self, params: Mapping[str, Any], files: list[Path], timeout_s: float) -> bool:
        """Make the parent run and say that the sweep runs; False where the server did not take it in time.

        Args:
            params: what can never change within the sweep.
            files: artifacts.
            timeout_s: how long to wait for the server.
        """
        parent = self.target.parent
        self._journal.params(parent, params)
        self._journal.tags(parent, {"state": State.RUNNING.value, "ended_because": ""})
        self._journal.status(parent, STATUS[State.RUNNING])
        self._artifacts(parent, files)
        return self.ship(timeout_s)

    def begun(self, trial_id: str, values: Mapping[str, Value], *, again: bool) -> None:
        """A trial begins with these values, or goes on after a resume."""
        run = self.target.run_of(trial_id)
        self._journal.params(run, values)
        self._journal.tags(run, {"state": State.RUNNING.value, "ended_because": ""})
        if again:  # a new run is made so
            self._journal.status(run, STATUS[State.RUNNING])

    def ended(self, trial_id: str, state: State, because: str, score: float | None, epoch: int) -> None:
        """The verdict on a trial."""
        run, folder = self.target.run_of(trial_id), self.folder / "trials" / trial_id
        if score is not None:
            self._journal.metrics(run, {"score": score}, epoch)
        self._journal.tags(run, {"state": state.value, "ended_because": because})
        self._journal.status(run, STATUS[state])
        whole = ("result.json", "policies") if state is State.COMPLETE else ()
        self._artifacts(run, [folder / name for name in ("config.toml", "trial.json", *whole)])

    def parked(self, trial_ids: Iterable[str], because: str) -> None:
        """Nobody trains these trials for now, nor searches; said at once, for there may be no time for more."""
        for run in (*(self.target.run_of(trial_id) for trial_id in trial_ids), self.target.parent):
            self._journal.tags(run, {"state": State.PARKED.value, "ended_because": because})
            self._journal.status(run, STATUS[State.PARKED])

    def finish(self, state: State, because: str, metrics: Mapping[str, float], best: str, files: list[Path]) -> None:
        """The sweep ended, or was parked."""
        parent = self.target.parent
        self._journal.metrics(parent, metrics, 0)
        self._journal.tags(parent, {"state": state.value, "ended_because": because, "best_trial": best})
        self._artifacts(parent, files)
        self._journal.status(parent, STATUS[state])

    def ship(self, timeout_s: float) -> bool:
        """Ship all journals from here: only while no pool does."""
        return JournalShipper(self.folder / TRACKING, self.target).flush(timeout_s)

    def reconcile(self, states: Mapping[str, State]) -> dict[str, str]:
        """Ask for all runs of the sweep and set those right whose status is not what ``states`` says.

        A driver that is killed leaves some. Returns MLflow's run ids by trial id, ``""`` for the
        sweep's own; what the server did not answer is missing.
        """
        found: dict[str, str] = {}
        try:
            client = connect(self.target.uri)
            for run in runs_of(self.target):
                trial_id, run_id = run.data.tags.get("trial_id", ""), run.info.run_id
                found.setdefault(trial_id, run_id)
                right = STATUS[states[trial_id]] if trial_id in states else run.info.status
                if run.info.status != right:
                    client.set_terminated(run_id, right) if right != "RUNNING" else client.update_run(run_id, right)
        except Exception:  # the server is away: the journals keep what it did not take, the results say null
            return found
        return found

    def _artifacts(self, run: RunKey, paths: list[Path]) -> None:
        for path in paths:
            self._journal.artifact(run, path)


def target_of(uri: str, experiment: str, sweep_id: str) -> TrackingTarget:
    """Where a sweep and its trials are tracked."""
    return TrackingTarget(uri, experiment, sweep_id, RunKey.of(sweep_id, sweep_id=sweep_id, role="sweep"))


def tracking_uri(configured: str | None, folder: Path) -> str:
    """The URI of the config, else of the environment, else a SQLite file beside the sweep's folder."""
    if configured is not None:
        return configured
    if "MLFLOW_TRACKING_URI" in os.environ:
        return os.environ["MLFLOW_TRACKING_URI"]
    return f"sqlite:///{folder.resolve().parent / 'mlflow.db'}"


def prepare_experiment(uri: str, experiment: str) -> None:
    """Ask the server a question and create the experiment, once, before anybody else could.

    Raises:
        UserError: the server does not answer.
    """
    if urlsplit(uri).scheme == "sqlite":
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    check_uri(uri)
    ensure_experiment(connect(uri), uri, experiment)
