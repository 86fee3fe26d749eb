"""Lane independence on CUDA: bit-identical at equal capacity, in any slot, beside lanes that are NaN."""

from __future__ import annotations

import pytest
import torch

from trainer.lanes.tree import flatten, map_tensors
from trainer.training.group import LaneGroup
from trainer.training.lane_state import LaneState
from trainer.training.prepare import Prepared, prepare

from .conftest import tiny
from .test_independence import assert_same_bits, neighbours
from .test_recording import alone, in_company, numbers

pytestmark = pytest.mark.cuda
CAPACITY = 8


@pytest.fixture(scope="module")
def on_gpu() -> Prepared:
    return prepare(tiny(), torch.device("cuda"))


def run(prepared: Prepared, slot: int, sick: int | None = None) -> tuple[LaneState, list[dict[str, float]]]:
    group = LaneGroup(tiny(), prepared, torch.device("cuda"))
    others = neighbours(CAPACITY - 1)
    for index, config in enumerate([*others[:slot], tiny(), *others[slot:]]):
        group.admit("subject" if index == slot else f"other {index}", config, folds=[1])
    if sick is not None:
        group.state.params_LD[sick].fill_(float("nan"))
    history = []
    for _ in range(3):
        history.append(next(r for r in group.advance() if r.trial_id == "subject").metrics())
    return map_tensors(lambda t: t.cpu(), group.snapshot("subject")), history


def assert_same(one: tuple[LaneState, list[dict[str, float]]], other: tuple[LaneState, list[dict[str, float]]]) -> None:
    other_tensors = flatten(other[0])
    different = [
        name
        for name, tensor in flatten(one[0]).items()
        if not torch.equal(tensor.view(torch.uint8), other_tensors[name].view(torch.uint8))
    ]
    assert different == []
    assert one[1] == other[1]


def test_the_same_run_twice_is_bit_identical(on_gpu: Prepared) -> None:
    assert_same(run(on_gpu, 0), run(on_gpu, 0))


@pytest.mark.parametrize("slot", [1, 4, 7])
def test_any_slot_is_bit_identical_at_equal_capacity(on_gpu: Prepared, slot: int) -> None:
    assert_same(run(on_gpu, 0), run(on_gpu, slot))


def test_a_nan_lane_changes_no_bit_elsewhere(on_gpu: Prepared) -> None:
    assert_same(run(on_gpu, 0), run(on_gpu, 0, sick=5))


def test_a_rerun_at_the_recorded_capacities_is_bit_identical_to_the_trial_among_others(on_gpu: Prepared) -> None:
    state, reports, recording = in_company(on_gpu, torch.device("cuda"), tiny())
    assert recording.capacities == (8, 16, 16, 8)
    again, rerun = alone(on_gpu, torch.device("cuda"), tiny(), recording.capacities)
    assert numbers(rerun) == numbers(reports)
    assert_same_bits(again, state)
