"""Settings of the backtest evaluator (S42). No torch here: thin clients read configs too."""

from __future__ import annotations

from trainer.fields import Frozen, dynamic, static


class EvaluationConfig(Frozen):
    """When a backtest counts, and what its Sharpe is held against."""

    min_trades: int = dynamic(
        5, unit="round trips", ge=0, le=1_000_000, doc="fewer closed trades than this give a Sharpe of 0 and a flag"
    )
    benchmark_sharpe: float = dynamic(
        0.0, unit="annualised Sharpe", ge=-10.0, le=10.0, doc="Sharpe that the probabilistic Sharpe ratio must exceed"
    )
    symmetric: bool = static(
        False, doc="act on the mean of what the agent values in the market and in its mirror; off where drift counts"
    )
