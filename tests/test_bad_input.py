"""Whatever a person gets wrong: one clear line on stderr, exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from trainer.training import checkpoint
from trainer.training.group import LaneGroup

from .command_line import Ended, refused, run, tiny_profile

ROOT = Path(__file__).resolve().parents[1]
CSV_HEADER = "time,open,high,low,close,volume"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return tiny_profile(tmp_path)


def refused_and_nothing_written(ended: Ended, out: Path, *parts: str) -> None:
    refused(ended, *parts)
    assert not out.exists(), sorted(out.rglob("*"))


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("agent.lrr=1", ("--set agent.lrr=1", "unknown key 'agent.lrr'", "did you mean 'agent.lr'?")),
        ("agnet.lr=1", ("unknown key 'agnet'", "did you mean 'agent'?")),
        ("market.synthetic.sesions=3", ("did you mean 'market.synthetic.sessions'?",)),
        ("agent.lr=5", ("agent.lr = 5", "less than or equal to 1")),
        ("agent.lr=abc", ("agent.lr = 'abc'", "valid number")),
        ("agent.lr=nan", ("agent.lr = nan", "finite")),
        ("agent.lr=true", ("agent.lr = True", "a number is right, not a flag")),
        ("training.epochs=1.5", ("training.epochs = 1.5", "valid integer")),
        ("training.batch=65", ("training.batch = 65", "multiple of 16")),
        ("agent=3", ("agent = 3",)),
        ("agent.lr", ("dotted.key=value",)),
        ("=1", ("dotted.key=value",)),
        ("agent.lr.x=1", ("'lr' is a value, not a table",)),
        ("market.source=banana", ("market.source = 'banana'", "'synthetic', 'bars', 'dbn' or 'exchange_json'")),
        ("market.source=bars", ("source 'bars' needs market.files.path (or --data PATH)",)),
        ("market.instrument=nq", ("instrument 'nq' not found", "known are", "es")),
        ("market.features.families=['wizardry']", ("market.features.families", "'wizardry'", "'trend'")),
        ("market.features.exclude=['nope']", ("market.features.exclude", "no computed feature 'nope'")),
        ("folds.count=60", ("too few for 60 folds", "at least", "folds.count")),
        ("market.synthetic.sessions=1", ("folds.holdout = 0",)),
        ("replay.capacity=10", ("replay.capacity = 10", "at least 128")),
        ("seed=-1", ("seed = -1", "greater than or equal to 0")),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], override: str, parts: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    refused_and_nothing_written(run(capfd, profile, "--out", out, "--set", override), out, *parts)


def test_a_wrong_profile_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    refused_and_nothing_written(run(capfd, "nonesuch", "--out", out), out, "'nonesuch'", "smoketest")
    refused(run(capfd, tmp_path, "--out", out), "no such profile or file")
    bad = tmp_path / "bad.toml"
    bad.write_text("this is = = not toml")
    refused_and_nothing_written(run(capfd, bad, "--out", out), out, "bad.toml", "not valid TOML", "line 1")
    bad.write_bytes(b"\xff\xfe\x00")
    refused(run(capfd, bad, "--out", out), "not valid TOML")
    bad.write_text("[agnet]\nlr = 1\n")
    refused(run(capfd, bad, "--out", out), "bad.toml", "unknown key 'agnet'; did you mean 'agent'?")
    bad.write_text("[agent]\nlr = 7\n")
    refused(run(capfd, bad, "--out", out), "bad.toml: agent.lr = 7")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("smoketest", "--bogus"),
        ("smoketest", "--seed", "x"),
        ("smoketest", "--device", "tpu"),
        ("smoketest", "--resume", "somewhere"),
        ("smoketest", "--track", ""),
        ("evaluate",),
        ("inspect", "smoketest", "more"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    refused(run(capfd, *arguments), "--help")


def test_help_is_no_fault(capfd: pytest.CaptureFixture[str]) -> None:
    for command in ((), ("evaluate",), ("inspect",)):
        ended = run(capfd, *command, "--help")
        assert ended.code == 0
        assert "--set" in ended.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_cuda_that_is_asked_for_and_absent_is_said(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    ended = run(capfd, profile, "--out", out, "--device", "cuda")
    refused_and_nothing_written(ended, out, "--device cuda", "use --device cpu")


# Output


def test_an_output_folder_that_is_not_empty_is_kept_as_it_is(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    refused(run(capfd, profile, "--out", tmp_path / "out"), "not an empty folder", "--resume")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]


def test_an_output_path_that_is_a_file_or_below_one_is_refused(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(run(capfd, profile, "--out", profile), "a file, not a folder")
    refused(run(capfd, profile, "--out", profile / "sub"), "a file, not a folder")
    refused(run(capfd, "inspect", profile, "--out", tmp_path), "cannot be written")
    refused(run(capfd, "inspect", profile, "--out", profile / "x.png"), "cannot be written")


def test_an_output_folder_that_cannot_be_written_is_refused_before_any_work(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path)
    refused(run(capfd, profile, "--out", tmp_path / "out"), str(tmp_path), "not writable")


def test_a_full_disk_ends_the_trial_with_one_line_and_leaves_no_torn_checkpoint(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = []
    save_file = checkpoint.save_file

    def full_at_the_second(tensors: dict[str, torch.Tensor], path: Path) -> None:
        saves.append(path)
        if len(saves) == 2:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device", str(path))
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full_at_the_second)
    refused(run(capfd, profile, "--out", tmp_path / "out"), "epoch_000002", "No space left on device")
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == ["epoch_000001"]
    assert run(capfd, "--resume", tmp_path / "out").code == 0


def test_output_that_nobody_reads_to_the_end_is_no_traceback(tmp_path: Path) -> None:
    profile = tiny_profile(tmp_path)
    command = f"'{sys.executable}' -m trainer inspect '{profile}' --out '{tmp_path}/x.png' | true"
    ended = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stderr == ""


# Tracking


def test_a_tracking_server_that_does_not_answer_is_said_before_any_work(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://user:secret@127.0.0.1:{free.getsockname()[1]}"
    out = tmp_path / "out"
    ended = run(capfd, profile, "--out", out, "--track", uri)
    refused_and_nothing_written(ended, out, "tracking server", "no answer")
    assert "secret" not in ended.err
    refused_and_nothing_written(run(capfd, profile, "--out", out, "--track", "foo://bar"), out, "foo://bar")


# Data


def bars(days: int = 30, per_day: int = 20) -> pd.DataFrame:
    """Minutes of SPY from the open on, all well."""
    day_D = pd.bdate_range("2024-03-01", periods=days, tz="America/New_York") + pd.Timedelta(hours=9, minutes=30)
    time_N = pd.DatetimeIndex([day + pd.Timedelta(minutes=m) for day in day_D for m in range(per_day)])
    close_N = 400.0 + np.round(np.cumsum(np.random.default_rng(0).normal(0.0, 0.05, len(time_N))), 2)
    return pd.DataFrame(
        {
            "time": time_N.tz_convert("UTC"),
            "open": close_N,
            "high": close_N + 0.1,
            "low": close_N - 0.1,
            "close": close_N,
            "volume": 100.0,
            "bid": close_N - 0.01,
            "ask": close_N + 0.01,
        }
    )


def broken(fault: str) -> pd.DataFrame:
    frame = bars()
    row = 105
    match fault:
        case "two rows of one time":
            copy = frame.iloc[[row]].assign(close=frame["close"].iloc[row] + 0.05)
            return pd.concat([frame.iloc[: row + 1], copy, frame.iloc[row + 1 :]])
        case "NaN price":
            frame.loc[row, "close"] = np.nan
        case "zero price":
            frame.loc[row, "low"] = 0.0
        case "negative price":
            frame.loc[row, ["open", "low"]] = -1.0
        case "high below low":
            frame.loc[row, ["high", "low"]] = frame.loc[row, ["low", "high"]].tolist()
        case "negative volume":
            frame.loc[row, "volume"] = -1.0
        case "a price from another world":
            frame.loc[row, ["open", "high", "low", "close"]] *= 9.0
        case "no close":
            return frame.drop(columns="close")
        case "no time":
            return frame.drop(columns="time")
        case "words for prices":
            return frame.assign(open="cheap")
    return frame


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ("two rows of one time", ("line 107", "line 108", "different bars of the same time")),
        ("NaN price", ("line 107", "close is missing")),
        ("zero price", ("line 107", "low is 0.0", "positive")),
        ("negative price", ("line 107", "open is -1.0", "positive")),
        ("high below low", ("line 107", "is below low")),
        ("negative volume", ("line 107", "volume is -1.0")),
        ("a price from another world", ("line 107", "max_move")),
        ("no close", ("close",)),
        ("no time", ("time",)),
        ("words for prices", ("cheap",)),
    ],
)
def test_faulty_bars_are_named_by_file_and_row(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], fault: str, parts: tuple[str, ...]
) -> None:
    data, out = tmp_path / "spy.csv", tmp_path / "out"
    broken(fault).to_csv(data, index=False)
    ended = run(capfd, profile, "--data", data, "--out", out, "--set", "market.source=bars")
    refused_and_nothing_written(ended, out, "spy.csv", *parts)


def test_bars_an_hour_off_in_summer_are_refused(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whole sessions; after the change of clocks on 2024-03-10 the file goes on with winter's shift from UTC."""
    frame = bars(days=30, per_day=390)
    summer_N = frame["time"] >= pd.Timestamp("2024-03-10", tz="UTC")
    frame.loc[summer_N, "time"] += pd.Timedelta(hours=1)
    data, out = tmp_path / "spy.csv", tmp_path / "out"
    frame.to_csv(data, index=False)
    ended = run(capfd, profile, "--data", data, "--out", out)
    refused_and_nothing_written(ended, out, "spy.csv", "1 h late", "2024-03-11", "daylight saving", "timezone")


