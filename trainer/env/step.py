"""One bar of trading. Training, validation and the Gymnasium adapters all call :func:`env_step` (S7).

At the close of bar t the agent has seen row t and chosen an action. ``env_step`` moves to the close of bar t + 1: the
order fills in that bar, what is held earns ``close[t] -> fill -> close[t + 1]``, costs and funding are charged, and
where the market says so (session end, contract roll) what is left is closed at the bar's close, so that nothing is ever
booked across a gap. Pure, without branches on values, same shapes always: it can be captured in a CUDA graph.

Legend: L lanes, E episodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainer.env.actions import (
    DIRECTION,
    MAGNITUDE,
    ORDER,
    URGENCY,
    Direction,
    direction_sign,
    is_flat,
    is_hold,
    magnitude_share,
)
from trainer.env.caps import cap_share
from trainer.env.fills import Bars, Fill, fill_order, gather_bars, whole
from trainer.env.ledger import Closing, Earned, Trips, book_trips, close_out, earn, entry_price
from trainer.env.mirror import side_sign
from trainer.env.reward import RewardTerms, reward_terms
from trainer.env.state import EnvParams, EnvState
from trainer.market.market import Market

_DUST = 1e-9  # share of max_position: smaller changes are rounding, not orders


@dataclass(frozen=True)
class StepInfo:
    """What happened in the bar, for reports, ``[L, E]``."""

    change_LE: Tensor  # money, change of equity
    cost_LE: Tensor  # money, commissions and crossed spread
    funding_LE: Tensor  # money paid
    quantity_LE: Tensor  # contracts, signed, filled by the order
    price_LE: Tensor  # points, of that fill; the bar's close where nothing filled
    turnover_LE: Tensor  # contracts traded, the forced close included
    closed_LE: Tensor  # round trips closed: 0, 1 or 2
    booked_LE: Tensor  # money, their net profit
    terms: RewardTerms


@dataclass(frozen=True)
class Step:
    """The new state and what it pays."""

    state: EnvState
    reward_LE: Tensor  # float64
    terminated_LE: Tensor  # bool: ruin, end of data, or end of an episode that is a session
    truncated_LE: Tensor  # bool: cut at ``end_LE``; the future goes on
    info: StepInfo


def env_step(params: EnvParams, market: Market, state: EnvState, action_LE4: Tensor) -> Step:
    """Advance every episode by one bar. ``action_LE4`` is int64 ``[L, E, 4]``; the caller resets finished episodes.

    An episode that is over stays where it is and pays 0. On a bar where positions must be flat the action is ignored.
    ``terminated_LE`` and ``truncated_LE`` are true only in the step that ends the episode.
    """
    alive_LE = ~state.done_LE
    next_LE = state.bar_LE + alive_LE.long()
    bars = gather_bars(market, state.bar_LE, next_LE)
    no_orders_LE = market.flat_N[state.bar_LE] | state.done_LE

    fill = decide(params, bars, state, action_LE4, no_orders_LE)
    earned = earn(params, bars, state, fill)
    closing = close_out(params, market, bars, next_LE, state, fill.position_LE, earned)
    trips = book_trips(state, fill, earned, closing)
    moved = carry_on(state, fill, closing, trips)
    info = pay(params, state, moved, fill, earned, closing, trips)

    terminated_LE = (closing.ruined_LE | closing.last_LE) & alive_LE
    truncated_LE = (next_LE >= state.end_LE) & alive_LE & ~terminated_LE
    done_LE = state.done_LE | terminated_LE | truncated_LE
    pending_LE4 = torch.where(no_orders_LE.unsqueeze(-1), int(Direction.HOLD), action_LE4)
    after = replace(moved, bar_LE=next_LE, done_LE=done_LE, pending_LE4=pending_LE4)
    return Step(after, info.terms.total(), terminated_LE, truncated_LE, info)


def decide(params: EnvParams, bars: Bars, state: EnvState, action_LE4: Tensor, no_orders_LE: Tensor) -> Fill:
    """Caps, then target, then execution, of the action that arrives now: with latency the one of a bar ago."""
    arriving_LE4 = torch.where(params.late_L[:, None, None], state.pending_LE4, action_LE4)
    target_LE = target_position(params, state, bars.close_LE, arriving_LE4, no_orders_LE)
    return fill_order(params, bars, state.position_LE, target_LE, arriving_LE4[..., ORDER], arriving_LE4[..., URGENCY])


def carry_on(state: EnvState, fill: Fill, closing: Closing, trips: Trips) -> EnvState:
    """Position, money and trade record after the bar; where the episode stands is the caller's."""
    side_LE = torch.sign(fill.position_LE)
    taken_LE = (fill.position_LE != 0.0) & (side_LE != state.side_LE)
    return replace(
        state,
        position_LE=torch.where(closing.close_LE, 0.0, fill.position_LE),
        entry_LE=entry_price(state, fill, trips.turned_LE, closing.close_LE),
        equity_LE=closing.equity_LE,
        peak_LE=torch.maximum(state.peak_LE, closing.equity_LE),
        trip_LE=trips.open_LE,
        wins_LE=state.wins_LE + trips.won_LE,
        losses_LE=state.losses_LE + (trips.closed_LE - trips.won_LE),
        win_sum_LE=state.win_sum_LE + trips.gain_LE,
        loss_sum_LE=state.loss_sum_LE + (trips.gain_LE - trips.booked_LE),
        side_LE=torch.where(taken_LE, side_LE, state.side_LE),
        side_bars_LE=torch.where(taken_LE, 0.0, state.side_bars_LE + 1.0),
    )


