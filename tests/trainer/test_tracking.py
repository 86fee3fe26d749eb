"""Tracking against a real MLflow on SQLite, and against a server that is away."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from trainer.errors import UserError
from trainer.tracking import MAX_PARAM_CHARS, RunKey, Tracker, check_uri, redact

SWEEP = RunKey.of("sweep", sweep_id="s1", role="sweep")
TRIAL = RunKey.of("trial 7", SWEEP, sweep_id="s1", trial_id="0248e552")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One migrated SQLite database for the module: creating its tables takes seconds."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    check_uri(uri)
    return uri


@pytest.fixture
def uri(database: str) -> str:
    return database


def runs(uri: str, experiment: str) -> list[object]:
    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id])) if found else []


def test_values_of_one_trial_arrive_under_its_parent(uri: str, tmp_path: Path) -> None:
    tracker = Tracker(uri, "arrive", tmp_path / "journal.jsonl")
    tracker.params(TRIAL, {"agent.lr": 1e-4})
    for epoch in range(3):
        tracker.metrics(TRIAL, {"fold_0/val_sharpe": 0.5 * epoch, "fold_0/loss": float("nan")}, step=epoch)
    report = tmp_path / "report.txt"
    report.write_text("fine")
    tracker.artifact(TRIAL, report)
    tracker.status(TRIAL, "FINISHED")
    assert tracker.close()
    client = MlflowClient(tracking_uri=uri)
    run = client.get_run(tracker.run_id(TRIAL))
    history = client.get_metric_history(run.info.run_id, "fold_0/val_sharpe")
    assert [(m.step, m.value) for m in history] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert "fold_0/loss" not in run.data.metrics
    assert run.data.params == {"agent.lr": "0.0001"}
    assert run.data.tags["mlflow.parentRunId"] == tracker.run_id(SWEEP)
    assert run.data.tags["trial_id"] == "0248e552"
    assert run.info.status == "FINISHED"
    assert [f.path for f in client.list_artifacts(run.info.run_id)] == ["report.txt"]


def test_a_resumed_trial_continues_its_run(uri: str, tmp_path: Path) -> None:
    for process in ("first", "second"):
        tracker = Tracker(uri, "resume", tmp_path / f"{process}.jsonl")
        tracker.metrics(TRIAL, {"score": 1.0}, step=0)
        assert tracker.close()
    assert len(runs(uri, "resume")) == 2  # the parent and the trial, once each


def test_a_crash_before_shipping_loses_nothing_and_repeats_nothing(uri: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    tracker = Tracker(uri, "crash", journal)
    tracker.metrics(TRIAL, {"score": 1.0}, step=0)
    assert tracker.close()
    line = {"run": TRIAL.to_json(), "time_ms": 5, "metrics": {"score": 2.0}, "step": 1}
    with journal.open("a") as file:  # what a process wrote just before it was killed, its last line torn
        file.write(json.dumps(line) + "\n" + '{"run": {"tags"')
    journal.with_suffix(".offset").write_text("0")  # and it died before noting what it had shipped
    again = Tracker(uri, "crash", journal)
    assert again.close()
    client = MlflowClient(tracking_uri=uri)
    history = client.get_metric_history(again.run_id(TRIAL), "score")
    assert sorted((m.step, m.value) for m in history) == [(0, 1.0), (1, 2.0)]


def test_long_and_many_params_are_split_and_kept_whole(uri: str, tmp_path: Path) -> None:
    tracker = Tracker(uri, "params", tmp_path / "journal.jsonl")
    text = "x" * (MAX_PARAM_CHARS + 100)
    tracker.params(TRIAL, {f"p{i}": i for i in range(150)} | {"long": text})
    tracker.metrics(TRIAL, {f"m{i}": float(i) for i in range(1500)}, step=0)
    assert tracker.close()
    client = MlflowClient(tracking_uri=uri)
    run = client.get_run(tracker.run_id(TRIAL))
    assert len(run.data.params) == 151
    assert len(run.data.metrics) == 1500
    path = client.download_artifacts(run.info.run_id, "params/long.txt", str(tmp_path))
    assert Path(path).read_text() == text


@pytest.fixture
def late_server(tmp_path: Path) -> tuple[str, list[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/server.db",
        "--artifacts-destination",
        str(tmp_path / "a"),
    ]
    return f"http://127.0.0.1:{port}", command


def test_a_server_that_is_away_stops_nothing_and_loses_nothing(
    late_server: tuple[str, list[str]], tmp_path: Path
) -> None:
    uri, command = late_server
    tracker = Tracker(uri, "late", tmp_path / "journal.jsonl")
    before = time.monotonic()
    for epoch in range(50):
        tracker.metrics(TRIAL, {"score": float(epoch)}, step=epoch)
    assert time.monotonic() - before < 1.0
    assert not tracker.flush(timeout_s=1.0)
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        assert tracker.close(timeout_s=60.0)
        history = MlflowClient(tracking_uri=uri).get_metric_history(tracker.run_id(TRIAL), "score")
        assert [m.value for m in history] == [float(epoch) for epoch in range(50)]
    finally:
        server.terminate()
        server.wait()


def test_a_server_that_does_not_answer_at_start_is_one_clear_error() -> None:
    with pytest.raises(UserError, match=r"tracking server http://127\.0\.0\.1:1: no answer"):
        check_uri("http://user:secret@127.0.0.1:1")


def test_credentials_are_not_shown() -> None:
    assert redact("http://user:secret@host:5000/x") == "http://host:5000/x"
    assert redact("sqlite:///a@b.db") == "sqlite:///a@b.db"


def test_an_experiment_holds_training_runs_and_its_artifacts_lie_beside_the_database(uri: str, tmp_path: Path) -> None:
    tracker = Tracker(uri, "kind", tmp_path / "journal.jsonl")
    tracker.metrics(TRIAL, {"score": 1.0}, step=0)
    assert tracker.close()
    experiment = MlflowClient(tracking_uri=uri).get_experiment_by_name("kind")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    database = Path(uri.removeprefix("sqlite:///"))
    assert experiment.artifact_location.startswith((database.parent / "mlartifacts").as_uri())
