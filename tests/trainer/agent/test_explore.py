"""Exploration: schedules, frequencies, fresh draws, and none of it when evaluating."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.agent.branches import ACTIONS
from trainer.agent.explore import collect, epsilon, greedy


def _collect(params: Any, q: Tensor, step: int = 0, seed: int = 5, hold_only: Tensor | None = None) -> Tensor:
    lanes = q.shape[0]
    if hold_only is None:
        hold_only = torch.zeros(q.shape[:2], dtype=torch.bool)
    return collect(
        q, hold_only, params, torch.ones(lanes).double(), torch.arange(lanes) + seed, torch.full((lanes,), step)
    )


def test_epsilon_falls_linearly_and_then_rests(params_of: Any) -> None:
    params = params_of(epsilon_start=0.9, epsilon_end=0.1, epsilon_decay=100)
    values = [float(epsilon(torch.tensor([step]), params)) for step in (0, 25, 50, 100, 1000)]
    assert values == pytest.approx([0.9, 0.7, 0.5, 0.1, 0.1])


def test_epsilon_reaches_all_108_actions_evenly(params_of: Any) -> None:
    params = params_of(epsilon_start=1.0, epsilon_end=1.0)
    action = _collect(params, torch.zeros(1, 108 * 64, ACTIONS))[0]
    joint = action[:, 0] + 4 * (action[:, 1] + 3 * (action[:, 2] + 3 * action[:, 3]))
    counts = torch.bincount(joint, minlength=108)
    assert len(counts) == 108
    assert int(counts.min()) > 32
    assert int(counts.max()) < 100


def test_without_noise_heat_and_epsilon_collecting_is_greedy(params_of: Any) -> None:
    params = params_of(noise_sigma=0.0, temperature=0.0, epsilon_start=0.0, epsilon_end=0.0)
    q = torch.linspace(-1, 1, 2 * 64 * ACTIONS).mul(37.0).sin().reshape(2, 64, ACTIONS)
    hold_only = torch.arange(64).expand(2, 64) % 3 == 0
    params = type(params)(**{k: v.expand(2) for k, v in params.__dict__.items()})
    assert torch.equal(_collect(params, q, hold_only=hold_only), greedy(q, hold_only))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_selection_frequencies_are_the_softmax_of_q_over_the_temperature(params_of: Any, temperature: float) -> None:
    params = params_of(noise_sigma=0.0, temperature=temperature, epsilon_start=0.0, epsilon_end=0.0)
    q = torch.zeros(1, 40_000, ACTIONS)
    q[..., :4] = torch.tensor([0.0, 0.5, 1.0, -0.5])
    frequency = torch.bincount(_collect(params, q)[0, :, 0], minlength=4) / 40_000
    expected = torch.softmax(torch.tensor([0.0, 0.5, 1.0, -0.5]) / temperature, dim=0)
    torch.testing.assert_close(frequency, expected, atol=0.01, rtol=0)


def test_noise_has_its_sigma_and_is_drawn_per_action(params_of: Any) -> None:
    """Two actions a gap apart swap with probability Phi(-gap / (sigma sqrt 2))."""
    params = params_of(noise_sigma=0.5, temperature=0.0, epsilon_start=0.0, epsilon_end=0.0)
    q = torch.full((1, 40_000, ACTIONS), -1e6)
    q[..., 0], q[..., 2] = 0.0, 0.5
    q[..., 4:] = 0.0
    swapped = float((_collect(params, q)[0, :, 0] == 0).float().mean())
    expected = 0.5 * float(torch.erfc(torch.tensor(0.5 / (0.5 * 2**0.5) / 2**0.5)))
    assert swapped == pytest.approx(expected, abs=0.01)


def test_noise_is_in_units_of_sigma(params_of: Any) -> None:
    params = params_of(noise_sigma=0.3, temperature=0.1, epsilon_start=0.0, epsilon_end=0.0)
    q = torch.linspace(-1, 1, 64 * ACTIONS).mul(37.0).sin().reshape(1, 64, ACTIONS)
    hold_only, seed, step = torch.zeros(1, 64, dtype=torch.bool), torch.tensor([3]), torch.tensor([9])
    small = collect(q, hold_only, params, torch.ones(1).double(), seed, step)
    large = collect(q * 1024, hold_only, params, torch.full((1,), 1024.0).double(), seed, step)
    assert torch.equal(small, large)


def test_every_step_draws_afresh_and_the_same_step_draws_the_same(params_of: Any) -> None:
    """The counter is a tensor, so a captured step that moves it draws new numbers at each replay."""
    params = params_of(noise_sigma=1.0, temperature=0.0, epsilon_start=0.0, epsilon_end=0.0)
    q = torch.zeros(1, 64, ACTIONS)
    seen = [_collect(params, q, step) for step in range(4)]
    assert torch.equal(seen[0], _collect(params, q, 0))
    for i in range(4):
        for j in range(i):
            assert not torch.equal(seen[i], seen[j])


def test_evaluation_has_no_noise(params_of: Any) -> None:
    q = torch.zeros(1, 64, ACTIONS)
    q[..., 2] = 1e-6
    hold_only = torch.zeros(1, 64, dtype=torch.bool)
    assert (greedy(q, hold_only)[..., 0] == 2).all()
    assert torch.equal(greedy(q, hold_only), greedy(q, hold_only))
    assert not (_collect(params_of(), q)[..., 0] == 2).all()


def test_only_hold_holds_in_every_policy(params_of: Any) -> None:
    hold_only = torch.ones(1, 64, dtype=torch.bool)
    for share in (0.0, 1.0):
        params = params_of(epsilon_start=share, epsilon_end=share)
        assert (_collect(params, torch.zeros(1, 64, ACTIONS), hold_only=hold_only)[..., 0] == 1).all()
    assert (greedy(torch.zeros(1, 64, ACTIONS), hold_only)[..., 0] == 1).all()
