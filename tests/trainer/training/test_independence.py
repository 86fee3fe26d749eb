"""Bar 1 of the trainer: what a lane computes depends on nothing but its own config, seed and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from trainer.config import TrialConfig
from trainer.lanes.tree import flatten, take
from trainer.training.config import ROW_BLOCK
from trainer.training.group import LaneGroup
from trainer.training.lane_state import LaneState
from trainer.training.prepare import Prepared

from .conftest import CPU, tiny

EPOCHS = 3


def neighbours(count: int, **changes: Any) -> list[TrialConfig]:
    """Configs that differ in every way that lanes of one group may."""
    return [
        tiny(
            **changes,
            **{
                "seed": 100 + i,
                "agent.lr": 1e-4 * (i + 1),
                "agent.gamma": 0.8 + 0.005 * i,
                "agent.tau": 0.02 * (i % 4),
            },
        )
        for i in range(count)
    ]


def run(
    prepared: Prepared, subject: TrialConfig, others: Sequence[TrialConfig], slot: int, epochs: int = EPOCHS
) -> tuple[LaneState, list[dict[str, float]]]:
    """Train one fold of ``subject`` at lane ``slot`` beside one fold of each neighbour."""
    group = LaneGroup(subject, prepared, CPU)
    for index, other in enumerate([*others[:slot], subject, *others[slot:]]):
        group.admit("subject" if index == slot else f"other {index}", other, folds=[1])
    history = []
    for _ in range(epochs):
        reports = {report.trial_id: report for report in group.advance()}
        history.append(reports["subject"].metrics())
    return group.snapshot("subject"), history


def assert_same_bits(one: LaneState, other: LaneState) -> None:
    other_tensors = flatten(other)
    different = [
        name
        for name, tensor in flatten(one).items()
        if not torch.equal(tensor.view(torch.uint8), other_tensors[name].view(torch.uint8))
    ]
    assert different == []


@pytest.fixture(scope="module")
def alone(prepared: Prepared) -> tuple[LaneState, list[dict[str, float]]]:
    return run(prepared, tiny(), [], 0)


@pytest.mark.parametrize(("size", "slot"), [(2, 0), (2, 1), (3, 1), (8, 0), (8, 7), (32, 0), (32, 13), (32, 31)])
def test_a_lane_is_bit_identical_at_any_group_size_and_slot(
    prepared: Prepared, alone: tuple[LaneState, list[dict[str, float]]], size: int, slot: int
) -> None:
    state, history = run(prepared, tiny(), neighbours(size - 1), slot)
    assert history == alone[1]
    assert_same_bits(state, alone[0])


@pytest.mark.parametrize(("size", "slot"), [(3, 1), (8, 7), (13, 0)])
def test_so_is_one_of_the_fewest_rows(prepared: Prepared, size: int, slot: int) -> None:
    few = {"training.batch": ROW_BLOCK, "training.episodes": ROW_BLOCK}
    alone, beside = run(prepared, tiny(**few), [], 0), run(prepared, tiny(**few), neighbours(size - 1, **few), slot)
    assert beside[1] == alone[1]
    assert_same_bits(beside[0], alone[0])


def test_the_same_seed_gives_the_same_result_twice_and_another_seed_another(
    prepared: Prepared, alone: tuple[LaneState, list[dict[str, float]]]
) -> None:
    again = run(prepared, tiny(), [], 0)
    assert again[1] == alone[1]
    assert_same_bits(again[0], alone[0])
    assert run(prepared, tiny(seed=1), [], 0)[1] != alone[1]


def test_a_lane_forced_to_nan_changes_no_bit_elsewhere(
    prepared: Prepared, alone: tuple[LaneState, list[dict[str, float]]]
) -> None:
    group = LaneGroup(tiny(), prepared, CPU)
    group.admit("sick", neighbours(1)[0], folds=[0])
    group.admit("subject", tiny(), folds=[1])
    group.state.params_LD[0].fill_(float("nan"))
    for epoch in range(EPOCHS):
        sick, subject = group.advance()
        assert sick.failed is not None
        assert subject.failed is None
        assert subject.metrics() == alone[1][epoch]
    assert_same_bits(group.snapshot("subject"), alone[0])


def test_trials_that_join_and_leave_change_nothing(
    prepared: Prepared, alone: tuple[LaneState, list[dict[str, float]]]
) -> None:
    first, second = neighbours(2)
    group = LaneGroup(tiny(), prepared, CPU)
    group.admit("first", first)
    group.advance()
    group.admit("subject", tiny(), folds=[1])
    group.advance()
    group.evict("first")
    group.admit("second", second)
    group.advance()
    group.evict("second")
    group.advance()
    assert_same_bits(group.snapshot("subject"), alone[0])


def test_a_snapshot_continues_bit_for_bit(prepared: Prepared, alone: tuple[LaneState, list[dict[str, float]]]) -> None:
    group = LaneGroup(tiny(), prepared, CPU)
    group.admit("subject", tiny(), folds=[1])
    group.advance()
    snapshot, resident = group.snapshot("subject"), group.resident("subject")
    group.advance()  # goes on after the snapshot, which must not notice
    other = LaneGroup(tiny(), prepared, CPU)
    other.restore(resident, snapshot)
    other.advance()
    other.advance()
    assert_same_bits(other.snapshot("subject"), alone[0])


def test_a_fold_run_alone_equals_the_same_fold_run_with_the_others(
    prepared: Prepared, alone: tuple[LaneState, list[dict[str, float]]]
) -> None:
    group = LaneGroup(tiny(), prepared, CPU)
    group.admit("subject", tiny())
    for _ in range(EPOCHS):
        group.advance()
    fold_1 = take(group.snapshot("subject"), torch.tensor([1]))
    assert_same_bits(fold_1, alone[0])


def test_the_configs_of_neighbours_take_effect(prepared: Prepared) -> None:
    """The comparison above would pass if dynamic values were ignored."""
    still = run(prepared, tiny(**{"agent.lr": 1e-12}), [], 0)[0]
    moved = run(prepared, tiny(), [], 0)[0]
    fresh = LaneGroup(tiny(), prepared, CPU)
    fresh.admit("subject", tiny(), folds=[1])
    start = fresh.state.params_LD
    assert torch.allclose(still.params_LD, start, atol=1e-6)
    assert not torch.allclose(moved.params_LD, start, atol=1e-3)
    assert dataclasses.is_dataclass(moved)
