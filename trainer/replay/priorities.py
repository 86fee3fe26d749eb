"""Priority index of the replay ring (S30): leaves, block sums, sums of block sums, all on the device.

Source: Schaul, Quan, Antonoglou, Silver, "Prioritized experience replay", ICLR 2016, section 3.3 (proportional,
stratified) and 3.4 (importance weights). Instead of a binary tree: a fixed fan-out of 64 and three levels, so that any
capacity works, a draw is two searches in blocks of 64 (after one in the few sums at the top), and an update recomputes
the touched sums from their parts: totals are exact at any time and nothing drifts. A leaf is (|loss| + eps)**alpha:
alpha is applied once, when it is written.

Legend: L lanes, N leaves (index t * E + e of the ring, padded to C * 64 * 64), M = C * 64 blocks, C top sums,
B batch rows per lane, E parallel episodes, F = 64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.lanes import random
from trainer.lanes.ops import per_row
from trainer.lanes.random import Stream

_FAN = 64
_BELOW_ONE = 1.0 - 2.0**-52


@dataclass(frozen=True)
class Priorities:
    """Leaves float32 ``[L, N]``, sums float64 ``[L, M]`` and ``[L, C]``, the largest leaf ever written ``[L]``."""

    leaf_LN: Tensor
    block_LM: Tensor
    top_LC: Tensor
    maximum_L: Tensor


def empty_priorities(lanes: int, capacity: int, device: torch.device) -> Priorities:
    """An index of ``capacity`` leaves of priority zero; the first items will get priority 1."""
    tops = -(-capacity // _FAN**2)
    return Priorities(
        torch.zeros(lanes, tops * _FAN**2, device=device),
        torch.zeros(lanes, tops * _FAN, dtype=torch.float64, device=device),
        torch.zeros(lanes, tops, dtype=torch.float64, device=device),
        torch.ones(lanes, device=device),
    )


def insert_(priorities: Priorities, first_L: Tensor, count: int) -> None:
    """Give the ``count`` neighbouring leaves from ``first_L`` on the running maximum, in place."""
    device = first_L.device
    index_LE = first_L.unsqueeze(-1) + torch.arange(count, device=device)
    priorities.leaf_LN.scatter_(1, index_LE, priorities.maximum_L.unsqueeze(-1).expand_as(index_LE))
    touched = (count - 2) // _FAN + 2
    block_LK = (first_L // _FAN).unsqueeze(-1) + torch.arange(touched, device=device)
    _sum_up_(priorities, block_LK.clamp_(max=priorities.block_LM.shape[1] - 1))


def update_(
    priorities: Priorities, index_LB: Tensor, loss_LB: Tensor, per_alpha_L: Tensor, per_epsilon_L: Tensor
) -> None:
    """Set the leaves of drawn items from their losses, in place: :func:`leaves`, then :func:`put_`."""
    put_(priorities, index_LB, leaves(priorities, loss_LB, per_alpha_L, per_epsilon_L))


def leaves(priorities: Priorities, loss_LB: Tensor, per_alpha_L: Tensor, per_epsilon_L: Tensor) -> Tensor:
    """Leaves float32 ``[L, B]`` of items with these losses (raw: not multiplied by importance weights).

    A loss that is not finite counts as the running maximum, so that the index stays sound.
    """
    size_LB = loss_LB.detach().abs().double() + per_epsilon_L.unsqueeze(-1)
    leaf_LB = per_row(torch.pow, size_LB, per_alpha_L.unsqueeze(-1)).to(priorities.leaf_LN.dtype)
    return torch.where(leaf_LB.isfinite(), leaf_LB, priorities.maximum_L.unsqueeze(-1))


def put_(priorities: Priorities, index_LB: Tensor, leaf_LB: Tensor) -> None:
    """Set the leaves of drawn items, in place; the largest counts where an index occurs more than once."""
    if leaf_LB.is_cuda:
        from trainer.kernels import priorities as kernels

        kernels.put_(priorities.leaf_LN, priorities.maximum_L, index_LB, leaf_LB)
    else:
        index_LB, leaf_LB = _largest_of_equals(index_LB, leaf_LB)
        priorities.leaf_LN.scatter_(1, index_LB, leaf_LB)
        priorities.maximum_L.copy_(torch.maximum(priorities.maximum_L, leaf_LB.amax(-1)))
    _sum_up_(priorities, index_LB // _FAN)


def draw(priorities: Priorities, size_L: Tensor, seed_L: Tensor, step: int | Tensor, batch: int) -> Tensor:
    """Draw ``batch`` leaves of each lane in proportion to their priority, one per equal segment of the total mass.

    Returns int64 ``[L, B]``, below ``size_L``, in rising order. A leaf of priority zero is never drawn; an empty lane
    gives index 0.
    """
    segment_B = torch.arange(batch, device=size_L.device)
    fraction_LB = (random.bits(seed_L, Stream.SAMPLE, step, (batch,)).double() * 2.0**-32 + segment_B) / batch
    if fraction_LB.is_cuda:
        from trainer.kernels.priorities import find

        return find(fraction_LB, priorities.top_LC, priorities.block_LM, priorities.leaf_LN, size_L)
    mass_LC = priorities.top_LC.cumsum(-1)
    point_LB = fraction_LB * mass_LC[:, -1:]
    top_LB, point_LB = _search(mass_LC.unsqueeze(1).expand(-1, batch, -1), point_LB)
    within_LB, point_LB = _search(_block(priorities.block_LM, top_LB).cumsum(-1), point_LB)
    block_LB = top_LB * _FAN + within_LB
    within_LB, _ = _search(_block(priorities.leaf_LN, block_LB).cumsum(-1, dtype=torch.float64), point_LB)
    return torch.minimum(block_LB * _FAN + within_LB, (size_L - 1).clamp(min=0).unsqueeze(-1))


def importance_weights(priorities: Priorities, index_LB: Tensor, size_L: Tensor, beta_L: Tensor) -> Tensor:
    """Weights (N P(i))**-beta over their maximum in the batch, float32 ``[L, B]``; N is the current size."""
    leaf_LB = priorities.leaf_LN.gather(1, index_LB).double()
    expected_LB = leaf_LB / priorities.top_LC.cumsum(-1)[:, -1:] * size_L.unsqueeze(-1)
    weight_LB = per_row(torch.pow, expected_LB, -beta_L.unsqueeze(-1))
    return (weight_LB / weight_LB.amax(-1, keepdim=True)).float()


def annealed_beta(start_L: Tensor, end_L: Tensor, steps_L: Tensor, step_L: Tensor) -> Tensor:
    """Beta after ``step_L`` learn steps: linear from start to end over ``steps_L``, then constant."""
    return start_L + (end_L - start_L) * (step_L / steps_L).clamp(max=1.0)


def _search(cumulative_LBF: Tensor, point_LB: Tensor) -> tuple[Tensor, Tensor]:
    """Where in its block each point falls, and how far into that part.

    The part found is the first whose cumulative sum exceeds the point, so its own mass is positive. Rounding can put a
    point at or past the end: it is held below it first.
    """
    total_LB = cumulative_LBF[..., -1]
    point_LB = torch.minimum(point_LB, total_LB * _BELOW_ONE)
    found_LB = torch.searchsorted(cumulative_LBF.contiguous(), point_LB.unsqueeze(-1), right=True).squeeze(-1)
    found_LB.clamp_(max=cumulative_LBF.shape[-1] - 1)
    before_LB = cumulative_LBF.gather(-1, (found_LB - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return found_LB, torch.where(found_LB > 0, point_LB - before_LB, point_LB)


def _block(parts: Tensor, block_LB: Tensor) -> Tensor:
    """The 64 parts of each block: ``[L, B, 64]``."""
    lanes, blocks = parts.shape[0], parts.shape[1] // _FAN
    row_LB = block_LB + torch.arange(lanes, device=parts.device).unsqueeze(-1) * blocks
    return parts.view(-1, _FAN).index_select(0, row_LB.flatten()).view(*block_LB.shape, _FAN)


def _sum_up_(priorities: Priorities, block_LK: Tensor) -> None:
    """Recompute the sums of these blocks and all sums above; a block named twice gets the same sum twice."""
    if block_LK.is_cuda:
        from trainer.kernels import priorities as kernels

        kernels.sum_up_(priorities.leaf_LN, priorities.block_LM, priorities.top_LC, block_LK)
        return
    sums_LK = _block(priorities.leaf_LN, block_LK).sum(-1, dtype=torch.float64)
    priorities.block_LM.scatter_(1, block_LK, sums_LK)
    priorities.top_LC.copy_(priorities.block_LM.view(*priorities.top_LC.shape, _FAN).sum(-1))


def _largest_of_equals(index_LB: Tensor, value_LB: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by index and give equal indices the largest of their values, so that writing order does not matter."""
    value_LB, order_LB = value_LB.sort(dim=-1, stable=True)
    index_LB, second_LB = index_LB.gather(1, order_LB).sort(dim=-1, stable=True)
    last_LB = torch.searchsorted(index_LB, index_LB, right=True) - 1
    return index_LB, value_LB.gather(1, second_LB).gather(1, last_LB)
