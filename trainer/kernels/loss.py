"""Softmax, cross-entropy, expectation and their gradient for the chosen actions, straight from the heads' product.

Why: as tensor operations the bias is added to all logits, the chosen rows are gathered, their gradient is scattered
with atomics into a zeroed tensor of all logits: they travel five times. Here the chosen ones are read once forward and
once backward, the bias is added on the way, and the gradient is written once, zeros included.

Eager twin: :func:`trainer.agent.losses.value_loss` of the chosen rows.

Legend: L lanes, B rows, N = K x P columns of the product, K = 13 actions, P atoms of an action and their padding, G = 4
branches, A atoms.
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
_VALUES = 1024  # of one tile


def chosen_losses(
    product_LBN: Tensor, bias_LN: Tensor, action_LBG: Tensor, target_LBGA: Tensor, share_L: Tensor, atoms_LA: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the chosen actions' distributions, ``[L, B, G]`` each: cross-entropy against the target mixed with ``share_L``
    of the uniform distribution; mean less the target's mean (gradient flows through these two); mean; mean square.

    Logits are ``product_LBN`` plus ``bias_LN``; the gradient of both is given to the product.
    """
    entropy, error, mean, square = _ChosenLosses.apply(
        product_LBN,
        bias_LN.contiguous(),
        action_LBG.contiguous(),
        target_LBGA.contiguous(),
        share_L.float(),
        atoms_LA.contiguous(),
    )
    return entropy, error, mean, square


class _ChosenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        made: Tensor = _losses(*inputs)
        ctx.save_for_backward(*inputs)
        entropy, error, mean, square = made.unbind(-1)
        ctx.mark_non_differentiable(mean, square)
        return entropy, error, mean, square

    @staticmethod
    def backward(ctx: Any, grad_entropy: Tensor, grad_error: Tensor, *_rest: Tensor) -> tuple[Tensor | None, ...]:
        grad: Tensor = _gradient(*ctx.saved_tensors, grad_entropy.contiguous(), grad_error.contiguous())
        return grad, None, None, None, None, None


