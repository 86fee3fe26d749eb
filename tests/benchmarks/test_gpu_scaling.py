"""Shares of linear scaling and what a killed trainer costs, from hand-worked runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from benchmarks.gpu_scaling import Run, _below, once
from cluster.epoch_log import Epoch


def epoch(began: float, busy: float, lanes: int = 10) -> Epoch:
    phases = {"collect": 0.0, "validate": 0.0, "capture": 0.0, "report": 0.0, "learn": busy}
    return Epoch(began, 0.0, busy, phases, lanes, 16, 2, 100)


def tell(trial_id: str, time_s: float, score: float | None, ending: str = "complete") -> dict[str, Any]:
    return {"kind": "tell", "trial_id": trial_id, "time": time_s, "outcome": {"ending": ending, "score": score}}


ONE = Run.of({"a": [epoch(100.0, 30.0), epoch(135.0, 60.0)]}, [tell("t0", 150.0, 1.0), tell("t1", 200.0, 0.5)])


def test_times_count_from_the_first_epoch_to_the_last_verdict() -> None:
    assert (ONE.trainers, ONE.trials, ONE.seconds, ONE.lane_steps) == (1, 2, 100.0, 2000)
    assert ONE.busy == (0.9,)
    assert (ONE.best, ONE.best_after) == (1.0, 50.0)


def test_two_trainers_stand_beside_twice_the_one() -> None:
    epochs = {"a": [epoch(100.0, 40.0)], "b": [epoch(110.0, 30.0), epoch(150.0, 10.0)]}
    events = [{"kind": "ask"}, tell("t0", 130.0, 0.1), tell("t1", 160.0, -1.0, "pruned"), tell("t0", 150.0, 0.1)]
    two = Run.of(epochs, [*events, tell("t2", 155.0, None, "failed"), tell("t3", 159.0, 2.0)])
    assert (two.trials, two.twice, two.failed, two.seconds) == (4, 1, 1, 60.0)
    lines = {line.what: line for line in two.lines("2 GPUs", ONE)}
    assert lines["2 GPUs: trials an hour"].ours == 240.0
    assert lines["2 GPUs: trials an hour"].ratio == pytest.approx(240.0 / (2 * 72.0))
    assert lines["2 GPUs: lane-steps"].ratio == pytest.approx(3000 / 60 / (2 * 20.0))
    assert lines["2 GPUs: busy, least of the trainers"].ours == pytest.approx(40 / 60)
    assert lines["2 GPUs: until the best score"].ours == 59.0


def test_a_sweep_without_a_complete_trial_has_no_best_score() -> None:
    with pytest.raises(ValueError, match="empty"):
        Run.of({"a": [epoch(0.0, 1.0)]}, [tell("t0", 1.0, None, "failed")])


def test_what_is_to_be_done_once_is_tried_until_it_is_done() -> None:
    seen: list[int] = []

    def act(process: int) -> bool:
        seen.append(process)
        return len(seen) == 2

    watch = once(act, after=3)
    for process in range(8):
        watch(process)
    assert seen == [2, 3]


def test_descendants_are_found() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 20.0
        while len(list(_below(child.pid))) < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert child.pid in list(_below(os.getpid()))
        assert len(list(_below(child.pid))) == 1
    finally:
        child.communicate(b"\n")
