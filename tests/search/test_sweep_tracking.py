"""What a sweep leaves in MLflow: shared values once on its own run, each trial's own on the trial's."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest

from search.results import State
from search.start import shared_params
from search.sweep_config import load_profile
from search.sweep_tracking import SweepTracking, prepare_experiment, target_of
from trainer.fields import walk

SHIP_S = 60.0


class Sweep:
    """A sweep's tracking and what became of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.uri = folder, f"sqlite:///{folder.parent / 'mlflow.db'}"
        prepare_experiment(self.uri, "test")
        self.tracking = self.open()

    def open(self) -> SweepTracking:
        return SweepTracking(self.folder, target_of(self.uri, "test", "s1"))

    def run(self, trial_id: str | None) -> mlflow.entities.Run:
        client = mlflow.MlflowClient(self.uri)
        runs = client.search_runs([client.get_experiment_by_name("test").experiment_id])
        (found,) = [run for run in runs if run.data.tags.get("trial_id") == trial_id]
        return found


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path / "sweep")


def test_values_that_all_trials_share_are_on_the_sweeps_run_alone(sweep: Sweep, tiny: Path) -> None:
    profile = load_profile(str(tiny))
    assert sweep.tracking.start(shared_params(profile), [], SHIP_S)
    sweep.tracking.begun("t0", {"agent.lr": 1e-3, "agent.gamma": 0.5}, again=False)
    assert sweep.tracking.ship(SHIP_S)
    assert sweep.run("t0").data.params == {"agent.lr": "0.001", "agent.gamma": "0.5"}
    shared = sweep.run(None).data.params
    assert set(shared) == {path for path, _, _ in walk(profile.trial)} | {"searcher", "scheduler"}
    assert shared["agent.lr"] == "0.0001 to 0.01 (log)"
    assert shared["training.epochs"] == "4"


def test_a_sweep_that_is_extended_goes_on_being_tracked(sweep: Sweep, tiny: Path) -> None:
    assert sweep.tracking.start(shared_params(load_profile(str(tiny))), [], SHIP_S)
    longer = load_profile(str(tiny), ["sweep.trials=12", "sweep.time_budget=2h", "sweep.pool.trainers=3"])
    again = sweep.open()
    assert again.start(shared_params(longer), [], SHIP_S)
    again.begun("t6", {"agent.lr": 1e-3}, again=False)
    assert again.ship(SHIP_S)
    assert sweep.run("t6").info.status == "RUNNING"


@pytest.mark.parametrize(
    ("state", "status"),
    [(State.COMPLETE, "FINISHED"), (State.PRUNED, "KILLED"), (State.FAILED, "FAILED"), (State.INFEASIBLE, "FAILED")],
)
def test_a_trials_run_says_how_the_trial_ended(sweep: Sweep, state: State, status: str) -> None:
    folder = sweep.folder / "trials" / "t0"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("seed = 0\n")
    sweep.tracking.begun("t0", {"agent.lr": 1e-3}, again=False)
    sweep.tracking.ended("t0", state, "because", 1.5, 4)
    assert sweep.tracking.ship(SHIP_S)
    run = sweep.run("t0")
    assert run.info.status == status
    assert (run.data.tags["state"], run.data.tags["ended_because"]) == (state.value, "because")
    assert run.data.metrics == {"score": 1.5}
    artifacts = mlflow.MlflowClient(sweep.uri).list_artifacts(run.info.run_id)
    assert [file.path for file in artifacts] == ["config.toml"]


def test_a_trial_that_was_parked_runs_again_after_a_resume(sweep: Sweep) -> None:
    sweep.tracking.begun("t0", {"agent.lr": 1e-3}, again=False)
    sweep.tracking.parked(["t0"], "SIGTERM")
    assert sweep.tracking.ship(SHIP_S)
    for run in (sweep.run("t0"), sweep.run(None)):
        assert (run.info.status, run.data.tags["state"]) == ("KILLED", "parked")
        assert run.data.tags["ended_because"] == "SIGTERM"
    again = sweep.open()
    assert again.start({}, [], SHIP_S)
    assert (sweep.run(None).info.status, sweep.run(None).data.tags["ended_because"]) == ("RUNNING", "")
    again.begun("t0", {"agent.lr": 1e-3}, again=True)
    assert again.ship(SHIP_S)
    assert (sweep.run("t0").info.status, sweep.run("t0").data.tags["state"]) == ("RUNNING", "running")
