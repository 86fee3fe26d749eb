"""From logits to distributions, expectations and the statistics reported of them (S29).

Legend: L lanes, B rows, K = 13 actions of all branches, A atoms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.agent.branches import DIRECTIONS
from trainer.env.actions import BRANCHES
from trainer.lanes.ops import lane_mean, lane_sum


def expectation(logits_LBKA: Tensor, atoms_LA: Tensor) -> Tensor:
    """Action values ``[L, B, K]`` in reward units: the mean of each distribution (Bellemare et al. 2017, section 4)."""
    return weighted_sums(torch.softmax(logits_LBKA.float(), dim=-1), atoms_LA.unsqueeze(1))[0]


def moments(logits_LBKA: Tensor, atoms_LA: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each distribution, both ``[L, B, K]`` float32 in reward units.

    The deviation is for reporting and support decisions: it loses
    digits where it is far smaller than the mean.
    """
    mean, square = raw_moments(torch.softmax(logits_LBKA.float(), dim=-1), atoms_LA)
    return mean, (square - mean * mean).clamp(min=0.0).sqrt()


def raw_moments(probability_LBKA: Tensor, atoms_LA: Tensor) -> tuple[Tensor, Tensor]:
    """Means of z and of z^2 of each distribution, both ``[L, B, K]``."""
    mean, square = weighted_sums(probability_LBKA, torch.stack((atoms_LA, atoms_LA * atoms_LA), dim=1))
    return mean, square


def weighted_sums(value_LBKA: Tensor, weight_LMA: Tensor) -> tuple[Tensor, ...]:
    """Sums over the atoms of ``value`` times each of M weights, ``[L, B, K]`` each.

    One product on the CPU, where sums over few neighbours are slow; a GPU would round its factors to fewer digits.
    """
    if value_LBKA.is_cuda:
        return tuple((value_LBKA * weight_LA[:, None, None]).sum(-1) for weight_LA in weight_LMA.unbind(1))
    sums_LMN = torch.bmm(weight_LMA, value_LBKA.flatten(1, 2).mT)
    return sums_LMN.view(*weight_LMA.shape[:2], *value_LBKA.shape[1:3]).unbind(1)


def pooled_reach(mean_LBG: Tensor, square_LBG: Tensor, spread_L: Tensor) -> tuple[Tensor, Tensor]:
    """Mean -/+ spread x deviation ``[L]`` of all of a lane's distributions thrown together, from their two moments."""
    mean_L = lane_mean(mean_LBG)
    deviation_L = (lane_mean(square_LBG) - mean_L * mean_L).clamp(min=0.0).sqrt()
    reach_L = spread_L.to(mean_L.dtype) * deviation_L
    return mean_L - reach_L, mean_L + reach_L


@dataclass(frozen=True)
class ValueStatistics:
    """What the action values of a batch of states look like, each ``[L]`` float32; reward units where not said."""

    gap_L: Tensor
    """Q-gap: max - mean over the direction branch, averaged over states."""
    branch_gap_L: Tensor
    """The same, averaged over all four branches."""
    variance_L: Tensor
    """Q-variance: variance over states of each direction's value, averaged over directions (reward squared)."""
    mean_L: Tensor
    diversity_L: Tensor
    """1 - sum of squared shares of the greedy directions, over its maximum: 0 one action always, 1 all alike often."""
    reach_low_L: Tensor
    """Least over states and actions of mean - spread x deviation of the value distribution."""
    reach_high_L: Tensor


def statistics(q_LBK: Tensor, deviation_LBK: Tensor, spread_L: Tensor) -> ValueStatistics:
    """Describe action values. The *direction* branch decides exposure, so it alone makes the headline Q-gap.

    Diversity is the Gini-Simpson index (Tsallis entropy of order 2): an entropy of exact operations only.
    """
    gap_of = [(part.amax(-1) - part.mean(-1)) for part in torch.split_with_sizes(q_LBK, BRANCHES, dim=-1)]
    direction_LBK = q_LBK[..., :DIRECTIONS]
    reach = deviation_LBK * spread_L.to(q_LBK.dtype).reshape(-1, 1, 1)
    return ValueStatistics(
        gap_L=lane_mean(gap_of[0]),
        branch_gap_L=lane_mean(torch.stack(gap_of, dim=-1)),
        variance_L=lane_mean(_variance(direction_LBK.transpose(1, 2))),
        mean_L=lane_mean(q_LBK),
        diversity_L=diversity(direction_LBK.argmax(-1)),
        reach_low_L=(q_LBK - reach).flatten(1).amin(-1),
        reach_high_L=(q_LBK + reach).flatten(1).amax(-1),
    )


def diversity(direction_LB: Tensor) -> Tensor:
    """Diversity ``[L]`` in [0, 1] of the directions ``[L, B]`` int64 that were chosen."""
    kinds = torch.arange(DIRECTIONS, device=direction_LB.device)
    chosen_LKB = (direction_LB.unsqueeze(1) == kinds.view(1, -1, 1)).to(torch.float32)
    share_LK = chosen_LKB.mean(-1)
    return (1.0 - lane_sum(share_LK * share_LK)) / (1.0 - 1.0 / DIRECTIONS)


def _variance(x_LKB: Tensor) -> Tensor:
    centred = x_LKB - x_LKB.mean(-1, keepdim=True)
    return (centred * centred).mean(-1)
