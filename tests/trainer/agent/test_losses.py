"""Blend schedule, smoothing and loss parts by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trainer.agent.losses import c51_share, smooth, value_loss


def test_the_blend_ramps_after_the_warm_up_and_stops_at_its_cap(params_of: Any) -> None:
    params = params_of(c51_alpha_max=0.6, c51_warmup_epochs=2, c51_ramp_epochs=4)
    values = [float(c51_share(torch.tensor([epoch]), params)) for epoch in range(7)]
    assert values == pytest.approx([0.0, 0.0, 0.25, 0.5, 0.6, 0.6, 0.6])


def test_the_default_is_pure_c51_from_the_first_epoch(params_of: Any) -> None:
    assert [float(c51_share(torch.tensor([epoch]), params_of())) for epoch in (0, 1, 50)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("health", "share"), [(0.0, 0.02), (0.5, 0.01), (1.0, 0.0)])
def test_smoothing_falls_as_health_rises_and_keeps_mass_one(params_of: Any, health: float, share: float) -> None:
    target = torch.tensor([[[[1.0, 0.0, 0.0, 0.0]]]])
    smoothed = smooth(target, torch.tensor([health]).double(), params_of())
    expected = torch.tensor([1 - share + share / 4, share / 4, share / 4, share / 4])
    torch.testing.assert_close(smoothed[0, 0, 0], expected)
    assert float(smoothed.sum()) == pytest.approx(1.0, abs=1e-7)


def _loss(alpha: float, sigma: float = 1.0) -> Any:
    probability = torch.tensor([[[[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]]])  # means 0 and -0.25
    target = torch.tensor([[[[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]]])  # mean 1
    atoms = torch.tensor([[-1.0, 0.0, 1.0]])
    return value_loss(probability.log(), target, target, atoms, torch.tensor([alpha]), torch.tensor([sigma]))


def test_cross_entropy_and_squared_error_by_hand() -> None:
    cross_entropy = 2 * math.log(4)
    squared = 0.5 * (1.0**2 + 1.25**2)
    assert float(_loss(1.0).loss_LB) == pytest.approx(cross_entropy)
    assert float(_loss(0.0).loss_LB) == pytest.approx(squared)
    assert float(_loss(0.25).loss_LB) == pytest.approx(0.25 * cross_entropy + 0.75 * squared)
    assert float(_loss(0.25).c51_L) == pytest.approx(cross_entropy)
    assert float(_loss(0.25).mse_L) == pytest.approx(squared)


def test_the_squared_error_is_in_units_of_sigma_and_cross_entropy_has_no_unit() -> None:
    assert float(_loss(0.0, sigma=2.0).loss_LB) == pytest.approx(float(_loss(0.0).loss_LB) / 4)
    assert float(_loss(1.0, sigma=2.0).loss_LB) == float(_loss(1.0).loss_LB)


def test_priority_is_the_sum_of_absolute_branch_losses() -> None:
    """Errors of opposite sign in two branches must add up, not cancel."""
    probability = torch.tensor([[[[0.25, 0.5, 0.25], [0.25, 0.5, 0.25]]]])
    target = torch.tensor([[[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]])
    atoms = torch.tensor([[-1.0, 0.0, 1.0]])
    loss = value_loss(probability.log(), target, target, atoms, torch.zeros(1), torch.ones(1))
    assert float(loss.priority_LB) == pytest.approx(1.0)


def test_the_expectation_is_pulled_to_the_target_before_smoothing() -> None:
    probability = torch.tensor([[[[0.0001, 0.0001, 0.9998]]]])
    target = torch.tensor([[[[0.0, 0.0, 1.0]]]])
    uniform = torch.full_like(target, 1 / 3)
    atoms = torch.tensor([[-1.0, 0.0, 1.0]])
    loss = value_loss(probability.log(), target, uniform, atoms, torch.zeros(1), torch.ones(1))
    assert float(loss.loss_LB) < 1e-6
