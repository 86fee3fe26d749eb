"""PopArt that scales and does not shift (S25): the running deviation of a lane's rewards.

What: sigma = sqrt(max(variance, floor)), 1 during warm-up. It puts losses, priorities and exploration into units of
one deviation of reward.

Why no shift: subtracting a constant from every step's reward changes the objective where episode lengths vary. Why no
weight rescaling: the support is kept in *raw* reward units (normalised bounds = raw / sigma), so the network's logits
mean the same raw values before and after an update, in the online and in the target network
(van Hasselt et al. 2016, "preserving outputs precisely", holds with nothing to correct).

Legend: L lanes, N rewards of one update.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.agent.params import AgentParams
from trainer.lanes.ops import lane_mean


@dataclass(frozen=True)
class PopArt:
    """Running statistics of a lane's rewards, ``[L]``: float64, and the number of updates as int64."""

    mean_L: Tensor
    variance_L: Tensor
    updates_L: Tensor


def fresh(lanes: int, device: torch.device) -> PopArt:
    """Statistics of lanes that have seen nothing: sigma 1."""
    return PopArt(
        mean_L=torch.zeros(lanes, dtype=torch.float64, device=device),
        variance_L=torch.ones(lanes, dtype=torch.float64, device=device),
        updates_L=torch.zeros(lanes, dtype=torch.int64, device=device),
    )


def observe(popart: PopArt, reward: Tensor, params: AgentParams) -> PopArt:
    """Take in rewards ``[L, ...]`` (the same number for each lane).

    A new batch weighs max(rate, 1 / updates), so the first statistics are plain averages over batches and later ones
    follow a drift. The variance is merged about the moving mean (Chan et al. 1983, eq. 2.1), so nothing cancels.
    """
    reward = reward.double()
    updates_L = popart.updates_L + 1
    weight_L = torch.maximum(params.popart_rate_L, 1.0 / updates_L.double())
    batch_mean_L = lane_mean(reward)
    centred = reward - batch_mean_L.reshape(-1, *(1 for _ in reward.shape[1:]))
    step_L = batch_mean_L - popart.mean_L
    kept_L = 1.0 - weight_L
    variance_L = kept_L * popart.variance_L + weight_L * lane_mean(centred * centred)
    return PopArt(
        mean_L=popart.mean_L + weight_L * step_L,
        variance_L=variance_L + kept_L * weight_L * (step_L * step_L),
        updates_L=updates_L,
    )


def sigma(popart: PopArt, params: AgentParams) -> Tensor:
    """Scale ``[L]`` float64, in reward units per unit of normalised value; 1 until the warm-up is over."""
    warm_L = popart.updates_L.double() >= params.popart_warmup_L
    return torch.where(warm_L, torch.maximum(popart.variance_L, params.popart_floor_L).sqrt(), 1.0)
