"""Optimizer of a lane group on one flat buffer: Adam, per-lane clipping (S24), soft update of the target.

Every number may differ between lanes and lives in a device tensor, the running powers of the betas included: no host
value enters, so a captured graph stays right as rates change and lanes join. All of it works in place.

Legend: L lanes, D values of one lane (a multiple of 64, see flat.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.lanes.ops import lane_norm


@dataclass(frozen=True)
class Adam:
    """State of Adam: moments ``[L, D]`` and beta1**t, beta2**t as running products, float64 ``[L]``."""

    moment1_LD: Tensor
    moment2_LD: Tensor
    beta1_power_L: Tensor
    beta2_power_L: Tensor


def adam_state(params_LD: Tensor) -> Adam:
    """State before the first step of every lane."""
    ones_L = torch.ones(params_LD.shape[0], dtype=torch.float64, device=params_LD.device)
    return Adam(torch.zeros_like(params_LD), torch.zeros_like(params_LD), ones_L, ones_L.clone())


def adam_step_(
    params_LD: Tensor,
    grad_LD: Tensor,
    state: Adam,
    lr_L: Tensor,
    beta1_L: Tensor,
    beta2_L: Tensor,
    eps_L: Tensor,
    weight_decay_L: Tensor | None = None,
) -> None:
    """One Adam step (Kingma and Ba 2015, algorithm 1), in place, with decoupled weight decay if given.

    The ``_L`` arguments are float64 ``[L]``. Weight decay is that of Loshchilov and Hutter (2019): theta is scaled by
    1 - lr * decay before the step. As in the paper epsilon is added to sqrt(v_hat).
    """
    beta1_L1, beta2_L1, eps_L1 = _columns(params_LD, beta1_L, beta2_L, eps_L)
    rest1_L1, rest2_L1 = _columns(params_LD, 1 - beta1_L, 1 - beta2_L)
    state.beta1_power_L.mul_(beta1_L)
    state.beta2_power_L.mul_(beta2_L)
    rate_L1, root_L1 = _columns(params_LD, lr_L / (1 - state.beta1_power_L), (1 - state.beta2_power_L).sqrt())
    if weight_decay_L is not None:
        params_LD.mul_(*_columns(params_LD, 1 - lr_L * weight_decay_L))
    state.moment1_LD.mul_(beta1_L1).add_(grad_LD * rest1_L1)
    state.moment2_LD.mul_(beta2_L1).add_((grad_LD * grad_LD).mul_(rest2_L1))
    denominator_LD = state.moment2_LD.sqrt().div_(root_L1).add_(eps_L1)
    params_LD.sub_((state.moment1_LD * rate_L1).div_(denominator_LD))


def clip_(grad_LD: Tensor, max_norm_L: Tensor) -> Tensor:
    """Scale each lane's gradient, in place, to a global norm of at most ``max_norm_L``; return the old norms ``[L]``.

    A lane below its maximum keeps its bits. A lane whose norm is not finite spoils itself alone: an infinite norm of
    finite values gives a zero gradient, infinite or NaN values give NaN.
    """
    norm_L = lane_norm(grad_LD)
    scale_L = max_norm_L / (norm_L.to(max_norm_L.dtype) + 1e-6)
    grad_LD.mul_(*_columns(grad_LD, torch.minimum(scale_L, torch.ones_like(scale_L))))
    return norm_L


def soft_update_(target_LD: Tensor, params_LD: Tensor, tau_L: Tensor) -> None:
    """target <- (1 - tau) target + tau params, in place (Lillicrap et al. 2016); tau = 1 copies exactly."""
    keep_L1, tau_L1 = _columns(target_LD, 1 - tau_L, tau_L)
    target_LD.mul_(keep_L1).add_(params_LD * tau_L1)


def _columns(like: Tensor, *values_L: Tensor) -> list[Tensor]:
    return [value_L.to(like.dtype).unsqueeze(-1) for value_L in values_L]
