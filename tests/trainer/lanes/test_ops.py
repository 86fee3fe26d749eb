"""Lane operations: right values, and the same bits at any group size, slot and neighbour."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trainer.lanes.ops import lane_mean, lane_norm, lane_sum, per_lane

SIZES = [1, 2, 3, 8, 32]


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def beside_others(lane: Tensor, lanes: int, slot: int, poison: float) -> Tensor:
    group = values(lanes, *lane.shape, seed=1)
    group[0], group[-1] = poison, poison
    group[slot] = lane
    return group


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "lane_sum": lane_sum,
    "lane_mean": lane_mean,
    "lane_norm": lane_norm,
    "lane_sum in float64": lambda x: lane_sum(x.double()),
    "lane_sum of a transposed view": lambda x: lane_sum(x.unsqueeze(-1).expand(*x.shape, 3).transpose(1, -1)),
    "per_lane exp": lambda x: per_lane(torch.exp, lane_sum(x)),
    "per_lane pow": lambda x: per_lane(torch.pow, lane_sum(x).abs(), lane_sum(x * 0.3).abs()),
    "per_lane sigmoid": lambda x: per_lane(torch.sigmoid, lane_sum(x)),
    "per_lane log of float64": lambda x: per_lane(torch.log, lane_sum(x).abs().double()),
}


@pytest.mark.parametrize("lanes", SIZES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_lane_gets_the_same_bits_at_any_size_and_slot_beside_nan_and_inf(name: str, lanes: int) -> None:
    operation = OPERATIONS[name]
    for shape in ((1,), (7,), (64,), (3, 341), (1025,), (70_001,)):
        lane = values(*shape, seed=2)
        alone = operation(lane.unsqueeze(0))[0]
        for slot in {0, lanes // 2, lanes - 1}:
            for poison in (float("nan"), float("inf")):
                assert torch.equal(operation(beside_others(lane, lanes, slot, poison))[slot], alone)


@pytest.mark.parametrize("lanes", SIZES)
def test_a_lane_of_two_million_values_sums_to_the_same_bits(lanes: int) -> None:
    lane = values(1_100_000, seed=4)
    group = lane.expand(lanes, -1).clone()
    assert torch.equal(lane_sum(group), lane_sum(lane.unsqueeze(0)).expand(lanes))
    assert lane_sum(group)[0].item() == pytest.approx(lane.double().sum().item(), rel=1e-5, abs=1e-2)


def test_a_large_lane_sums_to_the_same_bits_alone_and_in_a_group_on_two_threads() -> None:
    """A plain sum of one lane is split between threads, that of several lanes is not."""
    lane = values(1_100_000, seed=4)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        alone, group = lane_sum(lane.unsqueeze(0)), lane_sum(lane.expand(3, -1).clone())
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(group, alone.expand(3))


def test_sum_mean_and_norm_by_hand() -> None:
    x = torch.tensor([[[3.0, 4.0]], [[-6.0, 8.0]]])
    assert lane_sum(x).tolist() == [7.0, 2.0]
    assert lane_mean(x).tolist() == [3.5, 1.0]
    assert lane_norm(x).tolist() == [5.0, 10.0]
    assert lane_sum(torch.tensor([1.5, 2.5])).tolist() == [1.5, 2.5]


def test_sums_past_one_block_count_every_value_once() -> None:
    for count in (1023, 1024, 1025, 1024 * 1024, 1024 * 1024 + 1):
        assert lane_sum(torch.ones(2, count)).tolist() == [count, count]


def test_gradients_flow_through_lane_sums() -> None:
    x = values(2, 1500).requires_grad_()
    (gradient,) = torch.autograd.grad(lane_mean(x * x).sum(), x)
    torch.testing.assert_close(gradient, 2 * x.detach() / 1500)


def test_per_lane_applies_the_function_to_each_scalar() -> None:
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 3.0, 0.5])
    torch.testing.assert_close(per_lane(torch.pow, x, y), x**y)
