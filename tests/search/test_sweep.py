"""Whole sweeps on a real local Ray. Trainers do not train where the service alone is looked at."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from rich.console import Console

from benchmarks.trivial_pool import start_trivial_pool
from search.course import Course, new_sweep_id
from search.log import LOG, read_events
from search.results import State
from search.start import conclude
from search.sweep import SweepRun
from search.sweep_config import load_profile
from search.sweep_tracking import STATUS, SweepTracking, prepare_experiment, target_of

pytestmark = pytest.mark.usefixtures("local_ray")


class Bench:
    """A sweep with trainers that do not train, driven as ``python -m search`` drives one."""

    def __init__(self, folder: Path, profile: Path, epoch_s: float = 0.0) -> None:
        self.folder, self.profile, self.epoch_s = folder, profile, epoch_s
        self.uri = f"sqlite:///{folder.parent / 'mlflow.db'}"

    def drive(self, *overrides: str, during: Callable[[SweepRun], None] = lambda _run: None) -> str | None:
        if not self.folder.exists():
            self.folder.mkdir()
            new_sweep_id(self.folder)
        prepare_experiment(self.uri, "test")
        sweep_id = (self.folder / "sweep_id").read_text().strip()
        tracking = SweepTracking(self.folder, target_of(self.uri, "test", sweep_id))
        course = Course(self.folder, load_profile(str(self.profile), overrides), [], tracking)
        course.start()
        tracking.start({}, [], 30.0)
        pool = start_trivial_pool(self.folder, course.profile.sweep.pool, tracking.target, self.epoch_s)
        run = SweepRun(course, pool, lambda _status: None)
        threading.Thread(target=during, args=(run,), daemon=True).start()
        closed = run.run()
        conclude(course, tracking, run, closed, Console(quiet=True), 0.0)
        course.close()
        return closed

    def results(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "sweep.json").read_text())
        return content

    def runs(self) -> dict[str, str]:
        """Status by trial id in MLflow; fails where a trial has two runs."""
        with sqlite3.connect(self.uri.removeprefix("sqlite:///")) as database:
            rows = database.execute(
                "select t.value, r.status from tags t join runs r on r.run_uuid = t.run_uuid where t.key = 'trial_id'"
            ).fetchall()
        assert max(Counter(trial for trial, _ in rows).values()) == 1
        return dict(rows)

    def check(self, trials: int) -> None:
        """Every trial is in the results and in MLflow exactly once, in the same state, and was told once."""
        entries = self.results()["trials"]
        assert [entry["trial_id"] for entry in entries] == [f"t{number:05d}" for number in range(trials)]
        assert self.runs() == {entry["trial_id"]: STATUS[State(entry["state"])] for entry in entries}
        assert all(entry["mlflow_run_id"] for entry in entries)
        told = Counter(event["trial_id"] for event in read_events(self.folder / LOG) if event["kind"] == "tell")
        ended = [entry["trial_id"] for entry in entries if entry["state"] in ("complete", "pruned", "failed")]
        assert told == Counter(ended)


@pytest.mark.slow
def test_a_sweep_chained_over_several_tune_runs_ends_every_trial_once(tiny: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "sweep", tiny, epoch_s=0.05)
    closed = bench.drive("sweep.trials=14", "sweep.chain=5", "sweep.concurrent=3", "sweep.waiting=1")
    assert closed is None
    bench.check(14)
    assert {entry["state"] for entry in bench.results()["trials"]} <= {"complete", "pruned"}
    assert bench.results()["best_trial"] is not None


def test_a_closed_sweep_parks_its_trials_and_a_resume_ends_them(tiny: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "sweep", tiny, epoch_s=0.5)
    started = threading.Event()

    def close(run: SweepRun) -> None:
        while not run.course.ledger.trials:
            started.wait(0.05)
        run.close("SIGTERM")

    settings = ("sweep.trials=5", "sweep.concurrent=3", "sweep.scheduler.name=none")
    assert bench.drive(*settings, during=close) == "SIGTERM"
    parked = [entry for entry in bench.results()["trials"] if entry["state"] == "parked"]
    assert parked
    assert all(entry["ended_because"] == "not ended: SIGTERM" for entry in parked)
    bench.check(len(bench.results()["trials"]))
    bench.epoch_s = 0.0
    assert bench.drive(*settings) is None
    bench.check(5)
    assert {entry["state"] for entry in bench.results()["trials"]} == {"complete"}


@pytest.mark.slow
def test_the_time_budget_parks_what_runs(tiny: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "sweep", tiny, epoch_s=30.0)
    closed = bench.drive("sweep.trials=3", "sweep.time_budget=3s")
    assert closed == "time budget of 3 s used up"
    bench.check(len(bench.results()["trials"]))


def test_clients_have_no_torch(tiny: Path) -> None:
    del tiny

    @ray.remote(num_cpus=0)
    def modules() -> list[str]:
        import sys

        import search.trainable

        assert search.trainable.TrialClient is not None
        return sorted(sys.modules)

    assert "torch" not in ray.get(modules.remote())
