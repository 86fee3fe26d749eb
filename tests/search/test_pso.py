"""The particle swarm's own promises: whose move an ask is, what a tell may change, and what failures cost."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from search.searchers.base import Outcome, Suggestion
from search.searchers.config import PsoConfig
from search.searchers.pso import PsoSearcher, _reflected
from search.space import Dimension, Space, Value

SQUARE = Space((Dimension("x", "float"), Dimension("y", "float")))
FOUR = PsoConfig(particles=4)


def asked(searcher: PsoSearcher, trial_id: str) -> Suggestion:
    suggestion = searcher.ask(trial_id)
    assert suggestion is not None
    return suggestion


def test_the_first_asks_are_one_per_particle_at_spread_points() -> None:
    searcher = PsoSearcher(SQUARE, 1, config=FOUR)
    points = [asked(searcher, f"t{i}").point for i in range(4)]
    assert [searcher.bindings[f"t{i}"].particle for i in range(4)] == [0, 1, 2, 3]
    quadrants = {(x > 0.5, y > 0.5) for x, y in points}
    assert len(quadrants) == 4, "four Sobol points in the plane are one per quadrant"


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_the_order_of_completion_does_not_swap_particles(order: list[int]) -> None:
    searcher = PsoSearcher(SQUARE, 1, config=FOUR)
    points = [asked(searcher, f"t{i}").point for i in range(4)]
    for i in order:
        searcher.tell(f"t{i}", Outcome.complete(float(i)))
    assert [particle.best for particle in searcher.particles] == points
    assert [particle.rank for particle in searcher.particles] == [(math.inf, float(i)) for i in range(4)]


@pytest.mark.parametrize("outcome", [Outcome.failed(), Outcome.infeasible(), Outcome.complete(math.nan)])
def test_a_failure_frees_its_particle_and_stalls_nobody(outcome: Outcome) -> None:
    searcher = PsoSearcher(SQUARE, 1, config=FOUR)
    for i in range(4):
        asked(searcher, f"t{i}")
    searcher.tell("t2", outcome)
    asked(searcher, "next")
    assert searcher.bindings["next"].particle == 2
    for i in (0, 1, 3):
        searcher.tell(f"t{i}", Outcome.complete(1.0))
    assert {asked(searcher, f"u{i}").trial_id for i in range(3)} == {"u0", "u1", "u2"}
    assert {searcher.bindings[f"u{i}"].particle for i in range(3)} == {0, 1, 3}


def test_a_trial_that_is_never_told_does_not_lose_its_particle() -> None:
    searcher = PsoSearcher(SQUARE, 1, config=FOUR)
    asked(searcher, "lost")
    for i in range(200):
        asked(searcher, f"t{i}")
        searcher.tell(f"t{i}", Outcome.complete(float(i)))
    assert searcher.particles[0].moves > 20
    assert searcher.tell("lost", Outcome.complete(1000.0)), "and late it still counts"
    assert searcher.leader == (math.inf, 1000.0)


def test_a_late_older_move_may_improve_the_best_but_does_not_set_the_particle_back() -> None:
    searcher = PsoSearcher(SQUARE, 1, config=PsoConfig(particles=2))
    old = asked(searcher, "old")
    asked(searcher, "other")
    new = asked(searcher, "new")
    assert searcher.bindings["new"].particle == searcher.bindings["old"].particle == 0
    searcher.tell("new", Outcome.complete(1.0))
    searcher.tell("old", Outcome.complete(2.0))
    assert searcher.particles[0].best == old.point
    assert searcher.particles[0].position == new.point


def test_a_low_fidelity_score_never_overwrites_a_full_best() -> None:
    searcher = PsoSearcher(SQUARE, 1, config=PsoConfig(particles=2))
    for i in range(4):
        asked(searcher, f"t{i}")
    full, short = [f"t{i}" for i in range(4) if searcher.bindings[f"t{i}"].particle == 0]
    best = searcher.in_flight[full].point
    searcher.tell(full, Outcome.complete(0.1))
    searcher.tell(short, Outcome.pruned(9.0, step=3))
    assert searcher.particles[0].best == best
    assert searcher.leader == (math.inf, 0.1)


def test_a_full_score_replaces_a_better_looking_low_fidelity_best() -> None:
    searcher = PsoSearcher(SQUARE, 1, config=PsoConfig(particles=2))
    for i in range(4):
        asked(searcher, f"t{i}")
    full, short = [f"t{i}" for i in range(4) if searcher.bindings[f"t{i}"].particle == 0]
    best = searcher.in_flight[full].point
    searcher.tell(short, Outcome.pruned(9.0, step=3))
    searcher.tell(full, Outcome.complete(0.1))
    assert searcher.particles[0].best == best


def test_walls_reflect_and_take_speed() -> None:
    point, velocity = _reflected(np.array([-0.2, 1.3, 0.5]), np.array([-0.4, 0.6, 0.1]), bounce=0.5)
    assert point == pytest.approx([0.2, 0.7, 0.5])
    assert velocity == pytest.approx([0.2, -0.3, 0.1])


def test_a_particle_that_stands_still_starts_anew_but_never_the_leader() -> None:
    searcher = PsoSearcher(SQUARE, 1, config=PsoConfig(particles=2, stagnation=3))
    for i in range(12):
        trial = asked(searcher, f"t{i}").trial_id
        particle = searcher.bindings[trial].particle
        searcher.tell(trial, Outcome.complete(10.0 - i if particle == 0 else -10.0 - i))
    assert searcher.particles[0].life == 0
    assert searcher.particles[1].life >= 1


def test_a_tell_from_an_earlier_life_leaves_the_particle_alone() -> None:
    searcher = PsoSearcher(SQUARE, 1, config=PsoConfig(particles=2, stagnation=2))
    asked(searcher, "a0")
    asked(searcher, "b0")
    asked(searcher, "a1")
    old = asked(searcher, "b1")
    assert searcher.bindings["b1"].particle == 1
    searcher.tell("a0", Outcome.complete(5.0))
    searcher.tell("b0", Outcome.complete(1.0))
    for i in range(20):
        if searcher.particles[1].life:
            break
        trial = asked(searcher, f"c{i}").trial_id
        searcher.tell(trial, Outcome.complete(0.0))
    assert searcher.particles[1].life == 1
    searcher.tell("b1", Outcome.complete(99.0))
    assert searcher.particles[1].best != old.point
    assert searcher.leader == (math.inf, 99.0)


def test_log_dimensions_move_in_the_exponent() -> None:
    log = Space((Dimension("lr", "float", 1e-8, 1.0, log=True),))
    values = [asked(PsoSearcher(log, seed), "t").values["lr"] for seed in range(400)]
    below = sum(float(value) < 1e-4 for value in values)
    assert 150 < below < 250, "half of the starts lie in the lower half of the exponents"


def test_every_choice_of_a_categorical_stays_possible() -> None:
    space = Space((Dimension("kind", "categorical", choices=tuple("abcd")), Dimension("x", "float")))
    searcher = PsoSearcher(space, 1, config=PsoConfig(particles=4, choice_floor=0.2, stagnation=10_000))
    late: dict[Value, int] = dict.fromkeys("abcd", 0)
    for i in range(600):
        suggestion = asked(searcher, f"t{i}")
        searcher.tell(suggestion.trial_id, Outcome.complete(1.0 if suggestion.values["kind"] == "b" else 0.0))
        if i >= 200:
            late[suggestion.values["kind"]] += 1
    assert late["b"] > 250, "the good choice is taken most"
    assert min(late.values()) >= 5, "0.2 / 4 of 400 is 20 expected"


def test_a_warm_start_begins_half_of_the_swarm_at_the_best_earlier_points() -> None:
    earlier: list[tuple[dict[str, Value], float]] = [({"x": i / 10, "y": 0.5}, float(i)) for i in range(10)]
    searcher = PsoSearcher(SQUARE, 1, earlier=earlier, config=FOUR)
    assert [asked(searcher, f"t{i}").values["x"] for i in range(2)] == [0.9, 0.8]
    assert asked(searcher, "t2").values["y"] != 0.5


@pytest.mark.parametrize("neighbourhood", ["random", "ring"])
def test_a_particle_sees_itself_and_so_many_others(neighbourhood: str) -> None:
    config = PsoConfig.model_validate({"particles": 8, "neighbourhood": neighbourhood, "neighbours": 3})
    searcher = PsoSearcher(SQUARE, 1, config=config)
    rng = np.random.default_rng(0)
    for index in range(8):
        seen = searcher._neighbours(index, 8, rng)
        assert index in seen
        assert len(set(seen)) == 4
    if neighbourhood == "ring":
        assert searcher._neighbours(0, 8, rng) == (0, 1, 2, 7)


def test_it_finds_the_bottom_of_a_bowl_with_64_in_flight() -> None:
    space = Space(tuple(Dimension(f"x{i}", "float") for i in range(5)))

    def score(values: dict[str, Value]) -> float:
        return -sum((float(value) - 0.3) ** 2 for value in values.values())

    searcher = PsoSearcher(space, 1)
    running = [asked(searcher, f"t{i}") for i in range(64)]
    best = -math.inf
    for i in range(64, 400):
        ended = running.pop(0)
        best = max(best, score(ended.values))
        searcher.tell(ended.trial_id, Outcome.complete(score(ended.values)))
        running.append(asked(searcher, f"t{i}"))
    assert best > -0.01


def test_the_state_is_json_all_the_way_down() -> None:
    searcher = PsoSearcher(SQUARE, 1, config=FOUR, earlier=[({"x": 0.1, "y": 0.2}, 1.0)])
    for i in range(20):
        asked(searcher, f"t{i}")
        searcher.tell(f"t{i}", Outcome.complete(float(i)))
    state = searcher.state()
    assert json.loads(json.dumps(state)) == json.loads(json.dumps(json.loads(json.dumps(state))))


def test_a_move_that_overlaps_another_of_its_particle_pulls_less() -> None:
    lengths = {}
    for crowded_pull in (1e-6, 3.0):
        searcher = PsoSearcher(SQUARE, 1, config=PsoConfig(particles=2, crowded_pull=crowded_pull))
        for i in range(2):
            asked(searcher, f"t{i}")
            searcher.tell(f"t{i}", Outcome.complete(float(i)))
        asked(searcher, "alone")
        asked(searcher, "alone too")
        asked(searcher, "overlaps")
        assert searcher.bindings["overlaps"].particle == searcher.bindings["alone"].particle == 0
        lengths[crowded_pull] = [
            float(np.linalg.norm(searcher.bindings[trial].velocity)) for trial in ("alone", "overlaps")
        ]
    assert lengths[1e-6][0] == lengths[3.0][0] > 0.01
    assert lengths[1e-6][1] < 1e-5 < lengths[3.0][1]
