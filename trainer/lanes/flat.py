"""One flat buffer for all parameters of a lane group (S40): optimizer, soft update and checkpoint are one pass each.

Legend: L lanes, D values of one lane (every parameter starts at a multiple of 64 elements, so does every lane).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGN = 64


@dataclass(frozen=True)
class FlatLayout:
    """Where each named parameter lies in a lane's row of the flat buffer; ``shapes`` are without the lane axis."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(named: Mapping[str, tuple[int, ...]]) -> FlatLayout:
        """Layout of parameters given as name -> shape, in the mapping's order."""
        return FlatLayout(tuple(named), tuple(tuple(shape) for shape in named.values()))

    @property
    def offsets(self) -> tuple[int, ...]:
        """First element of each parameter."""
        starts = [0]
        for shape in self.shapes:
            starts.append(starts[-1] + _padded(shape))
        return tuple(starts[:-1])

    @property
    def size(self) -> int:
        """D, the length of a lane's row."""
        return sum(_padded(shape) for shape in self.shapes)

    def zeros(self, lanes: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
        """A zero buffer ``[lanes, D]``."""
        return torch.zeros(lanes, self.size, dtype=dtype, device=device)

    def views(self, flat_LD: Tensor) -> dict[str, Tensor]:
        """Name each parameter's ``[L, *shape]`` view of the buffer; no copy.

        The views come from one split, so the gradient with respect to the buffer is one concatenation, with zeros in
        the padding.
        """
        lengths = [length for shape in self.shapes for length in (math.prod(shape), _padding(shape))]
        pieces = torch.split_with_sizes(flat_LD, lengths, dim=1)[::2]
        return {name: p.view(-1, *shape) for name, shape, p in zip(self.names, self.shapes, pieces, strict=True)}

    def pack(self, named: Mapping[str, Tensor]) -> Tensor:
        """Inverse of :meth:`views`: copy named ``[L, *shape]`` tensors into a new buffer ``[L, D]``.

        Raises:
            KeyError: a parameter is missing.
        """
        first = named[self.names[0]]
        flat_LD = self.zeros(first.shape[0], first.device, first.dtype)
        for name, view in self.views(flat_LD).items():
            view.copy_(named[name])
        return flat_LD


def _padding(shape: tuple[int, ...]) -> int:
    return -math.prod(shape) % _ALIGN


def _padded(shape: tuple[int, ...]) -> int:
    return math.prod(shape) + _padding(shape)
