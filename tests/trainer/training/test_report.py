"""Scores and flags from hand-worked numbers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from trainer.evaluation.metrics import BacktestMetrics, BacktestPath, backtest_metrics
from trainer.training.report import FoldReport, TrialReport, fold_score, trial_score


def validation(returns: list[float]) -> BacktestMetrics:
    """A backtest of one session per return on a capital of 100."""
    steps = np.asarray(returns) * 100.0
    path = BacktestPath(
        capital=100.0,
        start_equity=100.0,
        equity_M=100.0 + np.cumsum(steps),
        session_M=np.arange(len(returns)),
        held_M=np.ones(len(returns)),
        notional_M=np.ones(len(returns)),
        wins=3,
        losses=1,
        win_sum=3.0,
        loss_sum=1.0,
    )
    return backtest_metrics(path, sessions_per_year=252.0, min_trades=0)


def fold(q_gap: float, returns: list[float] | None = None, **training: float) -> FoldReport:
    numbers = {"q_gap": q_gap, "sigma": 0.5, "loss": 1.0} | training
    return FoldReport(0, numbers, None if returns is None else validation(returns))


def test_a_fold_is_scored_by_the_mean_of_its_last_epochs_never_by_its_best() -> None:
    assert fold_score([9.0, 1.0, 2.0, 3.0], score_epochs=3) == 2.0
    assert fold_score([4.0], score_epochs=3) == 4.0


def test_a_trial_is_scored_by_the_median_of_its_folds() -> None:
    assert trial_score([[1.0, 1.0], [100.0, 100.0], [2.0, 4.0]], score_epochs=2) == 3.0


def test_a_sharpe_without_a_q_gap_is_mechanical_bias() -> None:
    assert fold(0.0004, [0.01, 0.02, -0.01]).mechanical_bias
    assert not fold(0.0006, [0.01, 0.02, -0.01]).mechanical_bias  # 0.001 of sigma = 0.0005
    assert not fold(0.0, [0.0, 0.0, 0.0]).mechanical_bias  # no Sharpe either: nothing to explain
    assert not fold(0.0).mechanical_bias


def test_one_failed_fold_fails_the_trial_and_is_named() -> None:
    sick = dataclasses.replace(fold(0.1, loss=math.nan), fold=2)
    report = TrialReport("t", 4, (fold(0.1), sick))
    assert report.failed == "fold 2: loss not finite"
    assert TrialReport("t", 4, (fold(0.1),)).failed is None


def test_numbers_are_named_by_fold() -> None:
    metrics = TrialReport("t", 1, (fold(0.1, [0.01, 0.03]),)).metrics()
    assert metrics["fold_0/q_gap"] == 0.1
    assert metrics["fold_0/val_sharpe"] == pytest.approx(0.02 / math.sqrt(2e-4) * math.sqrt(252.0))
    assert metrics["fold_0/val_trades"] == 4.0
