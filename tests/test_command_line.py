"""What ``python -m trainer`` promises of a trial: its files, resuming, interruption, tracking, evaluation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch

import trainer.commands.evaluate as evaluate_command
import trainer.commands.run as run_command
from trainer.__main__ import main
from trainer.config import TrialConfig, load_config
from trainer.evaluation.metrics import sharpe_ratio
from trainer.market.folds import Range
from trainer.market.instrument import load_instrument
from trainer.training.checkpoint import read_manifest
from trainer.training.prepare import prepare
from trainer.training.report import TrialReport

from .command_line import refused, run, tiny_profile

ROOT = Path(__file__).resolve().parents[1]
CLOCKS = {"wall_seconds", "throughput", "phase_seconds"}


def without_clocks(value: Any) -> Any:
    """A result without the numbers that a clock measured."""
    if isinstance(value, dict):
        return {key: without_clocks(each) for key, each in value.items() if key not in CLOCKS}
    return [without_clocks(each) for each in value] if isinstance(value, list) else value


def result_of(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_profile(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def finished(profile: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial that ran to its end, tracked."""
    folder = tmp_path_factory.mktemp("finished")
    out = folder / "trial"
    assert main([str(profile), "--out", str(out), "--device", "cpu", "--track", f"sqlite:///{folder}/mlflow.db"]) == 0
    return out


def interrupt_after(monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    """Press Ctrl-C while ``epoch`` is being reported."""

    class Interrupting(run_command.Progress):
        def __call__(self, report: TrialReport) -> None:
            super().__call__(report)
            if report.epoch == epoch:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(run_command, "Progress", Interrupting)


# The result


def test_the_result_has_the_promised_keys_and_types(finished: Path) -> None:
    result = result_of(finished)
    assert isinstance(result["score"], float)
    assert result["wall_seconds"] > 0.0
    assert set(result["throughput"]) == {"env_steps_per_s", "grad_steps_per_s"}
    assert all(rate > 0.0 for rate in result["throughput"].values())
    assert [fold["fold"] for fold in result["folds"]] == [0, 1]
    for fold in result["folds"]:
        assert {"val_sharpe", "val_max_drawdown", "untrained_val_sharpe"} <= {
            name for name, value in fold.items() if isinstance(value, float)
        }
        assert isinstance(fold["val_trades"], int)
    assert [epoch["epoch"] for epoch in result["epochs"]] == [1, 2, 3]
    for epoch in result["epochs"]:
        assert {"collect", "learn", "validate"} <= set(epoch["phase_seconds"])
        assert [fold["fold"] for fold in epoch["folds"]] == [0, 1]
        assert all({"loss", "q_gap", "health", "val_sharpe"} <= set(fold) for fold in epoch["folds"])


def test_the_score_is_the_median_of_the_folds_last_epochs(finished: Path) -> None:
    result = result_of(finished)
    by_fold = [np.mean([epoch["folds"][fold]["val_sharpe"] for epoch in result["epochs"][-3:]]) for fold in (0, 1)]
    assert [fold["val_sharpe"] for fold in result["folds"]] == pytest.approx(by_fold)
    assert result["score"] == pytest.approx(np.median(by_fold))


def test_the_best_epoch_is_kept_for_people_and_not_for_the_score(finished: Path) -> None:
    result = result_of(finished)
    for fold in (0, 1):
        sharpes = [epoch["folds"][fold]["val_sharpe"] for epoch in result["epochs"]]
        assert result["folds"][fold]["best_epoch"] == 1 + int(np.argmax(sharpes))
        best, last = (finished / f"policies/{part}fold_{fold}/tensors.safetensors" for part in ("best/", ""))
        is_last = result["folds"][fold]["best_epoch"] == 3
        assert (best.read_bytes() == last.read_bytes()) == is_last
        assert result["folds"][fold]["val_sharpe"] <= max(sharpes)


def test_the_folder_holds_config_checkpoints_policies_and_equity(finished: Path) -> None:
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_dir()}
    assert {"checkpoints/epoch_000003", "policies/fold_0", "policies/fold_1", "policies/best/fold_0"} <= names
    assert sorted(path.name for path in (finished / "equity").iterdir()) == ["fold_0.parquet", "fold_1.parquet"]
    assert not [path for path in finished.rglob("*") if path.suffix == ".tmp" or path.name.startswith(".")]


