from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

from search.results import TrialRecord
from search.scheduler import SweepScheduler, rungs
from search.sweep_config import SchedulerConfig
from search.turns import EVERY_S, Turns

ASHA = SchedulerConfig(name="asha", grace_epochs=1, reduction=2)
NAMES = ("asha", "median", "hyperband")


class TuneTrial:
    def __init__(self, trial: str) -> None:
        self.config: dict[str, Any] = {"trial": trial, "after": 0}


class Controller:
    """Tune's, as far as a scheduler calls it."""

    def __init__(self) -> None:
        self.paused: list[tuple[str, bool]] = []

    def pause_trial(self, trial: TuneTrial, should_checkpoint: bool) -> None:
        self.paused.append((trial.config["trial"], should_checkpoint))


def make_scheduler(config: SchedulerConfig, budget: int, earlier: list[TrialRecord]) -> SweepScheduler:
    return SweepScheduler(config, budget, earlier, Turns(lambda: ()))


def judge(scheduler: SweepScheduler, trial: str, epoch: int, score: float | None) -> str:
    scheduler.on_trial_add(None, TuneTrial(trial))
    result = {"epoch": epoch} if score is None else {"epoch": epoch, "score": score}
    verdict = scheduler.on_trial_result(Controller(), TuneTrial(trial), result)
    assert verdict in ("STOP", "NOOP")
    return "STOP" if verdict == "STOP" else "CONTINUE"


@pytest.mark.parametrize(
    ("config", "budget", "expected"),
    [
        (SchedulerConfig(name="asha", grace_epochs=1, reduction=3), 20, (1, 3, 9, 20)),
        (SchedulerConfig(name="asha", grace_epochs=5, reduction=2), 20, (5, 10, 20)),
        (SchedulerConfig(name="hyperband", grace_epochs=2, reduction=4), 32, (2, 8, 32)),
        (SchedulerConfig(name="asha", grace_epochs=20), 20, (20,)),
        (SchedulerConfig(name="median", grace_epochs=3, rung_epochs=5), 20, (3, 8, 13, 18, 20)),
        (SchedulerConfig(name="none"), 20, (20,)),
    ],
)
def test_rungs(config: SchedulerConfig, budget: int, expected: tuple[int, ...]) -> None:
    assert rungs(config, budget) == expected


def test_asha_keeps_the_better_half_of_those_seen_so_far() -> None:
    scheduler = make_scheduler(ASHA, 8, [])
    assert judge(scheduler, "a", 1, 1.0) == "CONTINUE"  # nothing to compare with
    assert judge(scheduler, "b", 1, 0.5) == "STOP"
    assert judge(scheduler, "c", 1, 2.0) == "CONTINUE"
    assert judge(scheduler, "d", 1, 0.9) == "STOP"  # under the median of 1.0, 0.5, 2.0


def test_no_scheduler_stops_nothing_when_none_is_asked_for() -> None:
    scheduler = make_scheduler(SchedulerConfig(name="none"), 8, [])
    assert {judge(scheduler, f"t{n}", 8, float(-n)) for n in range(20)} == {"CONTINUE"}


def test_median_stops_the_worst_and_never_pauses() -> None:
    scheduler = make_scheduler(SchedulerConfig(name="median", grace_epochs=1, min_samples=3), 8, [])
    verdicts = [judge(scheduler, name, 1, score) for name, score in [("a", 3.0), ("b", 2.0), ("c", 1.0), ("d", 0.0)]]
    assert verdicts == ["CONTINUE", "CONTINUE", "CONTINUE", "STOP"]


def sweep(rng: random.Random, trials: int = 30) -> list[TrialRecord]:
    records = []
    for number in range(trials):
        reached = rng.randint(0, 3)
        scored = [(2**rung, rng.random()) for rung in range(reached)]
        records.append(TrialRecord(f"t{number:05d}", {}, rungs=scored))
    return records


@pytest.mark.parametrize("name", NAMES)
def test_a_scheduler_primed_from_the_log_judges_as_the_one_that_saw_it_all(name: str) -> None:
    config = SchedulerConfig(name=name, grace_epochs=1, reduction=2, rung_epochs=1)
    records = sweep(random.Random(1))
    lived = make_scheduler(config, 8, [])
    for record in records:
        for epoch, score in record.rungs:
            if judge(lived, record.trial_id, epoch, score) == "STOP":
                del record.rungs[record.rungs.index((epoch, score)) + 1 :]
                break
    np.random.seed(7)  # Tune draws brackets from it
    primed = make_scheduler(config, 8, records)
    later = random.Random(2)
    for number in range(40):
        trial, epoch, score = f"u{number:05d}", 2 ** later.randint(0, 2), later.random()
        assert judge(lived, trial, epoch, score) == judge(primed, trial, epoch, score)


