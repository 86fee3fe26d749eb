"""What an epoch reports: plain numbers per fold, for people, tracking and the scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from trainer.evaluation.metrics import BacktestMetrics

MECHANICAL_GAP = 1e-3
"""Q-gap, in deviations of reward, below which a network counts as indifferent between its actions."""


@dataclass(frozen=True)
class FoldReport:
    """One lane after an epoch: training numbers by name, and the backtest on its validation range where it had one."""

    fold: int
    training: Mapping[str, float]
    validation: BacktestMetrics | None

    @property
    def failed(self) -> str | None:
        """Why this fold cannot go on, or None."""
        bad = [name for name, value in self.training.items() if not math.isfinite(value)]
        return f"fold {self.fold}: {', '.join(bad)} not finite" if bad else None

    @property
    def mechanical_bias(self) -> bool:
        """A Sharpe without a Q-gap: the network cannot tell actions apart, so nothing was learned (S29)."""
        if self.validation is None:
            return False
        indifferent = self.training["q_gap"] < MECHANICAL_GAP * self.training["sigma"]
        return indifferent and self.validation.sharpe != 0.0

    def numbers(self) -> dict[str, float]:
        """Everything as ``name -> value``."""
        values = dict(self.training)
        if self.validation is not None:
            metrics = self.validation
            values |= {
                "val_sharpe": metrics.sharpe,
                "val_raw_sharpe": metrics.raw_sharpe,
                "val_max_drawdown": metrics.max_drawdown_share,
                "val_trades": float(metrics.trades),
                "val_turnover": metrics.turnover,
                "val_win_rate": metrics.win_rate,
                "val_profit": metrics.profit,
                "val_exposure": metrics.exposure,
                "mechanical_bias": float(self.mechanical_bias),
            }
        return values


@dataclass(frozen=True)
class TrialReport:
    """One trial after an epoch."""

    trial_id: str
    epoch: int  # epochs finished
    folds: tuple[FoldReport, ...]
    phase_seconds: Mapping[str, float] = field(default_factory=dict)  # of the whole group
    capacity: int = 0  # rows of the lane group in this epoch, idle ones included: what a rerun on a GPU replays
    untrained: tuple[float, ...] = ()  # the first epoch's: validation Sharpe of each fold's untrained agent

    @property
    def failed(self) -> str | None:
        """One failed fold fails the trial."""
        reasons = [fold.failed for fold in self.folds if fold.failed is not None]
        return "; ".join(reasons) if reasons else None

    def metrics(self) -> dict[str, float]:
        """``fold_0/val_sharpe`` and so on."""
        return {f"fold_{fold.fold}/{name}": value for fold in self.folds for name, value in fold.numbers().items()}


def fold_score(sharpes: Sequence[float], score_epochs: int) -> float:
    """Validation Sharpe averaged over the last ``score_epochs`` validations: never the best, a maximum over looks."""
    return mean(sharpes[-score_epochs:])


def trial_score(sharpes_by_fold: Sequence[Sequence[float]], score_epochs: int) -> float:
    """Median over folds of :func:`fold_score`."""
    return median(fold_score(sharpes, score_epochs) for sharpes in sharpes_by_fold)
