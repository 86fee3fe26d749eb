"""The trunk and the heads of every lane in one pass over its rows, where no gradient is wanted.

Why: as single products every layer writes its activations and the next one reads them, ten passes over ``[L, B, H]``
and three over all logits ``[L, B, K x A]``, all of them bound by memory. Here a tile of rows stays on its
multiprocessor through all layers, the hidden state in float32 registers, the weights streamed from the L2 cache, and
what leaves is what was asked for: the moments of all actions, or the logits of the chosen ones. A residual block never
holds its inner state whole: a chunk of it is made by a chunk of ``up`` and used up by the matching chunk of ``down``.

Eager twins: ``moments(forward(...))`` and ``chosen(forward(...))`` of :mod:`trainer.agent.network`.

Legend: L lanes, B rows, I inputs (columns of ones among them), H hidden, R = H + 1 rows of a weight (the last is the
bias), N = K x P width of the heads, P atoms of an action and their padding, G = 4 branches, K = 13 actions, A atoms, M
rows of a tile, J inputs taken at once, C chunk of a block's inner state.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,misc,arg-type,call-arg"
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op


@dataclass(frozen=True)
class _Tile:
    """Rows of a tile, chunk of a block's inner state, warps, stages of the pipelined loads."""

    rows: int
    chunk: int
    warps: int
    stages: int


_LARGE = _Tile(128, 64, 8, 2)
_SMALL = _Tile(16, 64, 4, 2)  # more tiles than multiprocessors count for more than their efficiency
_FEW = 132 * 64  # rows of all lanes
_INPUTS = (
    32  # taken at once; more would make the first layer, and not the blocks, decide how much shared memory it takes
)
_WIDTHS = (64, 128, 256)  # hidden sizes whose tiles fit into the registers
_MOST_ATOMS = 128
_ACTIONS = 13


@dataclass(frozen=True)
class Trunk:
    """Views ``[L, ...]`` of one lane-major buffer: every tensor's lane stride is the buffer's row."""

    first: Tensor  # [L, inputs without those ones that meet no weight, H]
    gains: Sequence[Tensor]  # [L, H], one per block; the heads' is in their weights
    ups: Sequence[Tensor]  # [L, H + 1, H]
    downs: Sequence[Tensor]  # [L, H + 1, H]

    def tensors(self) -> list[Tensor]:
        """In the order that the operators below take them."""
        return [self.first, *(part for block in zip(self.gains, self.ups, self.downs, strict=True) for part in block)]


def fits(hidden: int, atoms: int, dtype: torch.dtype) -> bool:
    """Whether the kernels know this shape."""
    return dtype == torch.bfloat16 and hidden in _WIDTHS and atoms <= _MOST_ATOMS


def all_moments(trunk: Trunk, head_LRN: Tensor, joined_LBI: Tensor, atoms_LA: Tensor) -> tuple[Tensor, Tensor]:
    """Means of z and of z^2 of every action's distribution, float32 ``[L, B, K]`` each; no gradient."""
    made: Tensor = _moments(trunk.tensors(), head_LRN.contiguous(), joined_LBI.contiguous(), atoms_LA.contiguous())
    mean, square = made.unbind(0)
    return mean, square


def chosen_logits(trunk: Trunk, head_LRN: Tensor, joined_LBI: Tensor, action_LBG: Tensor, atoms: int) -> Tensor:
    """Logits ``[L, B, G, A]`` of the chosen action of each branch; no gradient."""
    made: Tensor = _chosen(
        trunk.tensors(), head_LRN.contiguous(), joined_LBI.contiguous(), action_LBG.contiguous(), atoms
    )
    return made


@custom_op("paceline::head_moments", mutates_args=())
def _moments(weights: list[Tensor], head: Tensor, x: Tensor, atoms: Tensor) -> Tensor:
    made = torch.empty(2, *x.shape[:2], _ACTIONS, dtype=torch.float32, device=x.device)
    sizes = _sizes(weights, head, x, atoms.shape[1])
    _moments_kernel[sizes.grid](*sizes.pointers, atoms, made, *sizes.numbers, **sizes.constants)
    return made


@_moments.register_fake
def _(weights: list[Tensor], head: Tensor, x: Tensor, atoms: Tensor) -> Tensor:
    return x.new_empty((2, *x.shape[:2], _ACTIONS), dtype=torch.float32)


