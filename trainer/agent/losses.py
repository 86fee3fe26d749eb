"""The two value losses, their blend and label smoothing (S20, S21, S23).

Legend: L lanes, B rows, G branches, A atoms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.agent.distribution import raw_moments, weighted_sums
from trainer.agent.params import AgentParams
from trainer.lanes.ops import lane_mean


def c51_share(epoch_L: Tensor, params: AgentParams) -> Tensor:
    """Share alpha ``[L]`` float64 of the C51 loss in epoch 0, 1, ...

    0 during ``c51_warmup_epochs``; the w-th epoch after them has min(w / ramp, alpha_max). So at a ramp of one epoch
    the first epoch after the warm-up is already at alpha_max.
    """
    after_L = epoch_L.double() + 1.0 - params.c51_warmup_epochs_L
    return torch.minimum(after_L.clamp(min=0.0) / params.c51_ramp_epochs_L, params.c51_alpha_max_L)


def smooth(target_LBGA: Tensor, health_L: Tensor, params: AgentParams) -> Tensor:
    """Mix the target with the uniform distribution, by ``smoothing`` x (1 - health). The mass stays 1."""
    share_L = smoothing_share(health_L, params).to(target_LBGA.dtype).reshape(-1, 1, 1, 1)
    return (1.0 - share_L) * target_LBGA + share_L / target_LBGA.shape[-1]


def smoothing_share(health_L: Tensor, params: AgentParams) -> Tensor:
    """Share ``[L]`` float64 of the uniform distribution in a smoothed target."""
    return params.smoothing_L * (1.0 - health_L)


@dataclass(frozen=True)
class ValueLoss:
    """Loss per transition ``[L, B]``, summed over branches, and the parts it was blended from, ``[L]``."""

    loss_LB: Tensor
    priority_LB: Tensor
    """Sum over branches of the absolute loss; no importance weight in it, no gradient."""
    c51_L: Tensor
    mse_L: Tensor
    predicted: tuple[Tensor, Tensor]
    """Means of z and of z^2 of the predictions, ``[L, B, G]``, no gradient."""


def value_loss(
    logits_LBGA: Tensor,
    target_LBGA: Tensor,
    smoothed_LBGA: Tensor,
    atoms_LA: Tensor,
    alpha_L: Tensor,
    sigma_L: Tensor,
) -> ValueLoss:
    """alpha x cross-entropy + (1 - alpha) x half the squared error of the expectation in units of sigma.

    The cross-entropy (Bellemare et al. 2017, algorithm 1) is against the smoothed target; the expectation is against
    the projected target before smoothing, which would pull it to the support's middle.
    """
    log_probability = torch.log_softmax(logits_LBGA.float(), dim=-1)
    cross_entropy_LBG = -(smoothed_LBGA * log_probability).sum(-1)
    probability = log_probability.exp()
    (error_LBG,) = weighted_sums(probability - target_LBGA, atoms_LA.unsqueeze(1))
    return blend(cross_entropy_LBG, error_LBG, raw_moments(probability.detach(), atoms_LA), alpha_L, sigma_L)


def blend(
    cross_entropy_LBG: Tensor,
    error_LBG: Tensor,
    predicted: tuple[Tensor, Tensor],
    alpha_L: Tensor,
    sigma_L: Tensor,
) -> ValueLoss:
    """The loss made of both parts; ``error_LBG`` is the expectation less the target's, in reward units."""
    error_LBG = error_LBG / sigma_L.float().reshape(-1, 1, 1)
    squared_LBG = 0.5 * error_LBG * error_LBG
    alpha = alpha_L.float().reshape(-1, 1, 1)
    loss_LBG = alpha * cross_entropy_LBG + (1.0 - alpha) * squared_LBG
    return ValueLoss(
        loss_LB=loss_LBG.sum(-1),
        priority_LB=loss_LBG.detach().abs().sum(-1),
        c51_L=lane_mean(cross_entropy_LBG.detach().sum(-1)),
        mse_L=lane_mean(squared_LBG.detach().sum(-1)),
        predicted=predicted,
    )