def test_the_equity_curve_gives_the_reported_sharpe_and_drawdown(finished: Path) -> None:
    config = load_config(str(finished / "config.toml"))
    sessions_per_year = load_instrument("synthetic").sessions_per_year
    last = result_of(finished)["epochs"][-1]["folds"]
    for fold in (0, 1):
        frame = pd.read_parquet(finished / "equity" / f"fold_{fold}.parquet")
        assert list(frame.columns) == ["time", "session", "equity", "position", "notional"]
        assert frame["time"].is_monotonic_increasing
        close_S = frame.groupby("session", sort=False)["equity"].last().to_numpy()
        returns_S = np.diff(close_S, prepend=config.env.capital) / config.env.capital
        sharpe = sharpe_ratio(returns_S) * np.sqrt(sessions_per_year)
        traded = last[fold]["val_trades"] >= config.evaluation.min_trades
        assert last[fold]["val_sharpe"] == pytest.approx(sharpe if traded else 0.0, abs=1e-12)
        equity = np.append(config.env.capital, frame["equity"])
        peak = np.maximum.accumulate(equity)
        assert last[fold]["val_max_drawdown"] == pytest.approx(np.max((peak - equity) / peak), abs=1e-12)
        assert last[fold]["val_profit"] == pytest.approx(equity[-1] - config.env.capital, abs=1e-6)


def test_the_written_config_is_the_config_that_ran(finished: Path, profile: Path) -> None:
    assert load_config(str(finished / "config.toml")) == load_config(str(profile))


