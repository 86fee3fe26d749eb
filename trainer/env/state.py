"""Records of the environment and how an episode starts.

Legend: L lanes, E parallel episodes per lane. Money, positions and prices are float64; positions are contracts, signed
in the real market (a mirrored episode shows them to its agent with the other sign).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.env.actions import Direction
from trainer.env.config import EnvConfig
from trainer.errors import UserError
from trainer.lanes.tree import stack_dynamic
from trainer.market.instrument import Instrument
from trainer.market.market import Market


@dataclass(frozen=True)
class EnvParams:
    """Everything ``env_step`` reads besides market and state: ``[L]`` float64 (flags bool).

    ``health_L`` in [0, 1] belongs to the trainer, which rewrites it in place (S6).
    """

    tick_L: Tensor  # points
    multiplier_L: Tensor  # money per point and contract
    commission_rate_L: Tensor  # share of notional per side
    margin_fraction_L: Tensor  # share of notional
    lot_L: Tensor  # contracts
    reward_unit_L: Tensor  # money per 1 of reward
    health_L: Tensor
    whole_lots_L: Tensor  # bool
    session_episodes_L: Tensor  # bool
    late_L: Tensor  # bool, orders travel one extra bar
    capital_L: Tensor
    max_position_L: Tensor
    episode_bars_L: Tensor
    ruin_fraction_L: Tensor
    cost_scale_L: Tensor
    transaction_cost_weight_L: Tensor
    drawdown_weight_L: Tensor
    drawdown_full_L: Tensor
    churn_penalty_scale_L: Tensor
    churn_threshold_bars_L: Tensor
    holding_cost_rate_L: Tensor
    kelly_floor_L: Tensor
    kelly_maturity_trades_L: Tensor
    kelly_minimum_L: Tensor
    kelly_prior_trades_L: Tensor


@dataclass(frozen=True)
class EnvState:
    """Episodes in progress, all ``[L, E]`` (``pending_LE4`` has the action's four columns)."""

    bar_LE: Tensor  # int64, the bar at whose close the agent stands
    end_LE: Tensor  # int64, last bar the episode may reach
    mirror_LE: Tensor  # bool
    done_LE: Tensor  # bool, over: further steps change nothing and pay 0
    position_LE: Tensor  # contracts
    entry_LE: Tensor  # points, average price of the open position; 0 when flat
    equity_LE: Tensor  # money
    peak_LE: Tensor  # money, highest equity so far
    trip_LE: Tensor  # money, net profit since the open position was opened
    wins_LE: Tensor  # closed round trips with a profit
    losses_LE: Tensor  # the others
    win_sum_LE: Tensor  # money, sum of their profits
    loss_sum_LE: Tensor  # money, sum of their losses, positive
    side_LE: Tensor  # -1, 0, +1: direction of the latest position, kept while flat
    side_bars_LE: Tensor  # bars since that direction was taken
    pending_LE4: Tensor  # int64, action still travelling (latency)


def make_params(
    configs: Sequence[EnvConfig], instrument: Instrument, reward_unit_L: Tensor, device: torch.device
) -> EnvParams:
    """Stack one config per lane; ``reward_unit_L`` is ``[L]``, money per 1 of reward (:func:`reward_unit`).

    Raises:
        UserError: whole lots so large that the cold-start cap never lets one trade.
    """
    for config in configs:
        if config.whole_lots and config.max_position * config.kelly_floor < instrument.lot:
            raise UserError(
                f"env.max_position {config.max_position:g} with env.whole_lots: the cold-start cap of "
                f"env.kelly_floor {config.kelly_floor:g} leaves less than one lot of {instrument.lot:g}; "
                f"give at least {instrument.lot / config.kelly_floor:g}"
            )

    def same(value: float) -> Tensor:
        return torch.full((len(configs),), value, dtype=torch.float64, device=device)

    def flags(values: list[bool]) -> Tensor:
        return torch.tensor(values, dtype=torch.bool, device=device)

    return stack_dynamic(
        EnvParams,
        configs,
        device,
        tick_L=same(instrument.tick),
        multiplier_L=same(instrument.multiplier),
        commission_rate_L=same(instrument.commission_bps * 1e-4),
        margin_fraction_L=same(instrument.margin_fraction),
        lot_L=same(instrument.lot),
        reward_unit_L=reward_unit_L.to(device=device, dtype=torch.float64),
        health_L=same(1.0),
        whole_lots_L=flags([config.whole_lots for config in configs]),
        session_episodes_L=flags([config.session_episodes for config in configs]),
        late_L=flags([config.latency_bars == 1 for config in configs]),
    )


def reset(params: EnvParams, market: Market, bar_LE: Tensor, end_LE: Tensor, mirror_LE: Tensor) -> EnvState:
    """Fresh episodes that stand at the close of ``bar_LE``: nothing is carried over from earlier ones."""
    end_LE = end_LE.clamp(max=market.bars - 1)

    def zero() -> Tensor:  # one tensor per field: lanes are overwritten in place
        return torch.zeros_like(bar_LE, dtype=torch.float64)

    return EnvState(
        bar_LE=bar_LE,
        end_LE=end_LE,
        mirror_LE=mirror_LE,
        done_LE=bar_LE >= end_LE,
        position_LE=zero(),
        entry_LE=zero(),
        equity_LE=zero() + params.capital_L[:, None],
        peak_LE=zero() + params.capital_L[:, None],
        trip_LE=zero(),
        wins_LE=zero(),
        losses_LE=zero(),
        win_sum_LE=zero(),
        loss_sum_LE=zero(),
        side_LE=zero(),
        side_bars_LE=zero(),
        pending_LE4=torch.full((*bar_LE.shape, 4), int(Direction.HOLD), dtype=torch.int64, device=bar_LE.device),
    )


def episode_end(params: EnvParams, market: Market, bar_LE: Tensor, last_L: Tensor) -> Tensor:
    """Last bar of episodes that start at ``bar_LE``: the cut, the lane's range ``last_L`` or, if asked, the session."""
    cut_LE = bar_LE + params.episode_bars_L.long()[:, None]
    session_LE = bar_LE + market.bars_left_N[bar_LE]
    end_LE = torch.where(params.session_episodes_L[:, None], session_LE, cut_LE)
    return torch.minimum(end_LE, last_L[:, None])


def reward_unit(config: EnvConfig, instrument: Instrument, bar_move: float) -> float:
    """Money per 1 of reward: what ``max_position`` earns on the typical move over ``reward_unit_bars`` bars.

    ``bar_move`` is the standard deviation of one bar's change in points on the fold's train range; over n bars of a
    random walk it grows with the square root of n.
    """
    return bar_move * math.sqrt(config.reward_unit_bars) * instrument.multiplier * config.max_position
