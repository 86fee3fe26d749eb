"""Expectations, Q-gap and Q-variance by hand."""

from __future__ import annotations

import math

import torch

from trainer.agent.branches import ACTIONS, greedy
from trainer.agent.distribution import diversity, expectation, moments, statistics


def _q(direction: list[list[float]]) -> torch.Tensor:
    """[1, B, K] with these direction values and zeros elsewhere."""
    q = torch.zeros(1, len(direction), ACTIONS)
    q[0, :, :4] = torch.tensor(direction)
    return q


def test_moments_of_hand_worked_distributions() -> None:
    logits = torch.log(torch.tensor([[[[0.5, 0.25, 0.25], [1e-30, 1.0, 1e-30]]]]))
    mean, deviation = moments(logits, torch.tensor([[-1.0, 0.0, 2.0]]))
    torch.testing.assert_close(mean, torch.tensor([[[0.0, 0.0]]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(deviation, torch.tensor([[[math.sqrt(1.5), 0.0]]]), atol=1e-6, rtol=0)


def test_q_gap_is_max_minus_mean_over_directions_averaged_over_states() -> None:
    q = _q([[1.0, 0.0, 3.0, 0.0], [0.0, 0.0, 0.0, 4.0]])  # gaps 3 - 1 = 2 and 4 - 1 = 3
    seen = statistics(q, torch.zeros_like(q), torch.ones(1))
    assert seen.gap_L.tolist() == [2.5]
    assert seen.branch_gap_L.tolist() == [2.5 / 4]


def test_q_variance_is_over_states_not_over_actions() -> None:
    q = _q([[1.0, 5.0, 0.0, 0.0], [3.0, 5.0, 0.0, 0.0]])  # the first direction varies by +-1
    assert statistics(q, torch.zeros_like(q), torch.ones(1)).variance_L.tolist() == [0.25]


def test_reach_is_mean_and_spread_deviations() -> None:
    q = _q([[0.5, 0.0, 0.0, -1.0]])
    deviation = torch.full_like(q, 0.25)
    seen = statistics(q, deviation, torch.tensor([2.0]))
    assert seen.reach_high_L.tolist() == [1.0]
    assert seen.reach_low_L.tolist() == [-1.5]


def test_diversity_is_zero_for_one_direction_and_one_for_all_alike() -> None:
    assert diversity(torch.full((1, 64), 2)).tolist() == [0.0]
    assert diversity(torch.arange(64).reshape(1, 64) % 4).tolist() == [1.0]
    torch.testing.assert_close(diversity(torch.arange(64).reshape(1, 64) % 2), torch.tensor([2 / 3]))


def test_greedy_takes_the_mean_first_then_the_maximum() -> None:
    """A distribution with the single best atom but the lower mean must lose."""
    gamble, steady = torch.tensor([0.6, 0.0, 0.4]), torch.tensor([0.0, 0.9, 0.1])
    logits = torch.log(torch.stack([gamble, steady] + [gamble] * (ACTIONS - 2)) + 1e-12).reshape(1, 1, ACTIONS, 3)
    action = greedy(expectation(logits, torch.tensor([[-1.0, 0.0, 1.0]])), torch.zeros(1, 1, dtype=torch.bool))
    assert action[0, 0].tolist() == [1, 0, 0, 0]
