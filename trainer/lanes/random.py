"""Counter-based random numbers: a pure function of (lane seed, stream, step, index).

What: Philox4x32-7 written in int64 tensor arithmetic. The key is the lane's seed, the counter is (block of four draws,
stream, step low word, step high word). No state and no global generator, so a lane draws the same numbers at any group
size and slot, on CPU and CUDA, and a captured graph draws fresh ones when its step counter (a device tensor) moves.
Draw ``i`` of a longer request equals draw ``i`` of a shorter one.

Why Philox: it passes BigCrush from 7 rounds on, and its published known answers make this file testable. Source:
Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.3 and table 2.

Legend: L lanes, Q blocks of four draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ROUNDS = 7
_ALIGN = 64  # elements: no vector tail in the functions behind normal()
# Philox multipliers less 2**32 (so that no int64 product overflows) and the Weyl increments of the key schedule.
_MULTIPLIER = (0xD2511F53 - (1 << 32), 0xCD9E8D57 - (1 << 32))
_WEYL = (0x9E3779B9, 0xBB67AE85)


class Stream(IntEnum):
    """Purposes that draw independently of each other. Append only: a new order would change every run."""

    INIT = 0
    START = 1
    MIRROR = 2
    EXPLORE = 3
    ACTION = 4
    NOISE = 5
    SAMPLE = 6
    WARMUP = 7
    BASELINE = 8


def lane_seed(trial_seed: int, fold: int) -> int:
    """Seed of one lane, in [0, 2**63): two rounds of the SplitMix64 finaliser (Steele, Lea, Flood, OOPSLA 2014)."""
    return _splitmix64(_splitmix64(trial_seed) + fold) >> 1


def bits(seed_L: Tensor, stream: int, step: int | Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform 32-bit words as int64 ``[L, *shape]`` in [0, 2**32).

    Args:
        seed_L: int64 ``[L]`` in [0, 2**63).
        step: python int, or int64 tensor that is 0-d or ``[L]``; not negative.
    """
    return words(seed_L, step, ((stream, math.prod(shape)),))[0].reshape(-1, *shape)


def words(seed_L: Tensor, step: int | Tensor, wanted: Sequence[tuple[int, int]]) -> list[Tensor]:
    """:func:`bits` of several ``(stream, count)`` at once, each ``[L, count]``: as many operations as for one."""
    streams, blocks = [int(stream) for stream, _ in wanted], [-(-count // 4) for _, count in wanted]
    step_L = step.view(-1) if isinstance(step, Tensor) else torch.full_like(seed_L[:1], step)
    words_LN = _words(seed_L, step_L.expand(len(seed_L)), streams, blocks)
    parts = words_LN.split_with_sizes([4 * count for count in blocks], dim=1)
    return [part[:, :count] for part, (_, count) in zip(parts, wanted, strict=True)]


def uniform(seed_L: Tensor, stream: int, step: int | Tensor, shape: tuple[int, ...]) -> Tensor:
    """Float32 ``[L, *shape]`` in [0, 1): the upper 24 bits, exact."""
    return to_uniform(bits(seed_L, stream, step, shape))


def to_uniform(words: Tensor) -> Tensor:
    """Words as float32 in [0, 1)."""
    return (words >> 8).to(torch.float32) * 2.0**-24


def randint(seed_L: Tensor, stream: int, step: int | Tensor, shape: tuple[int, ...], high: int | Tensor) -> Tensor:
    """Int64 ``[L, *shape]`` in [0, high) for ``high`` an int or int64 ``[L]``, below 2**31.

    Multiply and shift (Lemire 2019) without the rejection: the bias is below ``high / 2**32``.
    """
    return to_integer(bits(seed_L, stream, step, shape), high)


def to_integer(words: Tensor, high: int | Tensor) -> Tensor:
    """Words ``[L, ...]`` as int64 in [0, high)."""
    if isinstance(high, Tensor):
        high = high.reshape(-1, *(1 for _ in words.shape[1:]))
    return (words * high) >> 32


def normal(seed_L: Tensor, stream: int, step: int | Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal float32 ``[L, *shape]`` by Box and Muller (1958); at most 5.77 in size (24-bit uniforms).

    Equal on CPU and CUDA within rounding only: the two devices' log and cosine differ in the last bits.
    """
    count = math.prod(shape)
    return to_normal(words(seed_L, step, ((stream, words_of_normals(count)),))[0], count).reshape(-1, *shape)


def words_of_normals(count: int) -> int:
    """How many words :func:`to_normal` needs for so many draws: whole vectors in the functions behind it."""
    return -(-count // (2 * _ALIGN)) * 2 * _ALIGN


def to_normal(words_LN: Tensor, count: int) -> Tensor:
    """The first ``count`` standard normal draws, ``[L, count]``, of :func:`words_of_normals` words."""
    radius_LM, angle_LM = (words_LN >> 8).view(len(words_LN), -1, 2).unbind(-1)
    radius_LM = ((radius_LM + 1).to(torch.float32) * 2.0**-24).log().mul(-2.0).sqrt()
    angle_LM = angle_LM.to(torch.float32) * (2.0**-24 * 2.0 * math.pi)
    draws_LM2 = torch.stack((radius_LM * angle_LM.cos(), radius_LM * angle_LM.sin()), dim=-1)
    return draws_LM2.flatten(1)[:, :count]


def _words(seed_L: Tensor, step_L: Tensor, streams: list[int], blocks: list[int]) -> Tensor:
    """Words ``[L, 4 Q]`` of so many Philox blocks of each stream, one stream after the other.

    One round maps (c0, c1, c2, c3) to (hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0), where hi:lo are the 64-bit products of
    c0 and c2 with their multipliers. With a = M - 2**32 the product c M is c a + c 2**32: its low word is that of c a,
    its high word is (c a >> 32) + c.
    """
    if seed_L.is_cuda:
        from trainer.kernels.philox import philox_words

        return philox_words(seed_L, step_L, streams, blocks)
    device, shape = seed_L.device, (len(seed_L), sum(blocks))
    indices = [torch.arange(count, device=device) for count in blocks]
    index_Q = torch.cat(indices)
    stream_Q = torch.cat([torch.full_like(part, s) for part, s in zip(indices, streams, strict=True)])
    step_L1 = step_L.unsqueeze(-1)
    multiplier_2 = _pair(_MULTIPLIER, device)
    turn_R = torch.arange(_ROUNDS, device=device).view(-1, 1, 1, 1)
    key_2L = torch.stack((seed_L & _MASK, seed_L >> 32)).unsqueeze(-1)
    key_R2L = (key_2L + _pair(_WEYL, device) * turn_R) & _MASK
    even = torch.stack((index_Q.expand(shape), (step_L1 & _MASK).expand(shape)))
    odd = torch.stack((stream_Q.expand(shape), (step_L1 >> 32).expand(shape)))
    for key_2L in key_R2L.unbind():
        product = even * multiplier_2
        high = (product >> 32).add_(even)
        even = high.flip(0).bitwise_xor_(odd).bitwise_xor_(key_2L)
        odd = product.bitwise_and_(_MASK).flip(0)
    return torch.stack((even[0], odd[0], even[1], odd[1]), dim=-1).flatten(1)


def _pair(values: tuple[int, int], device: torch.device) -> Tensor:
    """Two integers as ``[2, 1, 1]``, made on the device (a copy from the host would break graph capture)."""
    step = values[1] - values[0]
    return torch.arange(values[0], values[1] + step, step, device=device).view(2, 1, 1)


def _splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)
