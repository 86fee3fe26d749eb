"""Softmax, Bellman target and projection of the next states' distributions in one pass.

Why: as tensor operations the hat weights ``[L, B, A, A]`` go through memory several times, 0.7 GB at 128 lanes x 512
rows: a third of a learn step. Here a tile of rows keeps its four projected distributions in registers while it walks
over the atoms. Eager twin: :func:`trainer.agent.projection.project` and ``overflow`` of a softmax.

Legend: L lanes, B rows, G = 4 branches, A atoms, N = L x B.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc,arg-type,call-arg"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_VALUES = 1024  # of one tile and branch


def project_logits(
    logits_LBGA: Tensor, return_LB: Tensor, discount_LB: Tensor, atoms_LA: Tensor
) -> tuple[Tensor, Tensor]:
    """Projected distributions ``[L, B, G, A]`` float32 of the chosen actions and their overflow ``[L, B, G, 4]``: mass
    below and above the support, mean and mean square before clamping."""
    made: tuple[Tensor, Tensor] = _project_logits(
        logits_LBGA.contiguous(),
        return_LB.float().contiguous(),
        discount_LB.float().contiguous(),
        atoms_LA.contiguous(),
    )
    return made


@torch.library.custom_op("paceline::project_logits", mutates_args=())
def _project_logits(logits: Tensor, returns: Tensor, discount: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor]:
    lanes, rows, _, count = logits.shape
    target = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    overflow = torch.empty(lanes, rows, 4, 4, dtype=torch.float32, device=logits.device)
    width = triton.next_power_of_2(count)
    tile = max(_VALUES // width, 1)
    _project[(triton.cdiv(rows, tile), lanes)](
        logits, returns, discount, atoms, target, overflow, rows, count, width, tile, num_warps=4
    )
    return target, overflow


@_project_logits.register_fake
def _(logits: Tensor, returns: Tensor, discount: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor]:
    return (
        logits.new_empty(logits.shape, dtype=torch.float32),
        logits.new_empty((*logits.shape[:3], 4), dtype=torch.float32),
    )


@triton.jit
def _project(
    logits_ptr,
    return_ptr,
    discount_ptr,
    atoms_ptr,
    target_ptr,
    overflow_ptr,
    rows,
    count: tl.constexpr,
    width: tl.constexpr,
    tile: tl.constexpr,
):
    lane = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = row < rows
    n = lane * rows + row
    i = tl.arange(0, width)
    valid = i < count
    atoms_ptr += lane * count
    z = tl.load(atoms_ptr + i, mask=valid, other=0.0)
    # past its ends the support has neighbours so far away that their hats never matter
    before = tl.load(atoms_ptr + i - 1, mask=(i >= 1) & valid, other=-1e30)
    after = tl.load(atoms_ptr + i + 1, mask=i + 1 < count, other=1e30)
    up = (1.0 / tl.where((i >= 1) & valid, z - before, 1.0))[None, :]
    down = (1.0 / tl.where(i + 1 < count, after - z, 1.0))[None, :]
    low = tl.load(atoms_ptr)
    high = tl.load(atoms_ptr + count - 1)
    reward = tl.load(return_ptr + n, mask=inside, other=0.0)
    discount = tl.load(discount_ptr + n, mask=inside, other=0.0)
    position = reward[:, None] + discount[:, None] * z[None, :]
    mask = inside[:, None] & valid[None, :]

    base_0 = logits_ptr + n * (4 * count)
    base_1, base_2, base_3 = base_0 + count, base_0 + 2 * count, base_0 + 3 * count
    most_0, sum_0 = _summarise(base_0, overflow_ptr + n * 16, position, low, high, i, mask, inside)
    most_1, sum_1 = _summarise(base_1, overflow_ptr + n * 16 + 4, position, low, high, i, mask, inside)
    most_2, sum_2 = _summarise(base_2, overflow_ptr + n * 16 + 8, position, low, high, i, mask, inside)
    most_3, sum_3 = _summarise(base_3, overflow_ptr + n * 16 + 12, position, low, high, i, mask, inside)

    out_0 = tl.zeros((tile, width), tl.float32)
    out_1 = tl.zeros((tile, width), tl.float32)
    out_2 = tl.zeros((tile, width), tl.float32)
    out_3 = tl.zeros((tile, width), tl.float32)
    for j in range(count):
        value = reward + discount * tl.load(atoms_ptr + j)
        value = tl.minimum(tl.maximum(value, low), high)[:, None]
        hat = tl.maximum(tl.minimum((value - before[None, :]) * up, (after[None, :] - value) * down), 0.0)
        mass_0 = tl.exp(tl.load(base_0 + j, mask=inside, other=0.0).to(tl.float32) - most_0) * sum_0
        mass_1 = tl.exp(tl.load(base_1 + j, mask=inside, other=0.0).to(tl.float32) - most_1) * sum_1
        mass_2 = tl.exp(tl.load(base_2 + j, mask=inside, other=0.0).to(tl.float32) - most_2) * sum_2
        mass_3 = tl.exp(tl.load(base_3 + j, mask=inside, other=0.0).to(tl.float32) - most_3) * sum_3
        out_0 += mass_0[:, None] * hat
        out_1 += mass_1[:, None] * hat
        out_2 += mass_2[:, None] * hat
        out_3 += mass_3[:, None] * hat
    sick = tl.where(reward == reward, 0.0, float("nan"))[:, None]  # clamping must not hide a reward that is no number
    to = target_ptr + (n * (4 * count))[:, None] + i[None, :]
    tl.store(to, out_0 + sick, mask=mask)
    tl.store(to + count, out_1 + sick, mask=mask)
    tl.store(to + 2 * count, out_2 + sick, mask=mask)
    tl.store(to + 3 * count, out_3 + sick, mask=mask)


@triton.jit
def _summarise(base, overflow_ptr, position, low, high, i, mask, inside):
    """Store the overflow of one branch; return the softmax's maximum and 1 / sum."""
    logits = tl.load(base[:, None] + i[None, :], mask=mask, other=-float("inf")).to(tl.float32)
    most = tl.where(inside, tl.max(logits, 1), 0.0)
    weight = tl.where(mask, tl.exp(logits - most[:, None]), 0.0)
    share = 1.0 / tl.where(inside, tl.sum(weight, 1), 1.0)
    mass = weight * share[:, None]
    tl.store(overflow_ptr, tl.sum(tl.where(position < low, mass, 0.0), 1), mask=inside)
    tl.store(overflow_ptr + 1, tl.sum(tl.where(position > high, mass, 0.0), 1), mask=inside)
    tl.store(overflow_ptr + 2, tl.sum(mass * position, 1), mask=inside)
    tl.store(overflow_ptr + 3, tl.sum(mass * position * position, 1), mask=inside)
    return most, share
