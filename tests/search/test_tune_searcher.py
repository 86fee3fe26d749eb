from __future__ import annotations

import time
from typing import Any

import pytest
from ray.tune.search import Searcher as RaySearcher

from cluster.pool import PoolError
from cluster.protocol import RungReport
from search.results import TrialRecord
from search.trainable import REPORT, TrialClient
from search.tune_searcher import TuneSearcher
from search.turns import EVERY_S, Turns


class Asked:
    """A course of so many trials."""

    def __init__(self, trials: int) -> None:
        self.left = trials
        self.begun: list[str] = []
        self.went_on: list[str] = []
        self.ended: list[str] = []

    def ask(self) -> TrialRecord | None:
        if self.left == 0:
            return None
        self.left -= 1
        return TrialRecord(f"t{len(self.begun)}", {})

    def begin(self, trial: TrialRecord) -> None:
        self.begun.append(trial.trial_id)

    def rung(self, report: RungReport) -> None:
        self.went_on.append(report.trial_id)

    def end(self, report: RungReport, *, pruned: bool) -> None:
        del pruned
        self.ended.append(report.trial_id)


class Told:
    """What the pool has news of."""

    def __init__(self) -> None:
        self.trials: set[str] = set()
        self.asked = 0

    def __call__(self) -> set[str]:
        self.asked += 1
        return self.trials


def searcher(course: Asked, told: Told, *, most: int = 100, room: int = 100, left: int = 0) -> TuneSearcher:
    open_trials = [TrialRecord(f"left{n}", {}) for n in range(left)]
    return TuneSearcher(course, open_trials, most, lambda live: live < room, Turns(told), lambda: False)


def test_trials_begin_while_there_is_room_and_come_to_tune_when_they_have_something_to_tell() -> None:
    course, told = Asked(5), Told()
    asked = searcher(course, told, room=3)
    first = asked.suggest("tune0")
    assert course.begun == ["t0", "t1", "t2"]
    assert first == {"trial": "t0", "after": 0}  # its client starts before there is anything to tell
    told.trials = {"t2"}
    assert asked.suggest("tune1") is None  # one at a time
    asked.on_trial_complete("tune0", error=True)
    time.sleep(EVERY_S)
    assert asked.suggest("tune1") == {"trial": "t2", "after": 0}
    assert course.begun == ["t0", "t1", "t2", "t3"]  # in the place of the one that ended


def test_trials_left_open_come_before_new_ones() -> None:
    course = Asked(1)
    searcher(course, Told(), left=2).suggest("tune0")
    assert course.begun == ["left0", "left1", "t2"]


def test_tune_keeps_its_client_until_every_trial_has_ended() -> None:
    course, told = Asked(2), Told()
    asked = searcher(course, told)
    asked.suggest("tune0")
    asked.on_trial_complete("tune0", error=True)
    assert asked.suggest("tune1") is None  # dry, but t1 trains
    told.trials = {"t1"}
    time.sleep(EVERY_S)
    assert asked.suggest("tune1") == {"trial": "t1", "after": 0}
    assert asked.suggest("tune2") is None
    asked.on_trial_complete("tune1", error=True)
    assert asked.suggest("tune2") == RaySearcher.FINISHED


def test_a_tune_run_is_full_only_where_others_are_left() -> None:
    for trials, full in [(1, False), (2, True)]:
        asked = searcher(Asked(trials), Told(), most=1)
        assert asked.suggest("tune0") is not None
        assert asked.full == full


def test_the_pool_is_asked_now_and_then_and_its_failure_reaches_the_driver() -> None:
    told = Told()
    turns = Turns(told)
    assert turns.next([]) is None
    assert turns.next([]) is None
    assert told.asked == 1

    def fails() -> set[str]:
        raise PoolError("no trainer starts")

    with pytest.raises(PoolError, match="no trainer starts"):
        Turns(fails).next(["t0"])


class OneReport:
    """A pool that has a report of epoch 5."""

    def report_now(self, trial_id: str, after: int) -> RungReport | None:
        return RungReport(trial_id, 5, 1.5) if after < 5 else None


def test_a_client_tells_what_is_there_and_never_waits() -> None:
    client = object.__new__(TrialClient)  # without Tune's logs and folders
    pool: Any = OneReport()
    client.setup({"trial": "t0", "after": 0}, pool=pool)
    result = client.step()
    assert (result["epoch"], result["score"], result["done"]) == (5, 1.5, False)
    assert REPORT in result
    assert client.step() == {"epoch": 5}
