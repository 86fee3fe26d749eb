"""Softmax, Bellman target and projection of the next states' distributions in one pass.

Why: as tensor operations the hat weights ``[L, B, A, A]`` go through memory several times, 0.7 GB at 128 lanes x 512
rows: a third of a learn step. Here nothing but logits and results touches memory, and no hat is ever evaluated:

Positions rise with the atoms, so the mass that falls into the cell between two atoms is a run of neighbours, and its
two parts, for the atom below and the one above, are differences of prefix sums. With u_j the way of position j through
its cell, A and B the sums of p_j (1 - u_j) and p_j u_j up to an atom, and f(i) the last atom whose position lies below
z_i: m_i = A[f(i + 1)] - A[f(i)] + B[f(i)] - B[f(i - 1)]. All sums stay below 1, so a mass is exact to 1e-7.

Eager twin: :func:`trainer.agent.projection.project` and ``overflow`` of a softmax.

Legend: L lanes, B rows, G = 4 branches, A atoms, N = L x B.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc,arg-type,call-arg"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

_VALUES = 512  # of one tile and branch


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


@custom_op("paceline::project_logits", mutates_args=())
def _project_logits(logits: Tensor, returns: Tensor, discount: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor]:
    lanes, rows, _, count = logits.shape
    target = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    overflow = torch.empty(lanes, rows, 4, 4, dtype=torch.float32, device=logits.device)
    width = triton.next_power_of_2(count)
    tile = max(_VALUES // width, 1)
    _project[(triton.cdiv(rows, tile), lanes)](
        logits, returns, discount, atoms, target, overflow, rows, count, width, count.bit_length(), tile, num_warps=4
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
    halvings: tl.constexpr,
    tile: tl.constexpr,
):
    lane = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = row < rows
    n = lane * rows + row
    i = tl.arange(0, width)
    mask = inside[:, None] & (i < count)[None, :]
    atoms_ptr += lane * count
    z = tl.load(atoms_ptr + i, mask=i < count, other=0.0)
    low = tl.load(atoms_ptr)
    high = tl.load(atoms_ptr + count - 1)
    reward = tl.load(return_ptr + n, mask=inside, other=0.0)[:, None]
    discount = tl.load(discount_ptr + n, mask=inside, other=0.0)[:, None]
    position = tl.fma(discount, tl.zeros_like(reward) + z[None, :], reward)
    value = tl.minimum(tl.maximum(position, low), high)

    way = _way(value, atoms_ptr, count, halvings, tile, width)
    upper = tl.where(i < count - 1, z, float("inf"))[None, :]  # every position counts as below the last atom's cell
    last = _last_below(upper, atoms_ptr, reward, discount, low, high, count, halvings, tile, width)
    next_last = tl.gather(last, tl.zeros_like(last) + tl.minimum(i + 1, width - 1)[None, :], 1)
    before = tl.zeros_like(last) + tl.maximum(i - 1, 0)[None, :]
    sick = tl.where(reward == reward, 0.0, float("nan"))  # clamping must not hide a reward that is no number
    for branch in range(4):
        at = (n * 4 + branch)[:, None]
        mass = _softmax(logits_ptr + at * count + i[None, :], mask)
        to = overflow_ptr + (n * 4 + branch) * 4
        tl.store(to, tl.sum(tl.where(position < low, mass, 0.0), 1), mask=inside)
        tl.store(to + 1, tl.sum(tl.where(position > high, mass, 0.0), 1), mask=inside)
        tl.store(to + 2, tl.sum(mass * position, 1), mask=inside)
        tl.store(to + 3, tl.sum(mass * position * position, 1), mask=inside)
        # a cell's mass for the atom above it, and that of all cells up to it; their neighbours differ by m_i
        risen = mass * way
        through = _at(tl.cumsum(mass - risen, 1), next_last) + _at(tl.cumsum(risen, 1), last)
        made = through - tl.where(i == 0, 0.0, 1.0)[None, :] * tl.gather(through, before, 1)
        tl.store(target_ptr + at * count + i[None, :], tl.maximum(made, 0.0) + sick, mask=mask)


@triton.jit
def _softmax(at, mask):
    logits = tl.load(at, mask=mask, other=-float("inf")).to(tl.float32)
    most = tl.max(logits, 1)
    weight = tl.where(mask, tl.exp(logits - most[:, None]), 0.0)
    return weight / tl.sum(weight, 1)[:, None]


@triton.jit
def _way(value, atoms_ptr, count: tl.constexpr, halvings: tl.constexpr, tile: tl.constexpr, width: tl.constexpr):
    """How far each value lies on its way from the atom at or below it, never the last one, to the next one."""
    below = tl.zeros((tile, width), tl.int32)
    beyond = tl.full((tile, width), count - 1, tl.int32)
    for _ in tl.static_range(halvings):
        middle = (below + beyond) // 2
        reached = tl.load(atoms_ptr + middle) <= value
        below = tl.where(reached, middle, below)
        beyond = tl.where(reached, beyond, middle)
    start = tl.load(atoms_ptr + below)
    return (value - start) / (tl.load(atoms_ptr + below + 1) - start)


@triton.jit
def _last_below(
    upper,
    atoms_ptr,
    reward,
    discount,
    low,
    high,
    count: tl.constexpr,
    halvings: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
):
    """The last atom whose clamped position lies below ``upper``; -1 where there is none."""
    known = tl.zeros((tile, width), tl.int32)
    failed = tl.full((tile, width), count, tl.int32)
    for _ in tl.static_range(halvings):
        middle = (known + failed) // 2
        z = tl.load(atoms_ptr + tl.minimum(middle, count - 1))
        lies = (
            tl.minimum(tl.maximum(tl.fma(discount + tl.zeros_like(z), z, reward + tl.zeros_like(z)), low), high) < upper
        )
        known = tl.where(lies, middle + 1, known)
        failed = tl.where(lies, failed, middle)
    return tl.minimum(known, count) - 1


@triton.jit
def _at(sums, last):
    """The sum up to ``last``; none where it is -1."""
    return tl.where(last < 0, 0.0, tl.gather(sums, tl.maximum(last, 0), 1))
