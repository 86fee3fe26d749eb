"""Categorical projection of a Bellman target onto a support (S17), dense and free of scatters.

What: mass at position x of the target is shared between the two atoms around x, in proportion to nearness
(Bellemare et al. 2017, eq. 7): m_i = sum_j p_j hat_i(T z_j), T z = clamp(R + discount z). The position is turned into a
fractional *index* into the sorted support, where every hat function is max(0, 1 - |u - i|), so uneven supports cost
nothing extra and the two weights of one position add up to 1 whatever it is, on an atom or between two.

Two ways to the same sum. On a GPU dense: the weights ``[B, A, A]`` are shared by the four branches and one matrix
product applies them; scatter-add would need atomics there, which change bits from run to run. On the CPU, where a
scatter adds in order, it needs 26 times less memory traffic and a third of the time. A terminal transition has
discount 0: all its mass lands on the reward.

Legend: L lanes, B rows, G branches, A atoms (of the target and, on the last axis, of the support).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def project(probability_LBGA: Tensor, target_LBA: Tensor, atoms_LA: Tensor) -> Tensor:
    """Distribution ``[L, B, G, A]`` on the support ``atoms_LA`` of mass that lies at ``target_LBA``.

    Args:
        probability_LBGA: distributions whose atom j lies at ``target_LBA[..., j]``, for every branch alike.
        target_LBA: positions, same unit as the atoms; those outside are clamped to the nearest end.
        atoms_LA: sorted supports, at least two atoms, strictly increasing.
    """
    index_LBA = position(target_LBA, atoms_LA)
    return (scattered if index_LBA.device.type == "cpu" else dense)(probability_LBGA, index_LBA, atoms_LA.shape[1])


def scattered(probability_LBGA: Tensor, index_LBA: Tensor, atoms: int) -> Tensor:
    """Each mass is added to the atom below it and to the one above, in the order of the target's atoms."""
    below_LBA = index_LBA.long().clamp_(0, atoms - 2)  # also where the position is no number
    above_LBGA = probability_LBGA * (index_LBA - below_LBA).unsqueeze(2)
    at_LBGA = below_LBA.unsqueeze(2).expand_as(above_LBGA)
    mixed_LBGA = above_LBGA.new_zeros(*above_LBGA.shape[:3], atoms)
    mixed_LBGA[..., :-1].scatter_add_(3, at_LBGA, probability_LBGA - above_LBGA)
    mixed_LBGA[..., 1:].scatter_add_(3, at_LBGA, above_LBGA)
    return mixed_LBGA


def dense(probability_LBGA: Tensor, index_LBA: Tensor, atoms: int) -> Tensor:
    """All hat functions at all positions, applied by one matrix product."""
    lanes, rows, branches, _ = probability_LBGA.shape
    index_A = torch.arange(atoms, dtype=index_LBA.dtype, device=index_LBA.device)
    distance_LBAA = index_LBA.unsqueeze(-1) - index_A
    lacking_LBAA = distance_LBAA.abs_().sub_(1.0).clamp_(max=0.0)  # -hat, in place: the largest tensor of a learn step
    mixed = torch.bmm(probability_LBGA.flatten(0, 1), lacking_LBAA.flatten(0, 1))
    return mixed.neg_().view(lanes, rows, branches, atoms)


def bellman(return_LB: Tensor, discount_LB: Tensor, atoms_LA: Tensor) -> Tensor:
    """Target positions ``[L, B, A]``: R + discount z, not yet clamped.

    The discount is gamma^n of the steps really taken, 0 at terminals.
    """
    return return_LB.unsqueeze(-1) + discount_LB.unsqueeze(-1) * atoms_LA.unsqueeze(1)


def position(value_LBA: Tensor, atoms_LA: Tensor) -> Tensor:
    """Fractional index of each value in its lane's support, in [0, A - 1]; exactly i on atom i."""
    value_LN = value_LBA.flatten(1)
    below_LN = torch.searchsorted(atoms_LA, value_LN, right=True).clamp(1, atoms_LA.shape[1] - 1) - 1
    low_LN, high_LN = atoms_LA.gather(1, below_LN), atoms_LA.gather(1, below_LN + 1)
    fraction_LN = ((value_LN - low_LN) / (high_LN - low_LN)).clamp(0.0, 1.0)
    return (below_LN + fraction_LN).view_as(value_LBA)


@dataclass(frozen=True)
class Overflow:
    """Target mass beyond each end of the support, and the moments of the target before clamping; ``[L, B, G]``."""

    below_LBG: Tensor
    above_LBG: Tensor
    mean_LBG: Tensor
    square_LBG: Tensor


def overflow(probability_LBGA: Tensor, target_LBA: Tensor, atoms_LA: Tensor) -> Overflow:
    """What the projection is about to put on the ends."""
    target_LBA = target_LBA.to(probability_LBGA.dtype)
    low_L, high_L = atoms_LA[:, 0].reshape(-1, 1, 1), atoms_LA[:, -1].reshape(-1, 1, 1)
    ends = ((target_LBA < low_L).to(target_LBA.dtype), (target_LBA > high_L).to(target_LBA.dtype))
    weight_LBMA = torch.stack((*ends, target_LBA, target_LBA * target_LBA), dim=2)
    sums_LBGM = torch.matmul(probability_LBGA, weight_LBMA.mT)
    return Overflow(*sums_LBGM.unbind(-1))
