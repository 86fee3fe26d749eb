"""How an order fills in the bar after the decision: deterministic, causal, in points.

Legend: L lanes, E episodes. Everything is signed in the real market. ``now`` is the bar at whose close the order was
sent, ``next`` the bar in which it fills.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.env.actions import Order, Urgency
from trainer.env.state import EnvParams
from trainer.market.market import Market


@dataclass(frozen=True)
class Bars:
    """Rows of the market at ``now`` and ``next``, all ``[L, E]``."""

    close_LE: Tensor
    spread_LE: Tensor
    next_open_LE: Tensor
    next_high_LE: Tensor
    next_low_LE: Tensor
    next_close_LE: Tensor
    next_spread_LE: Tensor
    next_funding_LE: Tensor


@dataclass(frozen=True)
class Fill:
    """What an order got."""

    position_LE: Tensor  # contracts held afterwards
    quantity_LE: Tensor  # signed change of position; 0 without a fill
    price_LE: Tensor  # points; the next close where nothing filled
    crossed_LE: Tensor  # points paid to cross the spread, per contract; 0 for passive fills


def gather_bars(market: Market, bar_LE: Tensor, next_LE: Tensor) -> Bars:
    return Bars(
        close_LE=market.close_N[bar_LE],
        spread_LE=market.spread_N[bar_LE],
        next_open_LE=market.open_N[next_LE],
        next_high_LE=market.high_N[next_LE],
        next_low_LE=market.low_N[next_LE],
        next_close_LE=market.close_N[next_LE],
        next_spread_LE=market.spread_N[next_LE],
        next_funding_LE=market.funding_N[next_LE],
    )


def fill_order(
    params: EnvParams, bars: Bars, position_LE: Tensor, target_LE: Tensor, order_LE: Tensor, urgency_LE: Tensor
) -> Fill:
    """Move ``position_LE`` toward ``target_LE``.

    A market order fills at the next open, plus half the spread known at the decision. A passive order rests at the
    touch (limit) or the mid (peg) of the decision and fills, at its own price and never better, only if the next bar
    trades through that price by a tick. Where it does not, urgency crosses none, half or all of it at the next close,
    plus half the spread there. ``cost_scale`` multiplies the spread that crossing pays; a passive order never earns
    more than the real spread, and none where costs are switched off. A fill without a price (NaN) does not happen.
    """
    change_LE = target_LE - position_LE
    side_LE = torch.sign(change_LE)
    scale_L = params.cost_scale_L[:, None]
    half_LE = bars.spread_LE * 0.5

    is_market_LE = order_LE == Order.MARKET
    resting_LE = torch.where(order_LE == Order.LIMIT, side_LE * half_LE * scale_L.clamp(max=1.0), 0.0)
    limit_LE = bars.close_LE - resting_LE
    extreme_LE = torch.where(side_LE > 0, bars.next_low_LE, bars.next_high_LE)
    through_LE = (limit_LE - extreme_LE) * side_LE >= params.tick_L[:, None] - 1e-9

    open_cross_LE = half_LE * scale_L
    close_cross_LE = bars.next_spread_LE * 0.5 * scale_L
    passive_LE = ~is_market_LE & through_LE
    crossed_LE = torch.where(is_market_LE, open_cross_LE, torch.where(passive_LE, 0.0, close_cross_LE))
    base_LE = torch.where(is_market_LE, bars.next_open_LE, torch.where(passive_LE, limit_LE, bars.next_close_LE))
    price_LE = base_LE + side_LE * crossed_LE

    full_LE = is_market_LE | passive_LE | (urgency_LE == Urgency.URGENT)
    half_way_LE = position_LE + whole(params, change_LE * 0.5)
    after_LE = torch.where(full_LE, target_LE, torch.where(urgency_LE == Urgency.NORMAL, half_way_LE, position_LE))
    after_LE = torch.where(price_LE.isfinite(), after_LE, position_LE)
    quantity_LE = after_LE - position_LE
    return Fill(
        position_LE=after_LE,
        quantity_LE=quantity_LE,
        price_LE=torch.where(quantity_LE == 0.0, bars.next_close_LE, price_LE),
        crossed_LE=torch.where(quantity_LE == 0.0, 0.0, crossed_LE),
    )


def whole(params: EnvParams, contracts_LE: Tensor) -> Tensor:
    """Round toward zero to whole lots where the lane trades whole lots."""
    lot_L = params.lot_L[:, None]
    lots_LE = torch.floor(contracts_LE.abs() / lot_L + 1e-9) * lot_L * torch.sign(contracts_LE)
    return torch.where(params.whole_lots_L[:, None], lots_LE, contracts_LE)
