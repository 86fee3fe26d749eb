"""Backtests of a lane group: the training environment, run in order over given ranges, every lane and slot in parallel.

A *slot* is a range of bars that is run from its first bar to its last: one whole range, or one session where sessions
are episodes of their own. The number of slots is the same for every lane and does not depend on the group, so a lane's
bits do not either.

Legend: L lanes, V slots per lane, S steps of the longest slot, M bars of one lane's backtest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer.env.observe import Normaliser, See, seeing
from trainer.env.state import EnvParams, EnvState, reset
from trainer.env.step import env_step
from trainer.evaluation.metrics import BacktestPath
from trainer.lanes.tree import map_tensors
from trainer.market.market import Market

Policy = Callable[[int, EnvState, See], Tensor]
"""``policy(step, state, see) -> action [L, V, 4]``; ``see()`` gives what the agent sees, made only if asked."""

Range = tuple[int, int]
"""First bar and the bar after the last."""


@dataclass(frozen=True)
class Slots:
    """Where each slot starts and the last bar it may reach; empty ones start at their end. int64 ``[L, V]``."""

    start_LV: Tensor
    end_LV: Tensor


@dataclass(frozen=True)
class Happened:
    """One step, ``[L, V]``, or all of them, ``[S, L, V]``; steps of a finished slot are not live."""

    live: Tensor  # bool
    bar: Tensor  # int64, bar at whose close the step ends
    change: Tensor  # float64 money
    held: Tensor  # float64 contracts, from the fill to the close
    notional: Tensor  # float64 money traded
    action: Tensor  # uint8 [..., 4]


@dataclass(frozen=True)
class Rollout:
    """What happened step by step, ``[S, L, V]``; steps of a finished slot are not live."""

    live_SLV: Tensor  # bool
    bar_SLV: Tensor  # int64, bar at whose close the step ends
    change_SLV: Tensor  # float64 money
    held_SLV: Tensor  # float64 contracts, from the fill to the close
    notional_SLV: Tensor  # float64 money traded
    action_SLV4: Tensor  # uint8
    final: EnvState


def session_slots(session_N: np.ndarray, bars: Range) -> list[Range]:
    """One slot per session of a range of bars."""
    start, end = bars
    inside_N = session_N[start:end]
    firsts = [start, *(start + 1 + np.flatnonzero(np.diff(inside_N))).tolist()]
    return list(zip(firsts, [*firsts[1:], end], strict=True))


def make_slots(slots_by_lane: Sequence[Sequence[Range]], width: int, device: torch.device) -> Slots:
    """Pad every lane's slots to ``width`` with empty ones."""
    slot_LV2 = np.zeros((len(slots_by_lane), width, 2), dtype=np.int64)
    for slot_V2, slots in zip(slot_LV2, slots_by_lane, strict=True):
        slot_V2[: len(slots)] = np.asarray(slots) - (0, 1)
    start_LV, end_LV = torch.from_numpy(slot_LV2).to(device).unbind(-1)
    return Slots(start_LV.contiguous(), end_LV.contiguous())


def rollout(
    params: EnvParams, market: Market, normaliser: Normaliser, slots: Slots, steps: int, window: int, policy: Policy
) -> Rollout:
    """Run ``policy`` over every slot for ``steps`` steps; no randomness but the policy's."""
    state = begin(params, market, slots)
    made = empty_happened(steps, slots)
    for index in range(steps):
        happened, state = rollout_step(params, market, normaliser, window, policy, index, state)
        map_tensors(lambda whole, one, index=index: whole[index].copy_(one), made, happened)
    return joined(made, state)


def begin(params: EnvParams, market: Market, slots: Slots) -> EnvState:
    """The state in which every slot starts."""
    return reset(params, market, slots.start_LV, slots.end_LV, torch.zeros_like(slots.start_LV, dtype=torch.bool))


def rollout_step(
    params: EnvParams, market: Market, normaliser: Normaliser, window: int, policy: Policy, index: int, state: EnvState
) -> tuple[Happened, EnvState]:
    """Step ``index`` of a rollout and the state after it."""
    action_LV4 = policy(index, state, seeing(params, market, normaliser, state, window))
    step = env_step(params, market, state, action_LV4)
    happened = Happened(
        live=~state.done_LE,
        bar=step.state.bar_LE,
        change=step.info.change_LE,
        held=state.position_LE + step.info.quantity_LE,
        notional=step.info.turnover_LE * step.info.price_LE * params.multiplier_L[:, None],
        action=action_LV4.to(torch.uint8),
    )
    return happened, step.state


def empty_happened(steps: int, slots: Slots) -> Happened:
    """Room for ``steps`` steps of every slot."""

    def empty(dtype: torch.dtype, *tail: int) -> Tensor:
        return torch.empty(steps, *slots.start_LV.shape, *tail, dtype=dtype, device=slots.start_LV.device)

    return Happened(
        live=empty(torch.bool),
        bar=empty(torch.int64),
        change=empty(torch.float64),
        held=empty(torch.float64),
        notional=empty(torch.float64),
        action=empty(torch.uint8, 4),
    )


def joined(happened: Happened, final: EnvState) -> Rollout:
    """All steps and the state after the last."""
    return Rollout(
        happened.live, happened.bar, happened.change, happened.held, happened.notional, happened.action, final
    )


def paths(params: EnvParams, session_N: np.ndarray, run: Rollout) -> list[BacktestPath]:
    """Join each lane's slots in order into one equity path on the host."""
    host = map_tensors(lambda tensor: tensor.cpu(), run)
    capital_L = params.capital_L.tolist()
    return [_lane_path(host, lane, capital_L[lane], session_N) for lane in range(host.live_SLV.shape[1])]


def _lane_path(host: Rollout, lane: int, capital: float, session_N: np.ndarray) -> BacktestPath:
    def in_order(tensor_SLV: Tensor) -> np.ndarray:
        return _live(host, lane, tensor_SLV)

    final = host.final
    return BacktestPath(
        capital=capital,
        start_equity=capital,
        equity_M=capital + np.cumsum(in_order(host.change_SLV)),
        session_M=session_N[in_order(host.bar_SLV)],
        held_M=in_order(host.held_SLV),
        notional_M=in_order(host.notional_SLV),
        wins=round(float(final.wins_LE[lane].sum())),
        losses=round(float(final.losses_LE[lane].sum())),
        win_sum=float(final.win_sum_LE[lane].sum()),
        loss_sum=float(final.loss_sum_LE[lane].sum()),
    )


def bars_of(run: Rollout, lane: int) -> np.ndarray:
    """Market rows of the bars of :func:`paths`' equity, in its order."""
    return _live(run, lane, run.bar_SLV)


def _live(run: Rollout, lane: int, tensor_SLV: Tensor) -> np.ndarray:
    """One lane's values slot by slot, without the steps of finished slots."""
    live_VS = run.live_SLV[:, lane].T
    return np.asarray(tensor_SLV[:, lane].T[live_VS].cpu())
