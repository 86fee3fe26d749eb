"""Many writers, one shipper: runs are made once, and nothing is lost with a server or a process."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

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


def test_what_a_trial_recorded_since_the_last_time_goes_out_in_one_batch(
    tmp_path: Path, target: TrackingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("log_batch", "search_runs", "create_run", "update_run", "set_terminated"):
        method = getattr(mlflow.MlflowClient, name)

        def counted(*given: Any, name: str = name, method: Any = method, **named: Any) -> Any:
            asked.append(name)
            return method(*given, **named)

        monkeypatch.setattr(mlflow.MlflowClient, name, counted)
    driver, trainer = (Journal(tmp_path / "j" / f"{name}.jsonl") for name in ("verdicts", "trainer"))
    for trial_id in ("t0", "t1"):
        run = target.run_of(trial_id)
        driver.params(run, {"agent.lr": 1e-3})
        for epoch in range(3):
            trainer.metrics(run, {"loss": 1.0, "score": 2.0}, epoch)
        driver.tags(run, {"state": "complete"})
        driver.status(run, "FINISHED")
    assert JournalShipper(tmp_path / "j", target).flush(60.0)
    assert Counter(asked) == {"create_run": 3, "log_batch": 2, "set_terminated": 2}
    assert [run.data.tags["state"] for run in runs(target)] == ["complete", "complete"]


def test_runs_that_are_there_are_found_again_by_the_next_shipper(tmp_path: Path, target: TrackingTarget) -> None:
    journal = Journal(tmp_path / "j" / "a.jsonl")
    for epoch in range(2):
        journal.metrics(target.run_of("t0"), {"loss": float(epoch)}, epoch)
        assert JournalShipper(tmp_path / "j", target).flush(60.0)
    (found,) = runs(target)
    client = mlflow.MlflowClient(target.uri)
    assert len(client.get_metric_history(found.info.run_id, "loss")) == 2
    assert len(client.search_runs([found.info.experiment_id])) == 2


def test_a_run_that_somebody_deleted_does_not_hold_up_the_others(tmp_path: Path, target: TrackingTarget) -> None:
    journal, shipper = Journal(tmp_path / "j" / "a.jsonl"), JournalShipper(tmp_path / "j", target)
    journal.metrics(target.run_of("t0"), {"loss": 1.0}, 1)
    assert shipper.flush(60.0)
    mlflow.MlflowClient(target.uri).delete_run(runs(target)[0].info.run_id)
    journal.metrics(target.run_of("t0"), {"loss": 2.0}, 2)
    journal.metrics(target.run_of("t1"), {"loss": 3.0}, 2)
    assert shipper.flush(60.0)
    assert [run.data.tags["trial_id"] for run in runs(target)] == ["t1"]


def test_no_journal_waits_until_another_is_empty(
    tmp_path: Path, target: TrackingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "PIECE_BYTES", 1)
    monkeypatch.setattr(journal_module, "_LEAST_BYTES", 1)
    sent: list[str] = []

    def send(_shipper: journal_module.Shipper, lines: list[dict[str, Any]]) -> None:
        sent.append("".join(line["run"]["name"] for line in lines))

    monkeypatch.setattr(journal_module.Shipper, "send", send)
    for name in ("a", "b"):
        journal = Journal(tmp_path / "j" / f"{name}.jsonl")
        for epoch in range(2):
            journal.metrics(target.run_of(name), {"loss": 1.0}, epoch)
    assert JournalShipper(tmp_path / "j", target).flush(60.0)
    assert sent == ["ab", "ab"]
    assert journal_module.unshipped_bytes(tmp_path / "j") == 0
