"""Operations that give a lane the same bits at any group size, in any slot, beside any neighbour.

Two things break that on the CPU: reductions whose blocking depends on the size of the whole tensor, and the vector
*tail* of transcendental functions, which has other bits than the vector body. So sums run in two stages over fixed
blocks of one lane, and scalars per lane are computed on 64 equal copies.

Legend: L lanes, N values of one lane, C blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_COPIES = 64
_BLOCK = 1024


def per_lane(function: Callable[..., Tensor], *values_L: Tensor) -> Tensor:
    """Apply an elementwise ``function`` (exp, log, pow, ...) to ``[L]`` tensors without a vector tail."""
    copies = [value_L.unsqueeze(-1).expand(-1, _COPIES).contiguous() for value_L in values_L]
    return function(*copies)[:, 0].contiguous()


def per_row(function: Callable[..., Tensor], value_LN: Tensor, *others: Tensor) -> Tensor:
    """Apply an elementwise ``function`` to ``[L, N]`` tensors, each lane padded by ones to a multiple of 64.

    The other arguments are expanded to the shape of the first (``[L, 1]`` is fine).
    """
    padding = (0, -value_LN.shape[1] % _COPIES)
    padded = [torch.nn.functional.pad(v.expand_as(value_LN), padding, value=1.0) for v in (value_LN, *others)]
    return function(*(value.contiguous() for value in padded))[:, : value_LN.shape[1]]


def lane_sum(x: Tensor) -> Tensor:
    """Sum each lane of ``[L, ...]`` to ``[L]``, in fixed blocks of 1,024 values, then over the block sums."""
    x_LN = x.flatten(1) if x.dim() > 1 else x.unsqueeze(-1)
    while x_LN.shape[1] > _BLOCK:
        missing = -x_LN.shape[1] % _BLOCK
        padded_LN = torch.nn.functional.pad(x_LN, (0, missing)) if missing else x_LN
        x_LN = padded_LN.reshape(x_LN.shape[0], -1, _BLOCK).sum(-1)
    return x_LN.contiguous().sum(-1)


def lane_mean(x: Tensor) -> Tensor:
    """Mean of each lane of ``[L, ...]``, as ``[L]``."""
    return lane_sum(x) / (x.numel() // x.shape[0])


def lane_norm(x: Tensor) -> Tensor:
    """Euclidean norm of each lane of ``[L, ...]``, as ``[L]``."""
    return lane_sum(x * x).sqrt()
