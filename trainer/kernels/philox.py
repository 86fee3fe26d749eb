"""Philox4x32-7 in the 32-bit words that it is made of.

Why: in int64 tensor arithmetic it takes some sixty operations, and the compiler that fuses them multiplies the counter
by a 32-bit constant in 32-bit index arithmetic, which overflows: other words than eager ones (seen with torch 2.11).

Eager twin: :func:`trainer.lanes.random.words` on the CPU, whose bits these are.

Legend: L lanes, Q blocks of four words of all streams.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc,arg-type,call-arg"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

_TILE = 128
_STREAMS = 4  # that one call draws from at most


def philox_words(seed_L: Tensor, step_L: Tensor, streams: list[int], blocks: list[int]) -> Tensor:
    """Words ``[L, 4 Q]`` int64 of so many blocks of each stream, one stream after the other.

    Args:
        seed_L, step_L: int64 ``[L]``.
        streams, blocks: at most four.
    """
    made: Tensor = _words(seed_L.contiguous(), step_L.contiguous(), streams, blocks)
    return made


@custom_op("paceline::philox_words", mutates_args=())
def _words(seed: Tensor, step: Tensor, streams: list[int], blocks: list[int]) -> Tensor:
    assert len(streams) <= _STREAMS
    lanes, total = seed.shape[0], sum(blocks)
    made = torch.empty(lanes, 4 * total, dtype=torch.int64, device=seed.device)
    more = _STREAMS - len(streams)
    ends = [sum(blocks[: at + 1]) for at in range(len(blocks))] + [total] * more
    _words_kernel[(triton.cdiv(total, _TILE), lanes)](
        seed, step, made, total, *streams, *[0] * more, *ends[:-1], Q=_TILE, num_warps=4
    )
    return made


@_words.register_fake
def _(seed: Tensor, step: Tensor, streams: list[int], blocks: list[int]) -> Tensor:
    return seed.new_empty((seed.shape[0], 4 * sum(blocks)))


@triton.jit
def _words_kernel(
    seed_ptr, step_ptr, made_ptr, total, stream0, stream1, stream2, stream3, end0, end1, end2, Q: tl.constexpr
):
    lane = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * Q + tl.arange(0, Q)
    stream = tl.where(q < end0, stream0, tl.where(q < end1, stream1, tl.where(q < end2, stream2, stream3)))
    start = tl.where(q < end0, 0, tl.where(q < end1, end0, tl.where(q < end2, end1, end2)))
    seed = tl.load(seed_ptr + lane)
    step = tl.load(step_ptr + lane)
    key0 = seed.to(tl.uint32)
    key1 = (seed >> 32).to(tl.uint32)
    word0 = (q - start).to(tl.uint32)
    word1 = stream.to(tl.uint32)
    word2 = tl.full((Q,), 0, tl.uint32) + step.to(tl.uint32)
    word3 = tl.full((Q,), 0, tl.uint32) + (step >> 32).to(tl.uint32)
    for _ in tl.static_range(7):
        product0 = word0.to(tl.uint64) * 0xD2511F53
        product1 = word2.to(tl.uint64) * 0xCD9E8D57
        word0 = (product1 >> 32).to(tl.uint32) ^ word1 ^ key0
        word2 = (product0 >> 32).to(tl.uint32) ^ word3 ^ key1
        word1 = product1.to(tl.uint32)
        word3 = product0.to(tl.uint32)
        key0 += 0x9E3779B9
        key1 += 0xBB67AE85
    to = made_ptr + lane * (4 * total) + 4 * q
    tl.store(to, word0.to(tl.int64), mask=q < total)
    tl.store(to + 1, word1.to(tl.int64), mask=q < total)
    tl.store(to + 2, word2.to(tl.int64), mask=q < total)
    tl.store(to + 3, word3.to(tl.int64), mask=q < total)
