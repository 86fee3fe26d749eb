"""Gradient diagnostics (S45): its norm at each stage of the network, and the first tensor that is not finite.

Both are switches of the training configuration. They run beside the captured steps, on the same tensors; switched off
they are never called.

Legend: L lanes, D parameters of one lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor

from trainer.agent.network import layout
from trainer.errors import UserError
from trainer.lanes.ops import lane_norm
from trainer.lanes.tree import flatten
from trainer.training.collect import Setting
from trainer.training.lane_state import LaneState
from trainer.training.learn import Narrow, draw, gradient, learn_step_

PREFIX = "gradient/"
_MAY_BE_INFINITE = ("best.",)  # the best Sharpe so far is minus infinity before the first validation


def gradient_norms(setting: Setting, state: LaneState) -> dict[str, Tensor]:
    """Norm ``[L]`` of the coming learn step's gradient, before clipping, by stage of the network; changes nothing.

    A stage is what a parameter's name says before its first dot, in the order in which an observation passes them.
    """
    _, grad_LD = gradient(setting, state, Narrow.of(setting, state), draw(setting, state))
    squares: dict[str, Tensor] = {}
    for name, part in layout(setting.shape).views(grad_LD).items():
        stage = PREFIX + name.partition(".")[0]
        square_L = lane_norm(part).double().square()
        squares[stage] = squares[stage] + square_L if stage in squares else square_L
    return {stage: square_L.sqrt() for stage, square_L in squares.items()}


def learn_watched(setting: Setting, state: LaneState, steps: int, owners: Mapping[int, str]) -> Tensor:
    """Take ``steps`` learn steps and look at every tensor on the way; returns the mean loss ``[L]`` float64.

    Args:
        owners: rows to look at, and who to name for each.

    Raises:
        UserError: naming the first tensor, in the order of the computation, that is not finite.
    """
    loss_L = torch.zeros(len(state.params_LD), dtype=torch.float64, device=state.params_LD.device)
    _check(_of_state(state), owners, "before the first learn step of the epoch")
    for step in range(steps):
        _check(_of_step(setting, state), owners, f"in learn step {step + 1} of the epoch")
        loss_L += learn_step_(setting, state).loss_L
        _check(_of_state(state), owners, f"after learn step {step + 1} of the epoch")
    return loss_L / max(steps, 1)


def first_not_finite(named: Iterator[tuple[str, Tensor]], rows: Mapping[int, str]) -> tuple[str, int] | None:
    """Name and row of the first tensor ``[L, ...]`` that is not finite in one of ``rows``."""
    for name, tensor in named:
        if not tensor.is_floating_point():
            continue
        bad_L = ~torch.isfinite(tensor).flatten(1).all(-1) if tensor.dim() > 1 else ~torch.isfinite(tensor)
        for row in rows:
            if bool(bad_L[row]):
                return name, row
    return None


def _check(named: Iterator[tuple[str, Tensor]], owners: Mapping[int, str], when: str) -> None:
    found = first_not_finite(named, owners)
    if found is not None:
        name, row = found
        raise UserError(f"{owners[row]}: {name} is the first tensor that is not finite, {when}")


def _of_state(state: LaneState) -> Iterator[tuple[str, Tensor]]:
    return (item for item in flatten(state).items() if not item[0].startswith(_MAY_BE_INFINITE))


def _of_step(setting: Setting, state: LaneState) -> Iterator[tuple[str, Tensor]]:
    """What a learn step computes from a finite state, in its order."""
    drawn = draw(setting, state)
    yield from flatten(drawn).items()
    out, grad_LD = gradient(setting, state, Narrow.of(setting, state), drawn)
    seen = (("loss", out.loss_L), ("C51 loss", out.c51_L), ("MSE loss", out.mse_L), ("priority", out.priority_LB))
    parts = layout(setting.shape).views(grad_LD).items()
    yield from chain(seen, ((f"gradient of {name}", part) for name, part in parts))
