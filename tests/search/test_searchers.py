"""One contract, every searcher: whatever the search does, asks and tells behave like this."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from search.searchers.base import Ending, Event, Outcome, Searcher, Suggestion, replay
from search.searchers.config import OptunaConfig, PsoConfig
from search.searchers.optuna import OptunaSearcher
from search.searchers.pso import PsoSearcher
from search.searchers.random import RandomSearcher
from search.space import Dimension, Space, Value
from trainer.errors import UserError

SPACE = Space(
    (
        Dimension("lr", "float", 1e-7, 1e-4, log=True),
        Dimension("gamma", "float", 0.9, 0.999),
        Dimension("width", "integer", 1, 64, log=True),
        Dimension("head", "categorical", choices=("c51", "iqn", "none")),
        Dimension("lambda", "float", 0.1, 2.0, when=(("head", ("iqn",)),)),
    )
)
FINITE = Space((Dimension("a", "integer", 0, 3), Dimension("b", "categorical", choices=(True, False))))

Make = Callable[..., Searcher]


@pytest.fixture(params=[RandomSearcher, PsoSearcher, OptunaSearcher], ids=lambda kind: kind.name)
def make(request: pytest.FixtureRequest) -> Make:
    kind: Make = request.param
    return kind


def score_of(values: Mapping[str, Value]) -> float:
    """Best at lr 1e-5, gamma 0.95, width 8, head iqn."""
    bonus = 1.0 if values["head"] == "iqn" else 0.0
    return (
        bonus
        - abs(math.log10(float(values["lr"])) + 5.0)
        - 10.0 * abs(float(values["gamma"]) - 0.95)
        - abs(math.log2(float(values["width"])) - 3.0)
    )


def asked(searcher: Searcher, trial_id: str) -> Suggestion:
    suggestion = searcher.ask(trial_id)
    assert suggestion is not None
    return suggestion


def drive(searcher: Searcher, trials: range, in_flight: int = 4, seed: int = 0) -> list[Event]:
    """Ask and tell in a shuffled order with all kinds of endings; the log of it. Some trials are never told."""
    rng = np.random.default_rng(seed)
    log: list[Event] = []
    running: list[Suggestion] = []
    for number in trials:
        suggestion = asked(searcher, f"t{number}")
        log.append(Event("ask", suggestion.trial_id, point=suggestion.point))
        running.append(suggestion)
        if len(running) >= in_flight:
            ended = running.pop(int(rng.integers(len(running))))
            score = score_of(ended.values)
            outcome = [
                Outcome.complete(score),
                Outcome.complete(score),
                Outcome.pruned(score, step=1 + int(rng.integers(3))),
                Outcome.failed(),
                Outcome.infeasible(),
                None,
            ][int(rng.integers(6))]
            if outcome is not None:
                searcher.tell(ended.trial_id, outcome)
                log.append(Event("tell", ended.trial_id, outcome=outcome))
    return log


def points(log: list[Event]) -> list[Any]:
    return [event.point for event in log if event.kind == "ask"]


def test_asks_stay_in_the_space_and_decode_to_their_values(make: Make) -> None:
    searcher = make(SPACE, 3)
    for event in drive(searcher, range(60)):
        if event.point is not None:
            assert len(event.point) == len(SPACE)
            assert all(0.0 <= unit <= 1.0 for unit in event.point)
    for suggestion in searcher.in_flight.values():
        assert SPACE.encode(suggestion.values) == pytest.approx(
            [
                u if d.name in suggestion.values else 0.5
                for d, u in zip(SPACE.dimensions, suggestion.point, strict=True)
            ],
            abs=0.51,
        )
        assert ("lambda" in suggestion.values) == (suggestion.values["head"] == "iqn")
        assert 1e-7 <= float(suggestion.values["lr"]) <= 1e-4
        assert suggestion.values["width"] in range(1, 65)


def test_the_same_seed_gives_the_same_asks_and_another_seed_others(make: Make) -> None:
    first, second, other = (points(drive(make(SPACE, seed), range(30))) for seed in (7, 7, 8))
    assert first == second
    assert first != other


def test_a_state_saved_mid_run_continues_identically(make: Make) -> None:
    searcher = make(SPACE, 5)
    drive(searcher, range(40))
    state = json.loads(json.dumps(searcher.state()))
    restored = make(SPACE, 5)
    restored.restore(state)
    assert restored.state() == searcher.state()
    late = next(iter(searcher.in_flight))
    for one in (searcher, restored):
        assert one.tell(late, Outcome.complete(0.25))
    assert drive(searcher, range(40, 70), seed=1) == drive(restored, range(40, 70), seed=1)


def test_the_log_replays_exactly(make: Make) -> None:
    searcher = make(SPACE, 5)
    log = drive(searcher, range(40))
    lines = [json.loads(json.dumps(event.to_json())) for event in log]
    again = make(SPACE, 5)
    replay(again, [Event.from_json(line) for line in lines])
    assert points(drive(again, range(40, 55))) == points(drive(searcher, range(40, 55)))


def test_replaying_the_log_of_another_seed_names_the_event(make: Make) -> None:
    log = drive(make(SPACE, 5), range(10))
    with pytest.raises(UserError, match="event 1: trial t0"):
        replay(make(SPACE, 6), log)


def test_a_state_of_another_seed_or_space_is_refused(make: Make) -> None:
    state = make(SPACE, 5).state()
    with pytest.raises(UserError, match="seed"):
        make(SPACE, 6).restore(state)
    with pytest.raises(UserError, match="space"):
        make(FINITE, 5).restore(state)


def test_duplicate_and_unknown_tells_change_nothing(make: Make) -> None:
    searcher = make(SPACE, 1)
    drive(searcher, range(20))
    asked(searcher, "one")
    assert searcher.tell("one", Outcome.complete(1.0))
    before = searcher.state()
    assert not searcher.tell("one", Outcome.complete(99.0))
    assert not searcher.tell("nobody", Outcome.complete(99.0))
    assert searcher.state() == before


def test_asking_twice_gives_the_same_suggestion_and_an_ended_trial_is_refused(make: Make) -> None:
    searcher = make(SPACE, 1)
    assert asked(searcher, "one") == asked(searcher, "one")
    assert len(searcher.in_flight) == 1
    searcher.tell("one", Outcome.failed())
    with pytest.raises(UserError, match="one has already ended as failed"):
        searcher.ask("one")


def test_a_score_that_is_no_number_is_a_failure(make: Make) -> None:
    assert Outcome.complete(math.nan) == Outcome.complete(math.inf) == Outcome.pruned(math.nan, 3) == Outcome.failed()
    searcher = make(SPACE, 1)
    for number in range(30):
        asked(searcher, f"t{number}")
        searcher.tell(f"t{number}", Outcome.complete(math.nan))
    assert set(searcher.finished.values()) == {Ending.FAILED.value}
    asked(searcher, "next")


def test_many_more_in_flight_than_the_population_gives_different_points(make: Make) -> None:
    searcher = make(SPACE, 1)
    seen = {asked(searcher, f"t{number}").point for number in range(100)}
    assert len(seen) == 100
    for number in reversed(range(100)):
        assert searcher.tell(f"t{number}", Outcome.complete(float(number)))
    again = {asked(searcher, f"u{number}").point for number in range(100)}
    assert len(again | seen) == 200


def test_first_points_come_first_and_may_leave_dimensions_out(make: Make) -> None:
    first: list[dict[str, Value]] = [
        {"lr": 1e-5, "gamma": 0.95, "width": 8, "head": "iqn", "lambda": 1.0},
        {"width": 16},
    ]
    searcher = make(SPACE, 1, first=first)
    assert asked(searcher, "a").values == pytest.approx(first[0])
    second = asked(searcher, "b").values
    assert second["width"] == 16
    assert second["gamma"] == pytest.approx((0.9 + 0.999) / 2)
    assert asked(searcher, "c").values["width"] in range(1, 65)
    with pytest.raises(UserError, match="widht is not a dimension of the space; the nearest is width"):
        make(SPACE, 1, first=[{"widht": 16}])


def test_warm_start_tolerates_results_the_space_does_not_contain(make: Make) -> None:
    good: dict[str, Value] = {"lr": 1e-5, "gamma": 0.95, "width": 8, "head": "iqn", "lambda": 1.0}
    strange: dict[str, Value] = {**good, "lr": 1.0}
    searcher = make(SPACE, 1, earlier=[(strange, 9.0), (good, 1.0), (good, math.nan)])
    restored = make(SPACE, 1, earlier=[(good, 1.0)])
    restored.restore(json.loads(json.dumps(searcher.state())))
    assert drive(searcher, range(20)) == drive(restored, range(20))


def test_a_finite_space_is_given_out_once_and_then_ends(make: Make) -> None:
    searcher = make(FINITE, 1)
    seen = [asked(searcher, f"t{number}").values for number in range(8)]
    assert len({json.dumps(values, sort_keys=True) for values in seen}) == 8
    assert searcher.ask("t8") is None
    assert searcher.tell("t3", Outcome.complete(1.0))


def test_two_thousand_asks_are_quick_and_small() -> None:
    """For the searchers whose cost does not grow with the model (Optuna's does)."""
    for kind in (RandomSearcher, PsoSearcher):
        tracemalloc.start()
        started = time.perf_counter()
        searcher = kind(SPACE, 1)
        for number in range(2000):
            suggestion = asked(searcher, f"t{number}")
            searcher.tell(suggestion.trial_id, Outcome.complete(score_of(suggestion.values)))
        memory = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert memory < 2_000_000, f"{kind.name}: {memory} bytes held"
        assert len(json.dumps(searcher.state())) < 200_000
        assert time.perf_counter() - started < 30


@pytest.mark.parametrize("kind", [PsoSearcher, OptunaSearcher], ids=lambda kind: kind.name)
def test_learning_beats_random(kind: Make) -> None:
    def best(searcher: Searcher) -> float:
        found = -math.inf
        for number in range(80):
            suggestion = asked(searcher, f"t{number}")
            score = score_of(suggestion.values)
            searcher.tell(suggestion.trial_id, Outcome.complete(score))
            found = max(found, score)
        return found

    assert np.mean([best(kind(SPACE, s)) for s in range(4)]) > np.mean(
        [best(RandomSearcher(SPACE, s)) for s in range(4)]
    )


def test_no_searcher_imports_torch_or_ray() -> None:
    import subprocess
    import sys

    script = (
        "import sys, search.searchers.pso, search.searchers.optuna, search.searchers.random;"
        "print([m for m in ('torch', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_configs_have_defaults_that_validate() -> None:
    assert PsoConfig().particles >= 2
    assert OptunaConfig().storage == ""
