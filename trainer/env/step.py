"""One bar of trading. Training, validation and the Gymnasium adapters all call :func:`env_step` (S7).

At the close of bar t the agent has seen row t and chosen an action. ``env_step`` moves to the close of bar t + 1: the
order fills in that bar, what is held earns ``close[t] -> fill -> close[t + 1]``, costs and funding are charged, and
where the market says so (session end, contract roll) what is left is closed at the bar's close, so that nothing is ever
booked across a gap. Pure, without branches on values, same shapes always: it can be captured in a CUDA graph.

Legend: L lanes, E episodes.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from trainer.env.costs import commission, money
from trainer.env.fills import Fill, fill_order, gather_bars, whole
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
    bar_LE = state.bar_LE
    next_LE = bar_LE + alive_LE.long()
    bars = gather_bars(market, bar_LE, next_LE)
    no_orders_LE = market.flat_N[bar_LE] | state.done_LE
    before_LE = state.position_LE

    # decide: caps, then target, then execution
    arriving_LE4 = torch.where(params.late_L[:, None, None], state.pending_LE4, action_LE4)
    target_LE = target_position(params, state, bars.close_LE, arriving_LE4, no_orders_LE)
    fill = fill_order(params, bars, before_LE, target_LE, arriving_LE4[..., ORDER], arriving_LE4[..., URGENCY])
    held_LE = fill.position_LE
    commission_LE = commission(params, fill.quantity_LE, fill.price_LE)
    crossing_LE = money(params, fill.quantity_LE.abs(), fill.crossed_LE)

    # earn: close -> fill -> next close, and funding at the close
    until_fill_LE = money(params, before_LE, fill.price_LE - bars.close_LE)
    after_fill_LE = money(params, held_LE, bars.next_close_LE - fill.price_LE)
    funding_LE = torch.where(alive_LE, money(params, held_LE, bars.next_close_LE * bars.next_funding_LE), 0.0)
    marked_LE = state.equity_LE + until_fill_LE + after_fill_LE - commission_LE - funding_LE

    # close what may not be carried on
    last_LE = (next_LE == market.bars - 1) | (params.session_episodes_L[:, None] & (market.bars_left_N[next_LE] == 0))
    must_close_LE = market.flat_N[next_LE] | last_LE
    crossed_LE = bars.next_spread_LE * 0.5 * params.cost_scale_L[:, None]
    exit_price_LE = bars.next_close_LE - torch.sign(held_LE) * crossed_LE
    exit_LE = commission(params, held_LE, exit_price_LE) + money(params, held_LE.abs(), crossed_LE)
    threshold_L = (params.ruin_fraction_L * params.capital_L)[:, None]
    ruined_LE = marked_LE - torch.where(must_close_LE, exit_LE, 0.0) <= threshold_L
    close_LE = must_close_LE | ruined_LE
    exit_LE = torch.where(close_LE, exit_LE, 0.0)
    equity_LE = (marked_LE - exit_LE).clamp(min=0.0)  # a gap through ruin loses what was there, not more
    position_LE = torch.where(close_LE, 0.0, held_LE)

    # book round trips: the order's leg first, then the forced close
    closed_LE = (before_LE != 0.0) & (before_LE * held_LE <= 0.0)
    closing_share_LE = torch.where(closed_LE, (before_LE / fill.quantity_LE).abs(), 1.0)
    closing_LE = commission_LE * closing_share_LE
    order_trip_LE = state.trip_LE + until_fill_LE - closing_LE
    trip_LE = torch.where(closed_LE, 0.0, order_trip_LE) + after_fill_LE - (commission_LE - closing_LE) - funding_LE
    forced_LE = close_LE & (held_LE != 0.0)
    forced_trip_LE = trip_LE - exit_LE
    won_LE = (closed_LE & (order_trip_LE > 0.0)).double() + (forced_LE & (forced_trip_LE > 0.0)).double()
    trips_LE = closed_LE.double() + forced_LE.double()
    gain_LE = torch.where(closed_LE, order_trip_LE.clamp(min=0.0), 0.0)
    gain_LE = gain_LE + torch.where(forced_LE, forced_trip_LE.clamp(min=0.0), 0.0)
    booked_LE = torch.where(closed_LE, order_trip_LE, 0.0) + torch.where(forced_LE, forced_trip_LE, 0.0)

    # pay
    held_side_LE = torch.sign(held_LE)
    flip_LE = held_side_LE * state.side_LE < 0.0
    taken_LE = (held_LE != 0.0) & (held_side_LE != state.side_LE)
    peak_LE = torch.maximum(state.peak_LE, equity_LE)
    change_LE = equity_LE - state.equity_LE
    cost_LE = commission_LE + crossing_LE + exit_LE
    terms = reward_terms(
        params,
        change_LE=change_LE,
        cost_LE=cost_LE,
        drawdown_LE=torch.where(alive_LE, 1.0 - equity_LE / peak_LE, 0.0),
        flip_LE=flip_LE,
        side_bars_LE=state.side_bars_LE + 1.0,
        position_LE=torch.where(alive_LE, held_LE, 0.0),
    )

    terminated_LE = (ruined_LE | last_LE) & alive_LE
    truncated_LE = (next_LE >= state.end_LE) & alive_LE & ~terminated_LE
    after = EnvState(
        bar_LE=next_LE,
        end_LE=state.end_LE,
        mirror_LE=state.mirror_LE,
        done_LE=state.done_LE | terminated_LE | truncated_LE,
        position_LE=position_LE,
        entry_LE=entry_price(state, fill, closed_LE, close_LE),
        equity_LE=equity_LE,
        peak_LE=peak_LE,
        trip_LE=torch.where(close_LE, 0.0, trip_LE),
        wins_LE=state.wins_LE + won_LE,
        losses_LE=state.losses_LE + (trips_LE - won_LE),
        win_sum_LE=state.win_sum_LE + gain_LE,
        loss_sum_LE=state.loss_sum_LE + (gain_LE - booked_LE),
        side_LE=torch.where(taken_LE, held_side_LE, state.side_LE),
        side_bars_LE=torch.where(taken_LE, 0.0, state.side_bars_LE + 1.0),
        pending_LE4=torch.where(no_orders_LE.unsqueeze(-1), int(Direction.HOLD), action_LE4),
    )
    info = StepInfo(
        change_LE=change_LE,
        cost_LE=cost_LE,
        funding_LE=funding_LE,
        quantity_LE=fill.quantity_LE,
        price_LE=fill.price_LE,
        turnover_LE=fill.quantity_LE.abs() + torch.where(close_LE, held_LE.abs(), 0.0),
        closed_LE=trips_LE,
        booked_LE=booked_LE,
        terms=terms,
    )
    return Step(after, terms.total(), terminated_LE, truncated_LE, info)


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


def entry_price(state: EnvState, fill: Fill, closed_LE: Tensor, close_LE: Tensor) -> Tensor:
    """Average entry price of the position held after the bar, ``[L, E]``; 0 when flat.

    A flip closes, then opens: the new leg's price is its own fill. Adding averages; reducing keeps.
    """
    size_LE, before_LE = fill.position_LE.abs(), state.position_LE.abs()
    averaged_LE = (before_LE * state.entry_LE + (size_LE - before_LE) * fill.price_LE) / size_LE
    fresh_LE = closed_LE | (before_LE == 0.0)
    entry_LE = torch.where(fresh_LE, fill.price_LE, torch.where(size_LE > before_LE, averaged_LE, state.entry_LE))
    return torch.where(close_LE | (size_LE == 0.0), 0.0, entry_LE)
