"""Draws from the priority index and writes to it, a few launches each.

Why: as tensor operations a draw copies a block of 64 leaves and one of 64 sums for every row through memory, an update
the leaves again, and each takes ten launches and more, a quarter of all that a single lane's learn step makes.

Eager twins: :func:`trainer.replay.priorities.draw` and the CPU's way in ``put_`` and ``_sum_up_`` there.

Legend: L lanes, N leaves, M blocks, C top sums, B rows, K blocks to sum up, F = 64 parts of a block.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc,arg-type,call-arg"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

_FAN = 64
_ROWS = 16  # of a tile: each holds a block in registers
_NARROWEST = 16  # tile that scans take
_LEAVES = 1024  # written at once by the one program of a lane
_BELOW_ONE = 1.0 - 2.0**-52


def find(fraction_LB: Tensor, top_LC: Tensor, block_LM: Tensor, leaf_LN: Tensor, size_L: Tensor) -> Tensor:
    """Leaves int64 ``[L, B]`` at these shares, float64 in [0, 1), of their lane's total; below ``size_L``."""
    found: Tensor = _find(fraction_LB.contiguous(), top_LC, block_LM, leaf_LN, size_L.contiguous())
    return found


def put_(leaf_LN: Tensor, maximum_L: Tensor, index_LB: Tensor, value_LB: Tensor) -> None:
    """Set leaves, the largest value where an index occurs more than once, and raise the running maximum, in place."""
    lanes, rows = index_LB.shape
    _put_kernel[(lanes,)](
        leaf_LN, maximum_L, index_LB.contiguous(), value_LB.contiguous(), leaf_LN.shape[1], rows, _LEAVES, num_warps=8
    )


def sum_up_(leaf_LN: Tensor, block_LM: Tensor, top_LC: Tensor, block_LK: Tensor) -> None:
    """Recompute the sums of these blocks and all sums above, in place."""
    lanes, count = block_LK.shape
    blocks, tops = block_LM.shape[1], top_LC.shape[1]
    _sum_kernel[(triton.cdiv(count, _ROWS), lanes)](
        leaf_LN, block_LM, block_LK.contiguous(), blocks, count, _FAN, _ROWS, num_warps=4
    )
    every = torch.arange(tops, device=top_LC.device).expand(lanes, -1).contiguous()
    _sum_kernel[(triton.cdiv(tops, _ROWS), lanes)](block_LM, top_LC, every, tops, tops, _FAN, _ROWS, num_warps=4)


@custom_op("paceline::find_leaves", mutates_args=())
def _find(fraction: Tensor, top: Tensor, block: Tensor, leaf: Tensor, size: Tensor) -> Tensor:
    lanes, rows = fraction.shape
    tops = top.shape[1]
    found = torch.empty(lanes, rows, dtype=torch.int64, device=fraction.device)
    _find_kernel[(triton.cdiv(rows, _ROWS), lanes)](
        fraction,
        top,
        block,
        leaf,
        size,
        found,
        rows,
        tops,
        max(triton.next_power_of_2(tops), _NARROWEST),
        _FAN,
        _BELOW_ONE,
        _ROWS,
        num_warps=4,
    )
    return found


@_find.register_fake
def _(fraction: Tensor, top: Tensor, block: Tensor, leaf: Tensor, size: Tensor) -> Tensor:
    return fraction.new_empty(fraction.shape, dtype=torch.int64)


@triton.jit
def _search(part, point, last: tl.constexpr, width: tl.constexpr, below_one: tl.constexpr):
    """The first part whose cumulative sum exceeds the point, and how far into that part the point lies."""
    i = tl.arange(0, width)[None, :]
    upto = tl.cumsum(part, 1)
    point = tl.minimum(point, tl.sum(tl.where(i == last, upto, 0.0), 1) * below_one)  # rounding can put it past the end
    found = tl.minimum(tl.sum((upto <= point[:, None]).to(tl.int32), 1), last)
    return found, point - tl.sum(tl.where(i == found[:, None] - 1, upto, 0.0), 1)


@triton.jit
def _find_kernel(
    fraction_ptr,
    top_ptr,
    block_ptr,
    leaf_ptr,
    size_ptr,
    found_ptr,
    rows,
    tops: tl.constexpr,
    width: tl.constexpr,
    F: tl.constexpr,
    below_one: tl.constexpr,
    tile: tl.constexpr,
):
    lane = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = row < rows
    f = tl.arange(0, F)[None, :]
    t = tl.arange(0, width)
    top = tl.load(top_ptr + lane * tops + t, mask=t < tops, other=0.0)
    fraction = tl.load(fraction_ptr + lane * rows + row, mask=inside, other=0.0)
    upto = tl.cumsum(top, 0)
    point = fraction * tl.sum(tl.where(t == tops - 1, upto, 0.0), 0)
    of_top, point = _search(tl.zeros((tile, width), tl.float64) + top[None, :], point, tops - 1, width, below_one)
    block = tl.load(block_ptr + (lane * tops + of_top)[:, None] * F + f)
    within, point = _search(block, point, F - 1, F, below_one)
    at = of_top * F + within
    leaf = tl.load(leaf_ptr + (lane * (tops * F) + at)[:, None] * F + f).to(tl.float64)
    within, point = _search(leaf, point, F - 1, F, below_one)
    last = tl.maximum(tl.load(size_ptr + lane) - 1, 0)
    tl.store(found_ptr + lane * rows + row, tl.minimum((at * F + within).to(tl.int64), last), mask=inside)


@triton.jit
def _put_kernel(leaf_ptr, maximum_ptr, index_ptr, value_ptr, leaves, rows: tl.constexpr, tile: tl.constexpr):
    """One program a lane: all leaves that come are emptied before the first of them is written."""
    lane = tl.program_id(0).to(tl.int64)
    leaf_ptr += lane * leaves
    index_ptr += lane * rows
    value_ptr += lane * rows
    i = tl.arange(0, tile)
    for start in range(0, rows, tile):
        index = tl.load(index_ptr + start + i, mask=start + i < rows, other=0)
        tl.store(leaf_ptr + index, tl.zeros((tile,), tl.float32), mask=start + i < rows)
    tl.debug_barrier()
    most = tl.load(maximum_ptr + lane)
    for start in range(0, rows, tile):
        index = tl.load(index_ptr + start + i, mask=start + i < rows, other=0)
        value = tl.load(value_ptr + start + i, mask=start + i < rows, other=0.0)
        tl.atomic_max(leaf_ptr + index, value, mask=start + i < rows)  # does not depend on the order in which they come
        most = tl.maximum(most, tl.max(value, 0))
    tl.store(maximum_ptr + lane, most)


@triton.jit
def _sum_kernel(part_ptr, sum_ptr, which_ptr, sums, count, F: tl.constexpr, tile: tl.constexpr):
    """Sums of blocks of F parts, float64; a block named twice gets the same sum twice."""
    lane = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    which = lane * sums + tl.load(which_ptr + lane * count + row, mask=row < count, other=0)
    part = tl.load(part_ptr + which[:, None] * F + tl.arange(0, F)[None, :]).to(tl.float64)
    tl.store(sum_ptr + which, tl.sum(part, 1), mask=row < count)
