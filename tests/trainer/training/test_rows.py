"""Rows of a lane group that keeps them, as one on a GPU does: nothing that lanes compute depends on where they lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trainer.lanes.tree import flatten
from trainer.training import group as group_module
from trainer.training.capture import Steps, capacity_of
from trainer.training.group import LaneGroup
from trainer.training.prepare import Prepared

from .conftest import CPU, tiny

GPU = torch.device("cuda")


@pytest.fixture
def keeping(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> LaneGroup:
    """On the CPU, where a lane has the same bits at every capacity."""
    monkeypatch.setattr(group_module, "capacity_of", lambda lanes, _device: capacity_of(lanes, GPU))
    group = LaneGroup(tiny(), prepared, CPU)
    group.keeps_rows = True
    return group


def act(group: LaneGroup, told: Callable[[int], None] = lambda _capacity: None) -> list[dict[str, float]]:
    """Trials come and go; returns what they report."""
    seen: list[dict[str, float]] = []

    def epoch() -> None:
        seen.extend(report.metrics() for report in group.advance())
        told(group.capacity)

    for index in range(4):
        group.admit(str(index), tiny(seed=index))
    epoch()
    group.evict("0")
    group.evict("1")
    epoch()
    group.evict("3")
    epoch()
    for index in (4, 5):
        group.admit(str(index), tiny(seed=index), folds=[0, 1])
    epoch()
    group.admit("6", tiny(seed=6))
    epoch()
    for index in (2, 4, 5):
        group.evict(str(index))
    epoch()
    return seen


def test_lanes_that_come_and_go_compute_what_they_do_without_kept_rows(keeping: LaneGroup, prepared: Prepared) -> None:
    capacities: list[int] = []
    ours = act(keeping, capacities.append)
    assert capacities == [16, 8, 8, 8, 16, 8]
    assert ours == act(LaneGroup(tiny(), prepared, CPU))


def test_one_memory_and_one_set_of_steps_serve_all_capacities(keeping: LaneGroup) -> None:
    made: dict[int, tuple[Steps, int]] = {}

    def told(capacity: int) -> None:
        steps, address = keeping._steps[capacity], keeping.state.params_LD.data_ptr()
        assert made.setdefault(capacity, (steps, address)) == (steps, address)
        assert steps.state.params_LD.data_ptr() == address

    act(keeping, told)
    assert len({address for _, address in made.values()}) == 1


def test_rows_move_into_free_ones_and_nothing_else_does(keeping: LaneGroup) -> None:
    for index in range(4):
        keeping.admit(str(index), tiny(seed=index))
    keeping.advance()
    lanes = {resident.trial_id: resident.lanes for resident in keeping.residents}
    before = {trial_id: keeping.snapshot(trial_id) for trial_id in ("1", "3")}
    keeping.evict("0")
    keeping.evict("2")
    keeping._fit(None)
    assert keeping.capacity == 8
    assert keeping.resident("1").lanes == lanes["1"]
    assert all(row < 8 for row in keeping.resident("3").lanes)
    for trial_id, snapshot in before.items():
        now = flatten(keeping.snapshot(trial_id))
        assert [name for name, t in flatten(snapshot).items() if not torch.equal(t, now[name])] == []


def test_rows_are_given_up_where_they_are_not_to_be_kept(keeping: LaneGroup) -> None:
    for index in range(4):
        keeping.admit(str(index), tiny(seed=index))
    keeping.advance()
    for index in range(3):
        keeping.evict(str(index))
    keeping.advance()
    assert keeping._stored == 16
    keeping.keeps_rows = False
    keeping.advance()
    assert keeping._stored == keeping.capacity == 8


def test_a_capacity_without_compiled_code_is_passed_over_unless_it_is_asked_for(
    keeping: LaneGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Steps, "kept", property(lambda steps: len(steps.state.params_LD) == 32))
    for index in range(14):
        keeping.admit(str(index), tiny(seed=index))  # 42 lanes
    keeping.advance()
    assert keeping.capacity == 64
    for index in range(10):
        keeping.evict(str(index))
    keeping.advance()
    assert (keeping.lanes, keeping.capacity) == (12, 32)
    keeping.evict("10")
    keeping.evict("11")
    keeping.advance()
    assert (keeping.lanes, keeping.capacity) == (6, 32)
    keeping.advance(8)
    assert keeping.capacity == 8