@pytest.mark.parametrize("name", NAMES)
def test_a_rung_counts_once_however_often_it_is_reported(name: str) -> None:
    config = SchedulerConfig(name=name, grace_epochs=1, reduction=2, rung_epochs=1, min_samples=1)
    once, often = make_scheduler(config, 8, []), make_scheduler(config, 8, [])
    for trial, score in [("a", 1.0), ("b", 2.0), ("c", 3.0)]:
        judge(once, trial, 1, score)
        for _ in range(5):
            judge(often, trial, 1, score)
    assert [judge(once, "d", 1, s) for s in (1.5,)] == [judge(often, "d", 1, s) for s in (1.5,)]
    assert judge(often, "a", 1, -9.0) == "CONTINUE"


@pytest.mark.parametrize("name", NAMES)
def test_failed_trials_and_nan_are_not_compared_with(name: str) -> None:
    config = SchedulerConfig(name=name, grace_epochs=1, reduction=2, min_samples=1)
    clean, mixed = make_scheduler(config, 8, []), make_scheduler(config, 8, [])
    assert judge(mixed, "x", 1, None) == "CONTINUE"
    assert judge(mixed, "y", 1, float("nan")) == "CONTINUE"
    for trial, score in [("a", 1.0), ("b", 2.0), ("c", 0.0)]:
        assert judge(clean, trial, 1, score) == judge(mixed, trial, 1, score)


def test_hyperband_brackets_follow_from_the_trial_alone_in_tunes_proportions() -> None:
    config = SchedulerConfig(name="hyperband", grace_epochs=1, reduction=2, brackets=3)
    first, second = make_scheduler(config, 16, []), make_scheduler(config, 16, [])
    for number in range(600):
        first.on_trial_add(None, TuneTrial(f"t{number:05d}"))
    for number in reversed(range(600)):
        second.on_trial_add(None, TuneTrial(f"t{number:05d}"))
    names = [f"t{number:05d}" for number in range(600)]
    brackets = [[s.inner._brackets.index(s.inner._trial_info[name]) for name in names] for s in (first, second)]
    assert brackets[0] == brackets[1]
    shares = np.bincount(brackets[0], minlength=3) / 600
    sizes = np.exp([len(bracket._rungs) for bracket in first.inner._brackets])
    assert shares == pytest.approx(sizes / sizes.sum(), abs=0.06)


def test_a_trial_that_goes_on_gives_its_client_away_until_it_has_more_to_tell() -> None:
    told = {"a"}
    turns = Turns(lambda: told)
    controller, scheduler = Controller(), SweepScheduler(ASHA, 8, [], turns)
    trial = TuneTrial("a")
    assert turns.next(["a"]) == "a"
    assert scheduler.on_trial_result(controller, trial, {"epoch": 1, "score": 1.0}) == "NOOP"
    assert controller.paused == [("a", False)]
    assert trial.config["after"] == 1
    told.clear()
    assert scheduler.choose_trial_to_run(controller) is None
    told.add("a")
    time.sleep(EVERY_S)
    assert scheduler.choose_trial_to_run(controller) is trial
    assert scheduler.choose_trial_to_run(controller) is None  # its turn is not over


def test_a_client_that_found_nothing_goes_to_the_next_trial() -> None:
    turns = Turns(lambda: {"b"})
    controller, scheduler = Controller(), SweepScheduler(ASHA, 8, [], turns)
    assert turns.next(["a", "b"]) == "a"  # the first one starts before there is anything to tell
    assert scheduler.on_trial_result(controller, TuneTrial("a"), {"epoch": 0}) == "NOOP"
    assert turns.next(["b"]) == "b"


@pytest.mark.parametrize("name", NAMES)
def test_a_trial_left_open_after_its_verdict_was_lost_is_judged_at_its_next_rung(name: str) -> None:
    config = SchedulerConfig(name=name, grace_epochs=1, reduction=2, rung_epochs=1, min_samples=1, brackets=1)
    others = [TrialRecord(f"t{n:05d}", {}, rungs=[(1, 1.0), (2, 1.0)]) for n in range(4)]
    worst, best = TrialRecord("worst", {}, rungs=[(1, 0.0)]), TrialRecord("best", {}, rungs=[(1, 0.5)])
    scheduler = make_scheduler(config, 8, [*others, worst, best])
    assert judge(scheduler, "best", 2, 5.0) == "CONTINUE"
    assert judge(scheduler, "worst", 2, 0.0) == "STOP"
    assert judge(scheduler, "worst", 4, 0.0) == "STOP"