@custom_op("paceline::chosen_logits", mutates_args=())
def _chosen(weights: list[Tensor], head: Tensor, x: Tensor, action: Tensor, atoms: int) -> Tensor:
    made = torch.empty(*action.shape, atoms, dtype=x.dtype, device=x.device)
    sizes = _sizes(weights, head, x, atoms)
    _chosen_kernel[sizes.grid](*sizes.pointers, action, made, *sizes.numbers, **sizes.constants)
    return made


@_chosen.register_fake
def _(weights: list[Tensor], head: Tensor, x: Tensor, action: Tensor, atoms: int) -> Tensor:
    return x.new_empty((*action.shape, atoms))


def _tile(lanes: int, rows: int) -> _Tile:
    return _SMALL if lanes * rows < _FEW or rows % _LARGE.rows else _LARGE


@dataclass(frozen=True)
class _Sizes:
    """Arguments that all kernels share."""

    grid: tuple[int, int]
    pointers: tuple[Tensor, Tensor, Tensor]
    numbers: tuple[int, ...]
    constants: dict[str, int]


def _sizes(weights: list[Tensor], head: Tensor, x: Tensor, atoms: int) -> _Sizes:
    """The weights as one pointer, the places of the others relative to it, and the tile's shape."""
    lanes, rows, inputs = x.shape
    first = weights[0]
    hidden, blocks = first.shape[2], len(weights) // 3
    tile = _tile(lanes, rows)
    assert rows % tile.rows == 0
    assert all(w[0].is_contiguous() for w in weights)
    assert lanes == 1 or all(w.stride(0) == first.stride(0) for w in weights)
    places = [(w.data_ptr() - first.data_ptr()) // first.element_size() for w in weights[1:]]
    apart = places[3] - places[0] if blocks > 1 else 0
    assert all(places[3 * b + i] == places[i] + b * apart for b in range(blocks) for i in range(3))
    numbers = (
        rows,
        inputs,
        first.shape[1],
        head.shape[2] // _ACTIONS,
        first.stride(0),
        *(places[:3] or [0, 0, 0]),
        apart,
    )
    constants = {
        "H": hidden,
        "BLOCKS": blocks,
        "A": atoms,
        "A2": max(triton.next_power_of_2(atoms), 16),
        "J": _INPUTS,
        "M": tile.rows,
        "C": tile.chunk,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
    return _Sizes((rows // tile.rows, lanes), (first, head, x), numbers, constants)


@triton.jit
def _normalise(h, H: tl.constexpr):
    return h * (1.0 / tl.sqrt(tl.sum(h * h, 1) / H + 1e-6))[:, None]


@triton.jit
def _through_trunk(
    w_ptr,
    x_ptr,
    n,
    inputs: tl.constexpr,
    first_rows: tl.constexpr,
    gain,
    up,
    down,
    apart,
    H: tl.constexpr,
    BLOCKS: tl.constexpr,
    J: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
):
    """Normalised hidden state of a tile, bfloat16 ``[M, H]``."""
    c = tl.arange(0, H)
    j = tl.arange(0, J)
    h = tl.zeros((M, H), tl.float32)
    for start in range(0, inputs, J):
        x = tl.load(x_ptr + n[:, None] * inputs + (start + j)[None, :], mask=(start + j)[None, :] < inputs, other=0.0)
        w = tl.load(w_ptr + (start + j)[:, None] * H + c[None, :], mask=(start + j)[:, None] < first_rows, other=0.0)
        h = tl.dot(x, w, h)
    h = tl.where(h < 0, 0.0, h)  # a maximum would turn NaN into 0
    for block in tl.static_range(BLOCKS):
        g = tl.load(w_ptr + gain + block * apart + c).to(tl.float32)
        normal = (_normalise(h, H) * g[None, :]).to(w_ptr.dtype.element_ty)
        up_ptr = w_ptr + up + block * apart
        down_ptr = w_ptr + down + block * apart
        h += tl.load(down_ptr + H * H + c).to(tl.float32)[None, :]
        for start in range(0, H, C):
            i = start + tl.arange(0, C)
            inner = tl.dot(normal, tl.load(up_ptr + c[:, None] * H + i[None, :]))
            inner += tl.load(up_ptr + H * H + i).to(tl.float32)[None, :]
            inner = tl.where(inner < 0, 0.0, inner).to(w_ptr.dtype.element_ty)
            h = tl.dot(inner, tl.load(down_ptr + i[:, None] * H + c[None, :]), h)
    return _normalise(h, H).to(w_ptr.dtype.element_ty)


@triton.jit
def _logits(normal, head_ptr, k, a, pitch: tl.constexpr, H: tl.constexpr):
    """Logits ``[M, A2]`` of action k."""
    c = tl.arange(0, H)
    at = (k * pitch + a)[None, :]
    weight = tl.load(head_ptr + c[:, None] * (13 * pitch) + at, mask=a[None, :] < pitch, other=0.0)
    bias = tl.load(head_ptr + H * (13 * pitch) + k * pitch + a, mask=a < pitch, other=0.0).to(tl.float32)
    return tl.dot(normal, weight) + bias[None, :]


@triton.jit
def _moments_kernel(
    w_ptr,
    head_ptr,
    x_ptr,
    atoms_ptr,
    made_ptr,
    rows,
    inputs: tl.constexpr,
    first_rows: tl.constexpr,
    pitch: tl.constexpr,
    row,
    gain,
    up,
    down,
    apart,
    H: tl.constexpr,
    BLOCKS: tl.constexpr,
    A: tl.constexpr,
    A2: tl.constexpr,
    J: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
):
    lane = tl.program_id(1).to(tl.int64)
    n = lane * rows + tl.program_id(0) * M + tl.arange(0, M)
    total = tl.num_programs(1).to(tl.int64) * rows
    normal = _through_trunk(
        w_ptr + lane * row,
        x_ptr,
        n,
        inputs,
        first_rows,
        gain,
        up,
        down,
        apart,
        H,
        BLOCKS,
        J,
        M,
        C,
    )
    head_ptr += lane * (H + 1) * (13 * pitch)
    a = tl.arange(0, A2)
    z = tl.load(atoms_ptr + lane * A + a, mask=a < A, other=0.0)[None, :]
    for k in range(13):
        logits = _logits(normal, head_ptr, k, a, pitch, H)
        logits = tl.where(a[None, :] < A, logits, float("-inf"))
        weight = tl.exp(logits - tl.max(logits, 1)[:, None])
        share = 1.0 / tl.sum(weight, 1)
        tl.store(made_ptr + n * 13 + k, tl.sum(weight * z, 1) * share)
        tl.store(made_ptr + (total + n) * 13 + k, tl.sum(weight * z * z, 1) * share)


@triton.jit
def _branch(k):
    """The branch of action k and its place there: branches of 4, 3, 3 and 3 actions."""
    branch = tl.maximum(k - 1, 0) // 3
    return branch, k - tl.where(branch == 0, 0, 1 + 3 * branch)


@triton.jit
def _chosen_kernel(
    w_ptr,
    head_ptr,
    x_ptr,
    action_ptr,
    made_ptr,
    rows,
    inputs: tl.constexpr,
    first_rows: tl.constexpr,
    pitch: tl.constexpr,
    row,
    gain,
    up,
    down,
    apart,
    H: tl.constexpr,
    BLOCKS: tl.constexpr,
    A: tl.constexpr,
    A2: tl.constexpr,
    J: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
):
    lane = tl.program_id(1).to(tl.int64)
    n = lane * rows + tl.program_id(0) * M + tl.arange(0, M)
    normal = _through_trunk(
        w_ptr + lane * row,
        x_ptr,
        n,
        inputs,
        first_rows,
        gain,
        up,
        down,
        apart,
        H,
        BLOCKS,
        J,
        M,
        C,
    )
    head_ptr += lane * (H + 1) * (13 * pitch)
    a = tl.arange(0, A2)
    for k in range(13):
        branch, place = _branch(k)
        wanted = tl.load(action_ptr + n * 4 + branch) == place
        logits = _logits(normal, head_ptr, k, a, pitch, H)
        to = made_ptr + (n * 4 + branch)[:, None] * A + a[None, :]
        tl.store(to, logits.to(w_ptr.dtype.element_ty), mask=wanted[:, None] & (a < A)[None, :])
