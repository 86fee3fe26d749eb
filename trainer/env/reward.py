"""The reward (S1): equity change and penalties, in a record whose terms sum to it.

Penalties are counted in units of reward: ``weight * intensity``, the intensity clamped to [0, 1]. With every penalty
weight 0 and ``transaction_cost_weight`` 1 the rewards of an episode sum to its change of equity over ``reward_unit``.

Legend: L lanes, E episodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.env.state import EnvParams


@dataclass(frozen=True)
class RewardTerms:
    """Signed parts of the reward, ``[L, E]`` float64 in units of reward; penalties are negative."""

    profit_LE: Tensor  # equity change before costs
    transaction_LE: Tensor  # commission and crossed spread
    drawdown_LE: Tensor
    churn_LE: Tensor
    holding_LE: Tensor

    def total(self) -> Tensor:
        return self.profit_LE + self.transaction_LE + self.drawdown_LE + self.churn_LE + self.holding_LE


def reward_terms(
    params: EnvParams,
    change_LE: Tensor,
    cost_LE: Tensor,
    drawdown_LE: Tensor,
    flip_LE: Tensor,
    side_bars_LE: Tensor,
    position_LE: Tensor,
) -> RewardTerms:
    """Terms of one bar.

    Args:
        change_LE: equity change, net, money.
        cost_LE: costs paid within it, money.
        drawdown_LE: share of the peak below which equity stands after the bar.
        flip_LE: the order took the opposite direction of the latest position.
        side_bars_LE: bars since that direction had been taken.
        position_LE: contracts held through the rest of the bar.
    """
    inventory_LE = (position_LE.abs() / params.max_position_L[:, None]).clamp(max=1.0)
    drawdown_LE = (drawdown_LE / params.drawdown_full_L[:, None]).clamp(0.0, 1.0)
    churn_LE = torch.where(flip_LE, churn_intensity(params, side_bars_LE), 0.0)
    unit_L = params.reward_unit_L[:, None]
    return RewardTerms(
        profit_LE=(change_LE + cost_LE) / unit_L,
        transaction_LE=cost_LE / unit_L * -params.transaction_cost_weight_L[:, None],
        drawdown_LE=drawdown_LE * -params.drawdown_weight_L[:, None],
        churn_LE=churn_LE * -params.churn_penalty_scale_L[:, None],
        holding_LE=inventory_LE * -params.holding_cost_rate_L[:, None],
    )


def churn_intensity(params: EnvParams, side_bars_LE: Tensor) -> Tensor:
    """1 for a flip 0 bars after the direction was taken, fading linearly to 0 at ``churn_threshold_bars`` (S8)."""
    return (1.0 - side_bars_LE / params.churn_threshold_bars_L[:, None]).clamp(0.0, 1.0)