def test_the_screen_shows_progress_a_table_and_the_way_to_the_result(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = run(capfd, profile, "--out", tmp_path / "o")
    assert ended.code == 0
    for word in ("epoch", "loss", "Q-gap", "health", "val Sharpe", "env/s", "grad/s", "collect, learn, validate"):
        assert word in ended.out
    for word in ("1/3", "3/3", "drawdown", "trades", "untrained", "buy & hold", str(tmp_path / "o" / "result.json")):
        assert word in ended.out
    assert ended.err == ""


# Repetition, interruption, resuming


def test_the_same_seed_gives_the_same_result_twice_and_another_seed_another(
    finished: Path, profile: Path, tmp_path: Path
) -> None:
    assert main([str(profile), "--out", str(tmp_path / "again"), "--device", "cpu"]) == 0
    assert without_clocks(result_of(tmp_path / "again")) == without_clocks(result_of(finished))
    assert main([str(profile), "--out", str(tmp_path / "other"), "--device", "cpu", "--seed", "1"]) == 0
    assert without_clocks(result_of(tmp_path / "other")) != without_clocks(result_of(finished))


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_trial_interrupted_by_ctrl_c_and_resumed_ends_with_the_same_numbers(
    finished: Path,
    profile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    epoch: int,
) -> None:
    out = tmp_path / "trial"
    with monkeypatch.context() as patch:
        interrupt_after(patch, epoch)
        ended = run(capfd, profile, "--out", out, "--device", "cpu", "--set", "training.checkpoint_every=100")
    assert ended.code == 130
    assert f"--resume {out}" in ended.out
    assert read_manifest(out / "checkpoints" / f"epoch_{epoch:06d}")["epoch"] == epoch
    assert not (out / "result.json").exists()
    assert run(capfd, "--resume", out, "--device", "cpu").code == 0
    assert without_clocks(result_of(out)) == without_clocks(result_of(finished))
    for fold in ("fold_0", "fold_1"):
        name = f"policies/{fold}/tensors.safetensors"
        assert (out / name).read_bytes() == (finished / name).read_bytes()


def test_the_signal_handlers_are_put_back(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    interrupt_after(monkeypatch, 1)
    assert run(capfd, profile, "--out", tmp_path / "o").code == 130
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_process_stops_at_sigterm_with_130_and_a_checkpoint(profile: Path, tmp_path: Path) -> None:
    out = tmp_path / "trial"
    arguments = [str(profile), "--out", str(out), "--set", "training.epochs=100000", "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "trainer", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "1/100000" in line:
            break
    process.send_signal(signal.SIGTERM)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "continue with" in said
    assert err == ""
    newest = max(path.name for path in (out / "checkpoints").iterdir())
    assert f"stopped after epoch {int(newest.removeprefix('epoch_'))}" in said


def test_two_checkpoints_are_kept(finished: Path) -> None:
    assert sorted(p.name for p in (finished / "checkpoints").iterdir()) == ["epoch_000002", "epoch_000003"]


def test_resuming_needs_an_unfinished_undamaged_trial(
    finished: Path,
    profile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    refused(run(capfd, "--resume", finished), "has ended")
    refused(run(capfd, "--resume", tmp_path / "nothing"), "no trial to resume")
    out = tmp_path / "trial"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        assert run(capfd, profile, "--out", out).code == 130
    refused(run(capfd, "--resume", out, "--set", "agent.lr=1e-2"), "--resume", "no --set")
    refused(run(capfd, profile, "--out", out), "not an empty folder", "--resume")
    tensors = out / "checkpoints" / "epoch_000002" / "tensors.safetensors"
    whole = tensors.read_bytes()
    for at in (9, len(whole) // 2, len(whole) - 1):
        tensors.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        refused(run(capfd, "--resume", out), "tensors.safetensors", "damaged")
    tensors.write_bytes(whole[:1000])
    refused(run(capfd, "--resume", out), "damaged")
    tensors.write_bytes(whole)
    manifest = tensors.with_name("manifest.json")
    text = manifest.read_text()
    manifest.write_text(text[:-20])
    refused(run(capfd, "--resume", out), "manifest.json", "JSON")
    manifest.write_text(text)
    assert run(capfd, "--resume", out).code == 0


# Tracking


def test_tracking_leaves_one_finished_run_with_every_epochs_metrics(finished: Path) -> None:
    client = mlflow.tracking.MlflowClient(f"sqlite:///{finished.parent}/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name == "paceline"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["agent.lr"] == "0.001"
    assert found.data.tags["trial_id"] == "trial"
    history = client.get_metric_history(found.info.run_id, "fold_1/val_sharpe")
    epochs = result_of(finished)["epochs"]
    assert [(each.step, each.value) for each in history] == [
        (epoch["epoch"], epoch["folds"][1]["val_sharpe"]) for epoch in epochs
    ]
    assert {"config.toml", "result.json", "policies", "equity"} <= {
        each.path for each in client.list_artifacts(found.info.run_id)
    }


def test_a_resumed_trial_continues_its_run(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    uri, out = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "trial"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        assert run(capfd, profile, "--out", out, "--track", uri).code == 130
    client = mlflow.tracking.MlflowClient(uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == "paceline"]
    assert [each.info.status for each in client.search_runs([experiment.experiment_id])] == ["KILLED"]
    assert run(capfd, "--resume", out, "--track", uri).code == 0
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    steps = [each.step for each in client.get_metric_history(found.info.run_id, "fold_0/loss")]
    assert steps == [1, 2, 3]


# Evaluation


@pytest.fixture(scope="module")
def stressed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    table = tmp_path_factory.mktemp("stress") / "table.json"
    assert main(["evaluate", str(finished), "--out", str(table), "--device", "cpu"]) == 0
    rows: list[dict[str, Any]] = json.loads(table.read_text())
    return rows


def test_the_stress_table_has_every_policy_as_trained_dearer_and_later(stressed: list[dict[str, Any]]) -> None:
    assert [(row["fold"], row["stress"]) for row in stressed] == [
        (fold, stress) for fold in (0, 1) for stress in ("as trained", "costs x2", "costs x3", "1 bar late")
    ]


def test_dearer_costs_hurt_by_what_is_traded(finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """At costs x2 and x3 the same orders cost two and three times as much; a policy sees prices, not its costs."""
    table = tmp_path / "table.json"
    free = ("--set", "env.cost_scale=0")
    assert run(capfd, "evaluate", finished, "--out", table).code == 0
    as_trained, twice, thrice, _late = json.loads(table.read_text())[:4]
    assert run(capfd, "evaluate", finished, "--out", table, *free).code == 0
    without = json.loads(table.read_text())[0]
    assert as_trained["turnover"] > 0.0
    assert without["profit"] > as_trained["profit"] > twice["profit"] > thrice["profit"]


def test_a_bar_of_latency_changes_what_is_earned(stressed: list[dict[str, Any]]) -> None:
    as_trained, late = stressed[0], stressed[3]
    assert late["profit"] != as_trained["profit"]


def test_of_its_own_data_a_policy_sees_only_what_is_neither_trained_on_nor_held_out(
    finished: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[tuple[int, int]] = []
    slots_of = evaluate_command.slots_of

    def spy(config: TrialConfig, session_N: np.ndarray, bars: Range) -> list[Range]:
        ranges.append((bars.start, bars.end))
        return slots_of(config, session_N, bars)

    monkeypatch.setattr(evaluate_command, "slots_of", spy)
    config = load_config(str(finished / "config.toml"))
    prepared = prepare(config, torch.device("cpu"))
    assert run(capfd, "evaluate", finished).code == 0
    visible = prepared.holdout.start
    assert ranges == [(fold.train.end, visible) for fold in prepared.folds]
    ranges.clear()
    assert run(capfd, "evaluate", finished, "--set", "market.synthetic.seed=1").code == 0
    everything = prepared.holdout.end
    assert ranges == [(prepared.features.warmup_bars, everything)] * 2


def test_one_policy_of_a_trial_can_be_evaluated_alone(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ended = run(capfd, "evaluate", finished / "policies" / "best" / "fold_1")
    assert ended.code == 0
    assert ended.out.count("as trained") == 1


def test_evaluating_needs_a_policy_and_its_features(
    finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(run(capfd, "evaluate", tmp_path), "no policy here")
    refused(run(capfd, "evaluate", tmp_path / "nothing"), "no policy here")
    refused(run(capfd, "evaluate", finished / "checkpoints" / "epoch_000003"), "a checkpoint, not a policy")
    refused(run(capfd, "evaluate", finished, "--set", "market.features.families=['returns']"), "lack features")
    refused(run(capfd, "evaluate", finished, "--set", "agent.nonsense=1"), "unknown key")
    refused(run(capfd, "evaluate", finished, "--set", "market.synthetic.sessions=1"), "too few")
    refused(run(capfd, "evaluate", finished, "--out", tmp_path / "no" / "such" / "table.json"), "table")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    yield
    assert torch.get_num_threads() == 1
