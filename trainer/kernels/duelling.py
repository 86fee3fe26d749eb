"""Weights of the heads from those of the duelling streams, and the way back for their gradient.

Why: as tensor operations the join of the branches takes three times what its memory traffic would (measured: 72
instead of about 22 us for 128 lanes), with a division by the row's width for every element.

Eager twin: the CPU's way in :func:`trainer.agent.network.duelling`.

Legend: L lanes, R rows of a weight, K = 13 actions, A atoms, N padded K x A.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc,arg-type,call-arg"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ACTIONS = 13
_ROWS = 16
_WHOLE = 16  # bytes that the output's rows are padded to


def combine(value_LRA: Tensor, advantage_LRKA: Tensor) -> Tensor:
    """value + advantage - branch mean of the advantages, ``[L, R, N]``; zeros in the columns after K x A."""
    made: Tensor = _Combine.apply(value_LRA, advantage_LRKA)
    return made


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, advantage: Tensor) -> Tensor:
        ctx.atoms = value.shape[2]
        made: Tensor = _combine(value, advantage)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        of_value, of_advantage = _separate(grad.contiguous(), ctx.atoms)
        return of_value, of_advantage


@torch.library.custom_op("paceline::combine_streams", mutates_args=())
def _combine(value: Tensor, advantage: Tensor) -> Tensor:
    lanes, rows, atoms = value.shape
    made = value.new_empty(_combined_shape(value))
    assert value[0].is_contiguous()
    assert advantage[0].is_contiguous()
    _combine_kernel[(triton.cdiv(rows, _ROWS), lanes)](
        value,
        advantage,
        made,
        rows,
        value.stride(0),
        advantage.stride(0),
        made.shape[2],
        A=atoms,
        A2=triton.next_power_of_2(atoms),
        R=_ROWS,
        num_warps=4,
    )
    return made


@_combine.register_fake
def _(value: Tensor, advantage: Tensor) -> Tensor:
    return value.new_empty(_combined_shape(value))


def _combined_shape(value: Tensor) -> tuple[int, ...]:
    lanes, rows, atoms = value.shape
    whole = _WHOLE // value.element_size()
    return lanes, rows, -(-_ACTIONS * atoms // whole) * whole


@torch.library.custom_op("paceline::separate_streams", mutates_args=())
def _separate(grad: Tensor, atoms: int) -> tuple[Tensor, Tensor]:
    lanes, rows, width = grad.shape
    of_value, of_advantage = _separated(grad, atoms)
    _separate_kernel[(triton.cdiv(rows, _ROWS), lanes)](
        grad,
        of_value,
        of_advantage,
        rows,
        width,
        A=atoms,
        A2=triton.next_power_of_2(atoms),
        R=_ROWS,
        num_warps=4,
    )
    return of_value, of_advantage


@_separate.register_fake
def _(grad: Tensor, atoms: int) -> tuple[Tensor, Tensor]:
    return _separated(grad, atoms)


def _separated(grad: Tensor, atoms: int) -> tuple[Tensor, Tensor]:
    lanes, rows, _ = grad.shape
    return grad.new_empty((lanes, rows, atoms)), grad.new_empty((lanes, rows, _ACTIONS, atoms))


@triton.jit
def _branch_mean(from_, mask, A: tl.constexpr, SIZE: tl.constexpr):
    mean = tl.load(from_, mask=mask, other=0.0).to(tl.float32)
    for k in tl.static_range(1, SIZE):
        mean += tl.load(from_ + k * A, mask=mask, other=0.0).to(tl.float32)
    return mean / SIZE


@triton.jit
def _combine_branch(value, from_, to, mask, A: tl.constexpr, SIZE: tl.constexpr):
    value -= _branch_mean(from_, mask, A, SIZE)
    for k in tl.static_range(SIZE):  # read again, from the cache
        tl.store(to + k * A, value + tl.load(from_ + k * A, mask=mask, other=0.0).to(tl.float32), mask=mask)


@triton.jit
def _separate_branch(from_, to, mask, A: tl.constexpr, SIZE: tl.constexpr):
    mean = _branch_mean(from_, mask, A, SIZE)
    for k in tl.static_range(SIZE):
        tl.store(to + k * A, tl.load(from_ + k * A, mask=mask, other=0.0).to(tl.float32) - mean, mask=mask)
    return mean * SIZE


@triton.jit
def _combine_kernel(
    value_ptr,
    advantage_ptr,
    made_ptr,
    rows,
    value_lane,
    advantage_lane,
    width,
    A: tl.constexpr,
    A2: tl.constexpr,
    R: tl.constexpr,
):
    lane = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * R + tl.arange(0, R)
    a = tl.arange(0, A2)
    mask = (r < rows)[:, None] & (a < A)[None, :]
    value = tl.load(value_ptr + lane * value_lane + r[:, None] * A + a[None, :], mask=mask).to(tl.float32)
    from_ = advantage_ptr + lane * advantage_lane + r[:, None] * (13 * A) + a[None, :]
    to = made_ptr + (lane * rows + r)[:, None] * width + a[None, :]
    _combine_branch(value, from_, to, mask, A, 4)
    for branch in range(3):
        _combine_branch(value, from_ + (4 + 3 * branch) * A, to + (4 + 3 * branch) * A, mask, A, 3)
    tl.store(to + 13 * A, tl.zeros((R, A2), tl.float32), mask=(r < rows)[:, None] & (13 * A + a < width)[None, :])


@triton.jit
def _separate_kernel(
    grad_ptr, of_value_ptr, of_advantage_ptr, rows, width, A: tl.constexpr, A2: tl.constexpr, R: tl.constexpr
):
    lane = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * R + tl.arange(0, R)
    a = tl.arange(0, A2)
    mask = (r < rows)[:, None] & (a < A)[None, :]
    n = (lane * rows + r)[:, None]
    from_ = grad_ptr + n * width + a[None, :]
    to = of_advantage_ptr + n * (13 * A) + a[None, :]
    of_value = tl.zeros((R, A2), tl.float32)
    of_value += _separate_branch(from_, to, mask, A, 4)
    for branch in range(3):
        of_value += _separate_branch(from_ + (4 + 3 * branch) * A, to + (4 + 3 * branch) * A, mask, A, 3)
    tl.store(of_value_ptr + n * A + a[None, :], of_value, mask=mask)
