"""Weights of the heads from those of the duelling streams, and the way back for their gradient.

Why: as tensor operations the join of the branches takes three times what its memory traffic would (measured: 72
instead of about 22 us for 128 lanes), with a division by the row's width for every element. The gains of the norm
before the heads are multiplied in on the way, and their gradient is a sum over each row.

Eager twin: the CPU's way in :func:`trainer.agent.network.duelling`.

Legend: L lanes, H hidden, R = H + 1 rows of a weight, K = 13 actions, A atoms, P atoms and their padding, N = K x P.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc,arg-type,call-arg"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

_ACTIONS = 13
_ROWS = 8
_WHOLE = 16  # bytes that the atoms of an action are padded to


def combine(value_LRA: Tensor, advantage_LRKA: Tensor, gain_LH: Tensor) -> Tensor:
    """gain x (value + advantage - branch mean of the advantages), ``[L, R, N]``, zeros where atoms are padded; the last
    row, which is the bias, has no gain."""
    made: Tensor = _Combine.apply(value_LRA, advantage_LRKA, gain_LH)
    return made


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, advantage: Tensor, gain: Tensor) -> Tensor:
        ctx.save_for_backward(value, advantage, gain)
        made: Tensor = _combine(value, advantage, gain)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_value, of_advantage, of_gain = _separate(grad.contiguous(), *ctx.saved_tensors)
        return of_value, of_advantage, of_gain


@custom_op("paceline::combine_streams", mutates_args=())
def _combine(value: Tensor, advantage: Tensor, gain: Tensor) -> Tensor:
    lanes, rows, atoms = value.shape
    made = value.new_empty(_combined_shape(value))
    pitch = made.shape[2] // _ACTIONS
    assert value[0].is_contiguous()
    assert advantage[0].is_contiguous()
    assert gain[0].is_contiguous()
    _combine_kernel[(triton.cdiv(rows, _ROWS), lanes)](
        value,
        advantage,
        gain,
        made,
        rows,
        value.stride(0),
        advantage.stride(0),
        gain.stride(0),
        pitch,
        A=atoms,
        A2=triton.next_power_of_2(pitch),
        R=_ROWS,
        num_warps=4,
    )
    return made


@_combine.register_fake
def _(value: Tensor, advantage: Tensor, gain: Tensor) -> Tensor:
    return value.new_empty(_combined_shape(value))


def _combined_shape(value: Tensor) -> tuple[int, ...]:
    lanes, rows, atoms = value.shape
    whole = _WHOLE // value.element_size()
    return lanes, rows, _ACTIONS * (-(-atoms // whole) * whole)


@custom_op("paceline::separate_streams", mutates_args=())
def _separate(grad: Tensor, value: Tensor, advantage: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lanes, rows, atoms = value.shape
    of_value, of_advantage, of_gain = _separated(value)
    pitch = grad.shape[2] // _ACTIONS
    _separate_kernel[(triton.cdiv(rows, _ROWS), lanes)](
        grad,
        value,
        advantage,
        gain,
        of_value,
        of_advantage,
        of_gain,
        rows,
        value.stride(0),
        advantage.stride(0),
        gain.stride(0),
        pitch,
        A=atoms,
        A2=triton.next_power_of_2(pitch),
        R=_ROWS,
        num_warps=4,
    )
    return of_value, of_advantage, of_gain


@_separate.register_fake
def _(grad: Tensor, value: Tensor, advantage: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _separated(value)


def _separated(value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lanes, rows, atoms = value.shape
    return (
        value.new_empty((lanes, rows, atoms)),
        value.new_empty((lanes, rows, _ACTIONS, atoms)),
        value.new_empty((lanes, rows - 1)),
    )


@triton.jit
def _branch_mean(from_, mask, pitch: tl.constexpr, SIZE: tl.constexpr):
    mean = tl.load(from_, mask=mask, other=0.0).to(tl.float32)
    for k in tl.static_range(1, SIZE):
        mean += tl.load(from_ + k * pitch, mask=mask, other=0.0).to(tl.float32)
    return mean / SIZE


@triton.jit
def _combine_branch(value, gain, from_, to, mask, whole, pitch: tl.constexpr, A: tl.constexpr, SIZE: tl.constexpr):
    value -= _branch_mean(from_, mask, A, SIZE)
    for k in tl.static_range(SIZE):  # read again, from the cache
        made = gain * (value + tl.load(from_ + k * A, mask=mask, other=0.0).to(tl.float32))
        tl.store(to + k * pitch, tl.where(mask, made, 0.0), mask=whole)


@triton.jit
def _separate_branch(from_, advantage, to, gain, mask, pitch: tl.constexpr, A: tl.constexpr, SIZE: tl.constexpr):
    """Store the gradient of a branch's advantages; return those of the value stream and, summed up, of the gain."""
    mean = _branch_mean(from_, mask, pitch, SIZE)
    of_gain = tl.zeros_like(mean)
    for k in tl.static_range(SIZE):
        centred = tl.load(from_ + k * pitch, mask=mask, other=0.0).to(tl.float32) - mean
        of_gain += centred * tl.load(advantage + k * A, mask=mask, other=0.0).to(tl.float32)
        tl.store(to + k * A, gain * centred, mask=mask)
    return mean * SIZE, of_gain


