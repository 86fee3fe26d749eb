"""How large a position may be: the margin cap first, then the Kelly cap, then the order is executed (S4, S5, S6).

Legend: L lanes, E episodes. A *share* is a part of ``max_position``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.env.state import EnvParams, EnvState


def cap_share(params: EnvParams, state: EnvState, price_LE: Tensor) -> Tensor:
    """Largest target as a share of ``max_position``, ``[L, E]``: ``min(1, margin cap) * Kelly share * safety``.

    The margin cap bounds what capital could carry; Kelly then takes its share of what is left, so a thin margin and a
    poor record add up instead of the weaker one hiding the other. Without a price (NaN) nothing may be opened: 0.
    """
    return margin_share(params, state.equity_LE, price_LE) * kelly_share(params, state) * safety(params)[:, None]


def margin_share(params: EnvParams, equity_LE: Tensor, price_LE: Tensor) -> Tensor:
    """``min(1, equity / (price * multiplier * margin fraction * max_position))``, never below 0; 0 at a NaN price."""
    full_L = params.multiplier_L * params.margin_fraction_L * params.max_position_L
    return (equity_LE / (price_LE * full_L[:, None])).nan_to_num(0.0).clamp(0.0, 1.0)


def kelly_share(params: EnvParams, state: EnvState) -> Tensor:
    """``maturity * kelly + (1 - maturity) * kelly_floor`` with ``maturity = min(1, trades / kelly_maturity_trades)``.

    Kelly's fraction for a bet that wins ``b`` times its stake with probability ``p`` is ``f = p - (1 - p) / b`` (Kelly
    1956); ``p`` and ``b`` (mean win over mean loss) come from the episode's round trips plus a balanced prior.
    """
    prior_L = params.kelly_prior_trades_L[:, None]
    prior_money_L = (params.kelly_prior_trades_L * params.reward_unit_L)[:, None]
    trades_LE = state.wins_LE + state.losses_LE
    wins_LE = state.wins_LE + prior_L
    total_LE = trades_LE + 2.0 * prior_L
    # (1 - p) / b = losses / total * (loss_sum / losses) / (win_sum / wins) = loss_sum * wins / (win_sum * total)
    ratio_LE = (state.loss_sum_LE + prior_money_L) / (state.win_sum_LE + prior_money_L)
    kelly_LE = (wins_LE - wins_LE * ratio_LE) / total_LE
    kelly_LE = torch.maximum(kelly_LE, params.kelly_minimum_L[:, None]).clamp(max=1.0)
    maturity_LE = (trades_LE / params.kelly_maturity_trades_L[:, None]).clamp(max=1.0)
    return maturity_LE * kelly_LE + (1.0 - maturity_LE) * params.kelly_floor_L[:, None]


def safety(params: EnvParams) -> Tensor:
    """``0.5 + 0.5 * health`` (S6), ``[L]``."""
    return 0.5 + 0.5 * params.health_L