@custom_op("paceline::chosen_losses", mutates_args=())
def _losses(product: Tensor, bias: Tensor, action: Tensor, target: Tensor, share: Tensor, atoms: Tensor) -> Tensor:
    lanes, rows, width = product.shape
    count = atoms.shape[1]
    made = torch.empty(lanes, rows, 4, 4, dtype=torch.float32, device=product.device)
    pitch = width // _ACTIONS
    padded = triton.next_power_of_2(pitch)
    tile = max(_VALUES // padded, 1)
    _forward[(triton.cdiv(rows, tile), lanes, 4)](
        product, bias, action, target, share, atoms, made, rows, pitch, count, padded, tile, num_warps=4
    )
    return made


@_losses.register_fake
def _(product: Tensor, bias: Tensor, action: Tensor, target: Tensor, share: Tensor, atoms: Tensor) -> Tensor:
    return product.new_empty((*product.shape[:2], 4, 4), dtype=torch.float32)


@custom_op("paceline::chosen_gradient", mutates_args=())
def _gradient(
    product: Tensor,
    bias: Tensor,
    action: Tensor,
    target: Tensor,
    share: Tensor,
    atoms: Tensor,
    grad_entropy: Tensor,
    grad_error: Tensor,
) -> Tensor:
    lanes, rows, width = product.shape
    count = atoms.shape[1]
    grad = torch.empty(lanes, rows, width, dtype=product.dtype, device=product.device)
    pitch = width // _ACTIONS
    padded = triton.next_power_of_2(pitch)
    tile = max(_VALUES // padded, 1)
    _backward[(triton.cdiv(rows, tile), lanes, 4)](
        product,
        bias,
        action,
        target,
        share,
        atoms,
        grad_entropy,
        grad_error,
        grad,
        rows,
        pitch,
        count,
        padded,
        tile,
        num_warps=4,
    )
    return grad


@_gradient.register_fake
def _(
    product: Tensor,
    bias: Tensor,
    action: Tensor,
    target: Tensor,
    share: Tensor,
    atoms: Tensor,
    grad_entropy: Tensor,
    grad_error: Tensor,
) -> Tensor:
    return product.new_empty(product.shape)


@triton.jit
def _tile(
    product_ptr,
    bias_ptr,
    action_ptr,
    target_ptr,
    share_ptr,
    atoms_ptr,
    rows,
    pitch: tl.constexpr,
    count: tl.constexpr,
    padded: tl.constexpr,
    tile: tl.constexpr,
):
    """Probabilities, log-probabilities and targets of the chosen actions of one branch in one tile."""
    lane = tl.program_id(1).to(tl.int64)
    branch = tl.program_id(2)
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = row < rows
    n = lane * rows + row
    i = tl.arange(0, padded)
    mask = inside[:, None] & (i < count)[None, :]
    first = tl.where(branch == 0, 0, 1 + 3 * branch)  # branches of 4, 3, 3, 3 actions
    action = tl.load(action_ptr + n * 4 + branch, mask=inside, other=0).to(tl.int32)
    at = (first + action) * pitch
    product = tl.load(product_ptr + (n * (13 * pitch) + at)[:, None] + i[None, :], mask=mask, other=-float("inf"))
    bias = tl.load(bias_ptr + (lane * (13 * pitch) + at)[:, None] + i[None, :], mask=mask, other=0.0)
    logits = product.to(tl.float32) + bias.to(tl.float32)
    most = tl.where(inside, tl.max(logits, 1), 0.0)
    weight = tl.where(mask, tl.exp(logits - most[:, None]), 0.0)
    total = tl.where(inside, tl.sum(weight, 1), 1.0)
    probability = weight / total[:, None]
    log_probability = tl.where(mask, logits - most[:, None] - tl.log(total)[:, None], 0.0)
    target = tl.load(target_ptr + (n * 4 + branch)[:, None] * count + i[None, :], mask=mask, other=0.0)
    share = tl.load(share_ptr + lane)
    smooth = tl.where(mask, (1.0 - share) * target + share / count, 0.0)
    z = tl.load(atoms_ptr + lane * count + i, mask=i < count, other=0.0)[None, :]
    return n, branch, first, action, inside, mask, i, z, probability, log_probability, target, smooth


@triton.jit
def _forward(
    product_ptr,
    bias_ptr,
    action_ptr,
    target_ptr,
    share_ptr,
    atoms_ptr,
    made_ptr,
    rows,
    pitch: tl.constexpr,
    count: tl.constexpr,
    padded: tl.constexpr,
    tile: tl.constexpr,
):
    n, branch, first, action, inside, mask, i, z, probability, log_probability, target, smooth = _tile(
        product_ptr, bias_ptr, action_ptr, target_ptr, share_ptr, atoms_ptr, rows, pitch, count, padded, tile
    )
    to = made_ptr + (n * 4 + branch) * 4
    tl.store(to, -tl.sum(smooth * log_probability, 1), mask=inside)
    tl.store(to + 1, tl.sum((probability - target) * z, 1), mask=inside)
    tl.store(to + 2, tl.sum(probability * z, 1), mask=inside)
    tl.store(to + 3, tl.sum(probability * z * z, 1), mask=inside)


@triton.jit
def _backward(
    product_ptr,
    bias_ptr,
    action_ptr,
    target_ptr,
    share_ptr,
    atoms_ptr,
    grad_entropy_ptr,
    grad_error_ptr,
    grad_ptr,
    rows,
    pitch: tl.constexpr,
    count: tl.constexpr,
    padded: tl.constexpr,
    tile: tl.constexpr,
):
    n, branch, first, action, inside, mask, i, z, probability, log_probability, target, smooth = _tile(
        product_ptr, bias_ptr, action_ptr, target_ptr, share_ptr, atoms_ptr, rows, pitch, count, padded, tile
    )
    of_entropy = tl.load(grad_entropy_ptr + n * 4 + branch, mask=inside, other=0.0)[:, None]
    of_error = tl.load(grad_error_ptr + n * 4 + branch, mask=inside, other=0.0)[:, None]
    mean = tl.sum(probability * z, 1)[:, None]
    grad = of_entropy * (probability * tl.sum(smooth, 1)[:, None] - smooth) + of_error * probability * (z - mean)
    to = grad_ptr + (n * (13 * pitch) + first * pitch)[:, None] + i[None, :]
    whole = inside[:, None] & (i < pitch)[None, :]
    for k in range(3):
        tl.store(to + k * pitch, tl.where((action == k)[:, None], grad, 0.0), mask=whole)
    if branch == 0:
        tl.store(to + 3 * pitch, tl.where((action == 3)[:, None], grad, 0.0), mask=whole)
