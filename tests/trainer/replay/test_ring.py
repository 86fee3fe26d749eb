"""The ring: a cursor and a fill count per lane, exact contents, memory per transition."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.lanes.tree import put_, take
from trainer.replay.ring import Ring, Transition, bytes_per_transition, empty_ring, read, rows, write_

CPU = torch.device("cpu")


def transition(lanes: int, episodes: int, step: int, portfolio: int = 2) -> Transition:
    """A step whose every value tells lane, episode and step: bar = 1000 lane + 10 episode + step."""
    bar_LE = torch.arange(lanes)[:, None] * 1000 + torch.arange(episodes) * 10 + step
    return Transition(
        bar_LE=bar_LE,
        next_bar_LE=bar_LE + 1,
        mirror_LE=bar_LE % 2 == 0,
        portfolio_LEP=(bar_LE + 0.25).unsqueeze(-1).expand(-1, -1, portfolio),
        next_portfolio_LEP=(bar_LE + 0.75).unsqueeze(-1).expand(-1, -1, portfolio),
        action_LE4=(bar_LE % 4).unsqueeze(-1).expand(-1, -1, 4),
        reward_LE=bar_LE.double() / 8,
        terminated_LE=bar_LE % 3 == 0,
        cut_LE=bar_LE % 5 == 0,
    )


def filled(lanes: int, length: int, episodes: int, steps: int) -> Ring:
    ring = empty_ring(lanes, length, episodes, 2, CPU)
    for step in range(steps):
        write_(ring, transition(lanes, episodes, step))
    return ring


def test_every_field_comes_back_from_its_slot() -> None:
    ring = filled(2, 4, 3, 3)
    index_LB = torch.tensor([[0, 4], [8, 5]])  # t * E + e: (0, 0), (1, 1); (2, 2), (1, 2)
    row_LB = rows(ring, index_LB)
    bars = torch.tensor([[0, 11], [1022, 1021]])
    assert torch.equal(read(ring.bar_LTE, row_LB), bars.int())
    assert torch.equal(read(ring.next_bar_LTE, row_LB), bars.int() + 1)
    assert torch.equal(read(ring.mirror_LTE, row_LB), bars % 2 == 0)
    assert torch.equal(read(ring.portfolio_LTEP, row_LB), (bars + 0.25).unsqueeze(-1).expand(2, 2, 2))
    assert torch.equal(read(ring.next_portfolio_LTEP, row_LB), (bars + 0.75).unsqueeze(-1).expand(2, 2, 2))
    assert torch.equal(read(ring.action_LTE4, row_LB), (bars % 4).unsqueeze(-1).expand(2, 2, 4).byte())
    assert torch.equal(read(ring.reward_LTE, row_LB), bars / 8)
    assert torch.equal(read(ring.terminated_LTE, row_LB), bars % 3 == 0)
    assert torch.equal(read(ring.cut_LTE, row_LB), bars % 5 == 0)


def test_the_ring_overwrites_the_oldest_step_and_counts_up_to_its_length() -> None:
    ring = filled(1, 3, 1, 2)
    assert (ring.cursor_L.item(), ring.count_L.item(), ring.size_L.item()) == (2, 2, 2)
    ring = filled(1, 3, 1, 5)
    assert ring.bar_LTE.flatten().tolist() == [3, 4, 2]
    assert (ring.cursor_L.item(), ring.count_L.item()) == (2, 3)


def test_a_lane_that_joins_later_has_its_own_cursor_and_count() -> None:
    ring = filled(2, 4, 2, 3)
    put_(ring, torch.tensor([1]), empty_ring(1, 4, 2, 2, CPU))
    for step in (3, 4):
        write_(ring, transition(2, 2, step))
    assert ring.cursor_L.tolist() == [1, 2]
    assert ring.count_L.tolist() == [4, 2]
    assert ring.size_L.tolist() == [8, 4]
    assert ring.bar_LTE[0, :, 0].tolist() == [4, 1, 2, 3]
    assert ring.bar_LTE[1, :, 0].tolist() == [1003, 1004, 0, 0]


def test_a_lane_taken_out_and_put_back_is_the_same() -> None:
    ring, other = filled(3, 4, 2, 6), filled(3, 4, 2, 1)
    put_(other, torch.tensor([2]), take(ring, torch.tensor([0])))
    assert torch.equal(other.bar_LTE[2], ring.bar_LTE[0])
    assert other.cursor_L.tolist() == [1, 1, 2]


def test_a_transition_takes_the_bytes_of_its_fields() -> None:
    pointers, flags, action, reward = 4 + 4, 1 + 1 + 1, 4, 4
    assert bytes_per_transition(10) == pointers + flags + action + reward + 2 * 10 * 4


def stored_bits(ring: Ring, lane: int) -> Tensor:
    return torch.cat([ring.bar_LTE[lane].flatten().float(), ring.portfolio_LTEP[lane].flatten()])


def test_nan_in_one_lane_stays_there() -> None:
    ring, spoiled = filled(3, 4, 2, 2), filled(3, 4, 2, 2)
    step = transition(3, 2, 2)
    write_(ring, step)
    portfolio = step.portfolio_LEP.clone()
    portfolio[1] = float("nan")
    write_(spoiled, Transition(**{**vars(step), "portfolio_LEP": portfolio}))
    for lane in (0, 2):
        assert torch.equal(stored_bits(ring, lane), stored_bits(spoiled, lane))