def test_what_is_safe_to_repair_is_repaired_and_told(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = bars()
    frame.loc[50, ["bid", "ask"]] = frame.loc[50, ["ask", "bid"]].tolist()  # crossed
    frame.loc[60, "volume"] = 0.0
    frame = pd.concat([frame.iloc[:200], frame.iloc[199:]])  # an exact copy
    order = np.arange(len(frame))
    order[[300, 301]] = [301, 300]
    frame.iloc[order].to_csv(tmp_path / "spy.csv", index=False)
    ended = run(capfd, "inspect", profile, "--data", tmp_path / "spy.csv", "--out", tmp_path / "x.png")
    assert ended.code == 0
    for line in (
        "dropped 1: exact copies of an earlier row",
        "dropped 1: zero volume: nothing traded",
        "repaired 1: rows out of order, sorted by time",
        "repaired 1: crossed quote: last trade and default spread",
    ):
        assert line in ended.out
    out = tmp_path / "out"
    assert run(capfd, profile, "--data", tmp_path / "spy.csv", "--out", out).code == 0
    assert (out / "result.json").exists()


def test_data_too_short_for_folds_are_described_but_not_trained_on(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "spy.csv", tmp_path / "out"
    bars(days=5).to_csv(data, index=False)
    refused_and_nothing_written(run(capfd, profile, "--data", data, "--out", out), out, "too few", "at least")
    ended = run(capfd, "inspect", profile, "--data", data, "--out", tmp_path / "x.png")
    assert ended.code == 0
    assert "no trial can be run on this as it is: folds:" in ended.out
    assert (tmp_path / "x.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("spy.xlsx", b"PK", "bars are .parquet, .csv or .csv.gz"),
        ("spy.parquet", b"hi", "not a Parquet file"),
        ("spy.csv", b"", "empty"),
        ("spy.csv", CSV_HEADER.encode(), "spy.csv"),
        ("spy.csv", b"\x00\xff\x00\xff", "spy.csv"),
        ("spy.csv.gz", b"not gzip", "spy.csv.gz"),
        ("spy.dbn", b"garbage", "not a DBN file"),
        ("spy.dbn.zst", b"garbage", "not a DBN file"),
        ("btcusdt.gz", b"garbage", "damaged"),
        ("btcusdt.json", b'1 {"e":"trade"', "btcusdt.json"),
        ("btcusdt.json", b"nothing here", "no trade within the hours of BTCUSDT perpetual"),
        ("mystery.csv", CSV_HEADER.encode(), "market.instrument"),
    ],
)
def test_files_of_the_wrong_kind_or_damaged_are_named(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, content: bytes, part: str
) -> None:
    data, out = tmp_path / name, tmp_path / "out"
    data.write_bytes(content)
    refused_and_nothing_written(run(capfd, profile, "--data", data, "--out", out), out, part)


@pytest.mark.parametrize(
    "setting",
    ["hours=all", "volume_in_lots=true", "shift_seconds=60", "timezone=UTC", "max_spread=0.1", "columns={close = 'c'}"],
)
@pytest.mark.parametrize("name", ["btcusdt.json", "spy.dbn"])
def test_settings_that_only_files_of_bars_are_read_with_are_refused_elsewhere(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, setting: str
) -> None:
    data, out = tmp_path / name, tmp_path / "out"
    data.touch()
    ended = run(capfd, profile, "--data", data, "--set", f"market.files.{setting}", "--out", out)
    refused_and_nothing_written(ended, out, f"files.{setting.split('=')[0]} is for files of bars", "`open` and `close`")


def test_data_that_are_not_there_are_named(profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    refused_and_nothing_written(
        run(capfd, profile, "--data", tmp_path / "none.csv", "--out", out), out, "none.csv", "no such file"
    )
    (tmp_path / "folder").mkdir()
    refused(run(capfd, profile, "--data", tmp_path / "folder", "--out", out), "holds no data")
    refused(run(capfd, "inspect", "--data", tmp_path / "none.csv"), "no such file")


def test_data_that_vanish_before_a_resume_are_named(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "spy.csv", tmp_path / "out"
    bars().to_csv(data, index=False)
    assert run(capfd, profile, "--data", data, "--out", out).code == 0
    (out / "result.json").unlink()
    text = data.read_text()
    data.write_text(text.replace(",100.0,", ",101.0,", 1))
    refused(run(capfd, "--resume", out), "other data", "spy.csv")
    data.unlink()
    refused(run(capfd, "--resume", out), "spy.csv", "no such file")
    data.write_text(text)
    assert run(capfd, "--resume", out).code == 0


def test_a_policy_of_another_market_or_damaged_is_named(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, data = tmp_path / "out", tmp_path / "spy.csv"
    assert run(capfd, profile, "--out", out).code == 0
    bars().to_csv(data, index=False)
    refused(run(capfd, "evaluate", out, "--data", data), "lack features", "flow_")
    policy = out / "policies" / "fold_0"
    manifest = json.loads((policy / "manifest.json").read_text())
    for broken_manifest in ([], {}, {**manifest, "features": 3}, {**manifest, "config": None}):
        (policy / "manifest.json").write_text(json.dumps(broken_manifest))
        refused(run(capfd, "evaluate", policy), "fold_0")
    (policy / "manifest.json").write_text("{")
    refused(run(capfd, "evaluate", policy), "manifest.json", "JSON")
    (policy / "manifest.json").write_text(json.dumps(manifest))
    tensors = policy / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"!")
    refused(run(capfd, "evaluate", out), "tensors.safetensors", "damaged")
    shutil.rmtree(out / "policies")
    refused(run(capfd, "evaluate", out), "no policy here")


def test_a_trial_that_diverges_ends_with_one_line_that_names_what(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverging(self: LaneGroup, *_: object) -> dict[str, list[float]]:
        table = numbers(self, *_)
        return table | {"loss": [0.5, float("nan")]}

    numbers = LaneGroup._training_numbers
    monkeypatch.setattr(LaneGroup, "_training_numbers", diverging)
    ended = run(capfd, profile, "--out", tmp_path / "out")
    refused(ended, "epoch 1", "fold 1: loss not finite", "agent.lr")
    assert not (tmp_path / "out" / "result.json").exists()


def test_ctrl_c_while_data_are_read_is_no_traceback(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.training.trial.prepare", pressed)
    ended = run(capfd, profile, "--out", tmp_path / "out")
    assert (ended.code, ended.err) == (130, "interrupted\n")
    assert not (tmp_path / "out").exists()