def pay(
    params: EnvParams, state: EnvState, moved: EnvState, fill: Fill, earned: Earned, closing: Closing, trips: Trips
) -> StepInfo:
    """The reward's terms and the bar's figures, for going from ``state`` to ``moved``."""
    held_LE = fill.position_LE
    change_LE = moved.equity_LE - state.equity_LE
    cost_LE = earned.commission_LE + earned.crossing_LE + closing.cost_LE
    terms = reward_terms(
        params,
        change_LE=change_LE,
        cost_LE=cost_LE,
        drawdown_LE=torch.where(state.done_LE, 0.0, 1.0 - moved.equity_LE / moved.peak_LE),
        flip_LE=moved.side_LE * state.side_LE < 0.0,
        side_bars_LE=state.side_bars_LE + 1.0,
        position_LE=torch.where(state.done_LE, 0.0, held_LE),
    )
    return StepInfo(
        change_LE=change_LE,
        cost_LE=cost_LE,
        funding_LE=earned.funding_LE,
        quantity_LE=fill.quantity_LE,
        price_LE=fill.price_LE,
        turnover_LE=fill.quantity_LE.abs() + torch.where(closing.close_LE, held_LE.abs(), 0.0),
        closed_LE=trips.closed_LE,
        booked_LE=trips.booked_LE,
        terms=terms,
    )


def target_position(
    params: EnvParams, state: EnvState, price_LE: Tensor, action_LE4: Tensor, no_orders_LE: Tensor
) -> Tensor:
    """Position in contracts that the action asks for, signed in the real market, ``[L, E]``.

    Short and long: sign x magnitude x capped ``max_position``. Flat closes that fraction. Hold, and a change too small
    to be an order, keep the position, also where the cap has moved.
    """
    direction_LE = action_LE4[..., DIRECTION]
    share_LE = magnitude_share(action_LE4[..., MAGNITUDE])
    max_position_L = params.max_position_L[:, None]
    cap_LE = cap_share(params, state, price_LE) * max_position_L
    sign_LE = direction_sign(direction_LE) * side_sign(state.mirror_LE)
    wanted_LE = torch.where(is_flat(direction_LE), state.position_LE * (1.0 - share_LE), sign_LE * share_LE * cap_LE)
    wanted_LE = whole(params, wanted_LE)
    dust_LE = (wanted_LE - state.position_LE).abs() <= _DUST * max_position_L
    return torch.where(is_hold(direction_LE) | no_orders_LE | dust_LE, state.position_LE, wanted_LE)
