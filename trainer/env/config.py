"""Numbers of the trading environment. Fees, tick, multiplier and margin belong to the instrument record instead."""

from __future__ import annotations

from trainer.fields import Frozen, dynamic, static


class EnvConfig(Frozen):
    """Capital, caps, reward weights and episode rules."""

    capital: float = dynamic(100_000.0, unit="money", gt=0, doc="equity at the start of an episode")
    max_position: float = dynamic(1.0, unit="contracts", gt=0, doc="position at magnitude 100 % and no cap")
    whole_lots: bool = static(False, doc="round positions toward zero to whole lots; else fractions trade")
    allow_overnight: bool = static(False, doc="hold across sessions; else the market flattens every session's last bar")
    session_episodes: bool = static(False, doc="each session is an episode and its last bar ends it for good")
    episode_bars: int = dynamic(512, unit="bars", ge=1, doc="an episode is cut after this many bars")
    ruin_fraction: float = dynamic(0.2, unit="share of capital", ge=0, lt=1, doc="equity at or below it ends all")
    latency_bars: int = static(0, unit="bars", ge=0, le=1, doc="extra bars an order travels before it can fill")
    cost_scale: float = dynamic(1.0, unit="", ge=0, le=10, doc="multiplies commission and crossed spread")

    transaction_cost_weight: float = dynamic(1.0, unit="", ge=0, le=10, doc="weight of costs in the reward; 1: real")
    drawdown_weight: float = dynamic(0.0, unit="reward", ge=0, le=10, doc="penalty per bar at a full drawdown")
    drawdown_full: float = dynamic(0.1, unit="share of peak", gt=0, le=1, doc="drawdown at which its penalty is full")
    churn_penalty_scale: float = dynamic(0.05, unit="reward", ge=0, le=10, doc="penalty of a flip right after the last")
    churn_threshold_bars: int = dynamic(8, unit="bars", ge=1, doc="age of a direction at which its flip is free")
    holding_cost_rate: float = dynamic(1e-4, unit="reward", ge=0, le=1, doc="penalty per bar of holding max_position")
    reward_unit_bars: float = dynamic(
        16.0, unit="bars", gt=0, doc="reward 1 is the typical move of max_position over this many bars"
    )

    kelly_floor: float = dynamic(0.5, unit="share", gt=0, le=1, doc="Kelly share before any trade")
    kelly_maturity_trades: float = dynamic(10.0, unit="trades", ge=1, doc="trades until the floor no longer counts")
    kelly_minimum: float = dynamic(
        0.1, unit="share", ge=0, le=1, doc="least Kelly share: at 0 a losing run could never trade again"
    )
    kelly_prior_trades: float = dynamic(
        2.0, unit="trades", gt=0, doc="balanced prior: this many wins and as many losses of one reward unit each"
    )
