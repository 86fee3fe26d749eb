"""Real sweeps of real trials whose driver is killed, as an operator or a preempted node would."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from search.course import make_searcher
from search.log import LOG, read_events
from search.results import State
from search.searchers.base import Event, replay
from search.sweep_config import load_profile
from search.sweep_tracking import STATUS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
TRIALS = 5
START_S, END_S = 180.0, 600.0


def search(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    return subprocess.Popen([sys.executable, "-m", "search", *arguments], cwd=ROOT, env=environment)


def wait_for(folder: Path, kind: str, count: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        log = folder / LOG
        if log.is_file() and sum(event["kind"] == kind for event in read_events(log)) >= count:
            return
        time.sleep(0.1)
    raise AssertionError(f"no {count} events '{kind}' within {START_S:g} s")


def check(folder: Path) -> None:
    entries = json.loads((folder / "sweep.json").read_text())["trials"]
    assert [entry["trial_id"] for entry in entries] == [f"t{number:05d}" for number in range(TRIALS)]
    assert {entry["state"] for entry in entries} <= {"complete", "pruned"}
    events = list(read_events(folder / LOG))
    told = Counter(event["trial_id"] for event in events if event["kind"] == "tell")
    assert told == Counter({entry["trial_id"]: 1 for entry in entries})
    with sqlite3.connect(folder.parent / "mlflow.db") as database:
        rows = database.execute(
            "select t.value, r.status from tags t join runs r on r.run_uuid = t.run_uuid where t.key = 'trial_id'"
        ).fetchall()
    assert sorted(rows) == [(entry["trial_id"], STATUS[State(entry["state"])]) for entry in entries]
    profile = load_profile(str(folder / "sweep.toml"))
    searcher = make_searcher(profile, [])
    replay(searcher, (Event.from_json(event) for event in events if event["kind"] in ("ask", "tell")))
    assert set(searcher.finished) == {entry["trial_id"] for entry in entries}


def kept(folder: Path) -> dict[str, Any]:
    """What the first driver had already settled: it may never change."""
    return {
        event["trial_id"]: (event["outcome"], event["epoch"])
        for event in read_events(folder / LOG)
        if event["kind"] == "tell"
    }


def test_kill_9_of_the_driver_loses_no_trial_and_repeats_none(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "sweep"
    driver = search(str(tiny), "--trials", str(TRIALS), "--out", str(folder), "--set", "sweep.concurrent=2")
    wait_for(folder, "tell", 1)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = kept(folder)
    assert 0 < len(before) < TRIALS
    assert search("--resume", str(folder)).wait(END_S) == 0
    check(folder)
    assert {trial: verdict for trial, verdict in kept(folder).items() if trial in before} == before


def test_sigterm_parks_the_sweep_and_a_resume_gives_the_same_scores(tiny: Path, tmp_path: Path) -> None:
    calm, broken = tmp_path / "calm" / "sweep", tmp_path / "broken" / "sweep"
    settings = ("--trials", str(TRIALS), "--set", "sweep.scheduler.name=none", "--searcher", "random")
    driver = search(str(tiny), *settings, "--out", str(broken), "--set", "training.checkpoint_every=1")
    wait_for(broken, "ask", 2)
    time.sleep(2.0)
    driver.send_signal(signal.SIGTERM)
    began_s = time.monotonic()
    assert driver.wait(END_S) == 130
    assert time.monotonic() - began_s < 60.0
    entries = json.loads((broken / "sweep.json").read_text())["trials"]
    assert "parked" in {entry["state"] for entry in entries}
    assert search("--resume", str(broken)).wait(END_S) == 0
    check(broken)
    assert search(str(tiny), *settings, "--out", str(calm), "--set", "training.checkpoint_every=1").wait(END_S) == 0

    def scores(folder: Path) -> dict[str, Any]:
        return {t["trial_id"]: t["score"] for t in json.loads((folder / "sweep.json").read_text())["trials"]}

    assert scores(broken) == scores(calm)
