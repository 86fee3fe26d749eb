"""The money of one bar, in order: what is held earns, what may not be carried on is closed, round trips are booked.

Each stage reads the records of the stages before it. Everything is signed in the real market; money and contracts are
float64. ``now`` and ``next`` as in :mod:`trainer.env.fills`.

Legend: L lanes, E episodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.env.costs import commission, money
from trainer.env.fills import Bars, Fill
from trainer.env.state import EnvParams, EnvState
from trainer.market.market import Market


@dataclass(frozen=True)
class Earned:
    """What the bar brought before anything is closed, money, ``[L, E]``."""

    until_fill_LE: Tensor  # on the position before the order: close -> fill
    after_fill_LE: Tensor  # on the position after it: fill -> next close
    commission_LE: Tensor  # of the order
    crossing_LE: Tensor  # spread that the order paid; it is in the fill's price already
    funding_LE: Tensor  # paid at the next close


@dataclass(frozen=True)
class Closing:
    """What ends at the next close, ``[L, E]``."""

    last_LE: Tensor  # bool, the episode ends here: end of data, or of a session that is an episode of its own
    ruined_LE: Tensor  # bool
    close_LE: Tensor  # bool, positions end flat: by these two, or because the market says so
    cost_LE: Tensor  # money, of closing what was held; 0 where nothing is closed
    equity_LE: Tensor  # money, after the bar


@dataclass(frozen=True)
class Trips:
    """Round trips of the bar, at most one closed by the order and one by force, ``[L, E]``."""

    turned_LE: Tensor  # bool, the order closed one
    open_LE: Tensor  # money, net profit so far of the position carried on
    closed_LE: Tensor  # how many
    won_LE: Tensor  # of them with a profit
    gain_LE: Tensor  # money, sum of the profits
    booked_LE: Tensor  # money, profits less losses


def earn(params: EnvParams, bars: Bars, state: EnvState, fill: Fill) -> Earned:
    """Close -> fill -> next close, with what the order costs, and funding at the close."""
    funding_LE = money(params, fill.position_LE, bars.next_close_LE * bars.next_funding_LE)
    return Earned(
        until_fill_LE=money(params, state.position_LE, fill.price_LE - bars.close_LE),
        after_fill_LE=money(params, fill.position_LE, bars.next_close_LE - fill.price_LE),
        commission_LE=commission(params, fill.quantity_LE, fill.price_LE),
        crossing_LE=money(params, fill.quantity_LE.abs(), fill.crossed_LE),
        funding_LE=torch.where(state.done_LE, 0.0, funding_LE),
    )


def close_out(
    params: EnvParams, market: Market, bars: Bars, next_LE: Tensor, state: EnvState, held_LE: Tensor, earned: Earned
) -> Closing:
    """Close ``held_LE`` at the next close where it may not be carried on: half the spread and commission are paid."""
    last_LE = (next_LE == market.bars - 1) | (params.session_episodes_L[:, None] & (market.bars_left_N[next_LE] == 0))
    must_LE = market.flat_N[next_LE] | last_LE
    crossed_LE = bars.next_spread_LE * 0.5 * params.cost_scale_L[:, None]
    price_LE = bars.next_close_LE - torch.sign(held_LE) * crossed_LE
    cost_LE = commission(params, held_LE, price_LE) + money(params, held_LE.abs(), crossed_LE)
    marked_LE = state.equity_LE + earned.until_fill_LE + earned.after_fill_LE - earned.commission_LE
    marked_LE = marked_LE - earned.funding_LE
    threshold_L = (params.ruin_fraction_L * params.capital_L)[:, None]
    ruined_LE = marked_LE - torch.where(must_LE, cost_LE, 0.0) <= threshold_L
    close_LE = must_LE | ruined_LE
    cost_LE = torch.where(close_LE, cost_LE, 0.0)
    equity_LE = (marked_LE - cost_LE).clamp(min=0.0)  # a gap through ruin loses what was there, not more
    return Closing(last_LE=last_LE, ruined_LE=ruined_LE, close_LE=close_LE, cost_LE=cost_LE, equity_LE=equity_LE)


def book_trips(state: EnvState, fill: Fill, earned: Earned, closing: Closing) -> Trips:
    """The order's leg first, then the forced close. A flip's commission is shared by its two legs' sizes."""
    before_LE, held_LE = state.position_LE, fill.position_LE
    turned_LE = (before_LE != 0.0) & (before_LE * held_LE <= 0.0)
    share_LE = torch.where(turned_LE, (before_LE / fill.quantity_LE).abs(), 1.0)
    leaving_LE = earned.commission_LE * share_LE
    entering_LE = earned.commission_LE - leaving_LE
    ordered_LE = state.trip_LE + earned.until_fill_LE - leaving_LE
    open_LE = torch.where(turned_LE, 0.0, ordered_LE) + earned.after_fill_LE - entering_LE - earned.funding_LE
    forced_LE = open_LE - closing.cost_LE
    is_forced_LE = closing.close_LE & (held_LE != 0.0)
    return Trips(
        turned_LE=turned_LE,
        open_LE=torch.where(closing.close_LE, 0.0, open_LE),
        closed_LE=turned_LE.double() + is_forced_LE.double(),
        won_LE=(turned_LE & (ordered_LE > 0.0)).double() + (is_forced_LE & (forced_LE > 0.0)).double(),
        gain_LE=_only(turned_LE, ordered_LE.clamp(min=0.0)) + _only(is_forced_LE, forced_LE.clamp(min=0.0)),
        booked_LE=_only(turned_LE, ordered_LE) + _only(is_forced_LE, forced_LE),
    )


def entry_price(state: EnvState, fill: Fill, turned_LE: Tensor, close_LE: Tensor) -> Tensor:
    """Average entry price of the position held after the bar, ``[L, E]``; 0 when flat.

    A flip closes, then opens: the new leg's price is its own fill. Adding averages; reducing keeps.
    """
    size_LE, before_LE = fill.position_LE.abs(), state.position_LE.abs()
    averaged_LE = (before_LE * state.entry_LE + (size_LE - before_LE) * fill.price_LE) / size_LE
    fresh_LE = turned_LE | (before_LE == 0.0)
    entry_LE = torch.where(fresh_LE, fill.price_LE, torch.where(size_LE > before_LE, averaged_LE, state.entry_LE))
    return torch.where(close_LE | (size_LE == 0.0), 0.0, entry_LE)


def _only(mask_LE: Tensor, money_LE: Tensor) -> Tensor:
    return torch.where(mask_LE, money_LE, 0.0)