@triton.jit
def _combine_kernel(
    value_ptr,
    advantage_ptr,
    gain_ptr,
    made_ptr,
    rows,
    value_lane,
    advantage_lane,
    gain_lane,
    pitch: tl.constexpr,
    A: tl.constexpr,
    A2: tl.constexpr,
    R: tl.constexpr,
):
    lane = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * R + tl.arange(0, R)
    a = tl.arange(0, A2)
    mask = (r < rows)[:, None] & (a < A)[None, :]
    whole = (r < rows)[:, None] & (a < pitch)[None, :]
    gain = tl.load(gain_ptr + lane * gain_lane + r, mask=r + 1 < rows, other=1.0).to(tl.float32)[:, None]
    value = tl.load(value_ptr + lane * value_lane + r[:, None] * A + a[None, :], mask=mask, other=0.0).to(tl.float32)
    from_ = advantage_ptr + lane * advantage_lane + r[:, None] * (13 * A) + a[None, :]
    to = made_ptr + (lane * rows + r)[:, None] * (13 * pitch) + a[None, :]
    _combine_branch(value, gain, from_, to, mask, whole, pitch, A, 4)
    for branch in range(3):
        k = 4 + 3 * branch
        _combine_branch(value, gain, from_ + k * A, to + k * pitch, mask, whole, pitch, A, 3)


@triton.jit
def _separate_kernel(
    grad_ptr,
    value_ptr,
    advantage_ptr,
    gain_ptr,
    of_value_ptr,
    of_advantage_ptr,
    of_gain_ptr,
    rows,
    value_lane,
    advantage_lane,
    gain_lane,
    pitch: tl.constexpr,
    A: tl.constexpr,
    A2: tl.constexpr,
    R: tl.constexpr,
):
    lane = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * R + tl.arange(0, R)
    a = tl.arange(0, A2)
    mask = (r < rows)[:, None] & (a < A)[None, :]
    n = (lane * rows + r)[:, None]
    gain = tl.load(gain_ptr + lane * gain_lane + r, mask=r + 1 < rows, other=1.0).to(tl.float32)[:, None]
    value = tl.load(value_ptr + lane * value_lane + r[:, None] * A + a[None, :], mask=mask, other=0.0).to(tl.float32)
    advantage = advantage_ptr + lane * advantage_lane + r[:, None] * (13 * A) + a[None, :]
    from_ = grad_ptr + n * (13 * pitch) + a[None, :]
    to = of_advantage_ptr + n * (13 * A) + a[None, :]
    of_value, of_gain = _separate_branch(from_, advantage, to, gain, mask, pitch, A, 4)
    for branch in range(3):
        k = 4 + 3 * branch
        more, of_branch = _separate_branch(from_ + k * pitch, advantage + k * A, to + k * A, gain, mask, pitch, A, 3)
        of_value += more
        of_gain += of_branch
    tl.store(of_value_ptr + n * A + a[None, :], gain * of_value, mask=mask)
    of_gain += of_value * value
    tl.store(of_gain_ptr + lane * (rows - 1) + r, tl.sum(of_gain, 1), mask=r + 1 < rows)
