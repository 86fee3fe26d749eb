"""Many writers, one shipper: runs are made once, and nothing is lost with a server or a process."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest

import cluster.journal as journal_module
from cluster.journal import Journal, JournalShipper, TrackingTarget
from trainer.tracking import RunKey


@pytest.fixture
def target(tmp_path: Path) -> TrackingTarget:
    parent = RunKey.of("sweep", sweep_id="s1", role="sweep")
    return TrackingTarget(f"sqlite:///{tmp_path / 'mlflow.db'}", "test", "s1", parent)


def runs(target: TrackingTarget) -> list[mlflow.entities.Run]:
    client = mlflow.MlflowClient(target.uri)
    experiment = client.get_experiment_by_name(target.experiment)
    return [r for r in client.search_runs([experiment.experiment_id]) if "trial_id" in r.data.tags]


def test_a_trial_that_moved_between_trainers_has_one_run(tmp_path: Path, target: TrackingTarget) -> None:
    run = target.run_of("t0")
    for index, name in enumerate(("a", "b")):
        Journal(tmp_path / "j" / f"{name}.jsonl").metrics(run, {"loss": float(index), "bad": float("nan")}, index)
    pool = Journal(tmp_path / "j" / "pool.jsonl")
    pool.params(run, {"agent.lr": 1e-3})
    pool.status(run, "FINISHED")
    assert JournalShipper(tmp_path / "j", target).flush(60.0)
    (found,) = runs(target)
    assert found.info.status == "FINISHED"
    assert found.data.params == {"agent.lr": "0.001"}
    assert found.data.metrics == {"loss": 1.0}
    assert found.data.tags["mlflow.parentRunId"]


def test_the_same_numbers_with_the_same_time_change_nothing(tmp_path: Path, target: TrackingTarget) -> None:
    run = target.run_of("t0")
    for name in ("before", "after"):
        Journal(tmp_path / "j" / f"{name}.jsonl").metrics(run, {"loss": 2.0}, 1, time_ms=1_700_000_000_000)
    assert JournalShipper(tmp_path / "j", target).flush(60.0)
    (found,) = runs(target)
    assert len(mlflow.MlflowClient(target.uri).get_metric_history(found.info.run_id, "loss")) == 1


def test_a_torn_last_line_of_a_dead_trainer_stops_nothing(tmp_path: Path, target: TrackingTarget) -> None:
    path = tmp_path / "j" / "a.jsonl"
    Journal(path).metrics(target.run_of("t0"), {"loss": 2.0}, 1)
    with path.open("a") as file:
        file.write('{"run": {"tags"')
    assert JournalShipper(tmp_path / "j", target).flush(60.0)
    assert len(runs(target)) == 1


def test_a_server_that_was_away_gets_everything_later(
    tmp_path: Path, target: TrackingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal(tmp_path / "j" / "a.jsonl").metrics(target.run_of("t0"), {"loss": 2.0}, 1)
    shipper = JournalShipper(tmp_path / "j", target)
    with monkeypatch.context() as outage:

        def away(*_: object, **__: object) -> None:
            raise ConnectionError("away")

        outage.setattr(journal_module.Shipper, "_connect", away)
        assert not shipper.flush(0.0)
        assert shipper.last_error == "ConnectionError: away"
    assert shipper.flush(60.0)
    assert len(runs(target)) == 1
