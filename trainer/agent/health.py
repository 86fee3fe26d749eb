"""Health and internal signals of each lane (S22, S29).

What: exponential means of what a learn step shows (Q-gap, Q-variance, diversity, gradient norm, reward) and one number
made from them:

    health = gap x (learning + diversity) / 2,    each part in [0, 1]

- gap: min(1, Q-gap / (``health_gap`` x sigma)), Q-gap of the direction branch in reward units. A net that cannot tell
  actions apart has health 0 whatever else it does.
- learning: min(1, norm / ``health_gradient_low``) x min(1, ``health_gradient_high`` / norm), of the gradient norm
  before clipping: 0 when gradients vanish or explode.
- diversity: min(1, diversity / ``health_diversity``) of the greedy directions (see :mod:`trainer.agent.distribution`).

So a collapsed net is near 0 and a trained one near 1. What is not finite counts as 0. Health gates label smoothing and
the Kelly safety of the environment. Beside it, *stability* = least over greatest of a fast and a ten times slower mean
of the gradient norm: 1 when training has settled.

Only exact operations, so that a lane's bits depend on nothing beside it.

Legend: L lanes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from trainer.agent.distribution import ValueStatistics
from trainer.agent.params import AgentParams

_SLOWER = 0.1
_TINY = 1e-12


@dataclass(frozen=True)
class Signals:
    """Exponential means ``[L]`` float64, and the number of learn steps behind them as int64."""

    steps_L: Tensor
    q_gap_L: Tensor
    q_variance_L: Tensor
    diversity_L: Tensor
    gradient_L: Tensor
    gradient_slow_L: Tensor
    reward_L: Tensor
    loss_L: Tensor
    stability_L: Tensor
    health_L: Tensor
    """In [0, 1]."""


def fresh(lanes: int, device: torch.device) -> Signals:
    """Signals of lanes that have learned nothing: all 0, health too."""
    values = {f.name: torch.zeros(lanes, dtype=torch.float64, device=device) for f in fields(Signals)}
    values["steps_L"] = torch.zeros(lanes, dtype=torch.int64, device=device)
    return Signals(**values)


def observe(
    signals: Signals,
    values: ValueStatistics,
    loss_L: Tensor,
    gradient_norm_L: Tensor,
    reward_L: Tensor,
    sigma_L: Tensor,
    params: AgentParams,
) -> Signals:
    """Take in one learn step.

    Args:
        gradient_norm_L: global norm of each lane's gradient before clipping.
        reward_L: mean reward of the step's batch, reward units.
        sigma_L: the lane's PopArt scale.
    """
    steps_L = signals.steps_L + 1
    first_L = 1.0 / steps_L.double()
    rate_L = torch.maximum(params.health_rate_L, first_L)
    slow_rate_L = torch.maximum(params.health_rate_L * _SLOWER, first_L)
    q_gap_L = _mean(signals.q_gap_L, values.gap_L, rate_L)
    diversity_L = _mean(signals.diversity_L, values.diversity_L, rate_L)
    gradient_L = _mean(signals.gradient_L, gradient_norm_L, rate_L)
    gradient_slow_L = _mean(signals.gradient_slow_L, gradient_norm_L, slow_rate_L)
    return Signals(
        steps_L=steps_L,
        q_gap_L=q_gap_L,
        q_variance_L=_mean(signals.q_variance_L, values.variance_L, rate_L),
        diversity_L=diversity_L,
        gradient_L=gradient_L,
        gradient_slow_L=gradient_slow_L,
        reward_L=_mean(signals.reward_L, reward_L, rate_L),
        loss_L=_mean(signals.loss_L, loss_L, rate_L),
        stability_L=_finite(
            torch.minimum(gradient_L, gradient_slow_L) / torch.maximum(gradient_L, gradient_slow_L).clamp(min=_TINY)
        ),
        health_L=health(q_gap_L, gradient_L, diversity_L, sigma_L, params),
    )


def health(q_gap_L: Tensor, gradient_L: Tensor, diversity_L: Tensor, sigma_L: Tensor, params: AgentParams) -> Tensor:
    """The formula of this module, ``[L]`` float64 in [0, 1]."""
    gap_L = (q_gap_L / (params.health_gap_L * sigma_L)).clamp(max=1.0)
    alive_L = (gradient_L / params.health_gradient_low_L).clamp(max=1.0)
    calm_L = (params.health_gradient_high_L / gradient_L.clamp(min=_TINY)).clamp(max=1.0)
    varied_L = (diversity_L / params.health_diversity_L).clamp(max=1.0)
    return _finite(gap_L * (alive_L * calm_L + varied_L) * 0.5).clamp(0.0, 1.0)


def _mean(old_L: Tensor, new_L: Tensor, rate_L: Tensor) -> Tensor:
    step_L = rate_L * (new_L.double() - old_L)
    return old_L + step_L


def _finite(x_L: Tensor) -> Tensor:
    return torch.where(torch.isfinite(x_L), x_L, 0.0)
