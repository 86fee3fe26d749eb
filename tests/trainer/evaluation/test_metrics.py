"""Backtest metrics (S42): hand-worked, then against independent libraries."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import kurtosis, skew

from trainer.evaluation.config import EvaluationConfig
from trainer.evaluation.metrics import (
    BacktestMetrics,
    BacktestPath,
    Flag,
    backtest_metrics,
    max_drawdown,
    probabilistic_sharpe,
    probabilistic_sharpe_of_moments,
    session_returns,
)
from trainer.market.bars_table import Floats

# Four sessions of two bars on a capital of 1,000: +20, -10, +30 and 0.
HAND = BacktestPath(
    capital=1000.0,
    start_equity=1000.0,
    equity_M=np.array([1030.0, 1020.0, 1000.0, 1010.0, 1010.0, 1040.0, 1040.0, 1040.0]),
    session_M=np.array([3, 3, 4, 4, 5, 5, 6, 6]),
    held_M=np.array([1.0, 1.0, -0.5, -0.5, 0.0, 1.0, 0.0, 0.0]),
    notional_M=np.array([500.0, 500.0, 250.0, 250.0, 0.0, 1000.0, 0.0, 0.0]),
    wins=2,
    losses=1,
    win_sum=50.0,
    loss_sum=10.0,
)


def evaluate(path: BacktestPath, min_trades: int = 0) -> BacktestMetrics:
    return backtest_metrics(path, sessions_per_year=250.0, min_trades=min_trades)


def path_of(returns_S: Floats, capital: float = 1000.0) -> BacktestPath:
    """One bar per session that earns this share of the capital."""
    return replace(
        HAND,
        capital=capital,
        start_equity=capital,
        equity_M=capital * (1.0 + np.cumsum(returns_S)),
        session_M=np.arange(len(returns_S)),
        held_M=np.ones(len(returns_S)),
        notional_M=np.zeros(len(returns_S)),
    )


def test_session_returns_are_equity_changes_over_the_capital() -> None:
    assert session_returns(HAND) == pytest.approx([0.02, -0.01, 0.03, 0.0])


def test_sharpe_is_of_session_returns_annualised_by_the_sessions_of_a_year() -> None:
    # mean 0.01; squared deviations 1e-4 (1 + 4 + 4 + 1) = 1e-3; sample variance 1e-3 / 3
    metrics = evaluate(HAND)
    assert metrics.sharpe == pytest.approx(0.01 / math.sqrt(1e-3 / 3) * math.sqrt(250))
    assert metrics.annual_return == pytest.approx(2.5)
    crypto = backtest_metrics(HAND, sessions_per_year=365.0, min_trades=0)
    assert crypto.sharpe / metrics.sharpe == pytest.approx(math.sqrt(365 / 250))


def test_raw_sharpe_is_bar_wise_and_not_annualised() -> None:
    # bars earn 30, -10, -20, 10, 0, 30, 0, 0: mean 5, sum of squares 2400, sample variance (2400 - 8 x 25) / 7
    assert evaluate(HAND).raw_sharpe == pytest.approx(5.0 / math.sqrt(2200 / 7))


def test_sortino_counts_every_session_in_the_downside() -> None:
    assert evaluate(HAND).sortino == pytest.approx(0.01 / math.sqrt(1e-4 / 4) * math.sqrt(250))


def test_drawdown_is_from_the_highest_equity_in_money_and_share() -> None:
    metrics = evaluate(HAND)
    assert metrics.max_drawdown == 30.0
    assert metrics.max_drawdown_share == pytest.approx(30 / 1030)
    assert metrics.calmar == pytest.approx(2.5 / (30 / 1030))
    assert max_drawdown(np.array([100.0, 50.0, 400.0, 300.0])) == (100.0, 0.5)  # each its own maximum


def test_drawdown_counts_a_loss_in_the_very_first_bar() -> None:
    assert evaluate(replace(HAND, equity_M=np.full(8, 900.0))).max_drawdown == 100.0


def test_trades_exposure_and_turnover() -> None:
    metrics = evaluate(HAND)
    assert (metrics.trades, metrics.sessions) == (3, 4)
    assert metrics.win_rate == pytest.approx(2 / 3)
    assert metrics.profit_factor == 5.0
    assert metrics.exposure == 5 / 8
    assert metrics.average_holding == pytest.approx(5 / 3)
    assert metrics.turnover == pytest.approx(2500 / 1000 / 4)
    assert metrics.profit == 40.0


def test_no_trades_give_zeros_and_a_flag() -> None:
    idle = replace(path_of(np.zeros(5)), held_M=np.zeros(5), wins=0, losses=0, win_sum=0.0, loss_sum=0.0)
    metrics = evaluate(idle)
    assert (metrics.sharpe, metrics.sortino, metrics.calmar, metrics.raw_sharpe) == (0.0, 0.0, 0.0, 0.0)
    assert (metrics.win_rate, metrics.profit_factor, metrics.average_holding) == (0.0, 0.0, 0.0)
    assert metrics.probabilistic_sharpe == 0.0
    assert metrics.flag is Flag.NO_VARIANCE
    assert evaluate(idle, min_trades=EvaluationConfig().min_trades).flag is Flag.FEW_TRADES


def test_fewer_trades_than_the_minimum_give_zero_and_a_flag() -> None:
    assert evaluate(HAND, min_trades=3).flag is Flag.OK
    few = evaluate(HAND, min_trades=4)
    assert (few.sharpe, few.flag) == (0.0, Flag.FEW_TRADES)
    assert few.profit == 40.0


@pytest.mark.parametrize("earned", [0.0, 0.001, 0.1, -0.07])
def test_constant_returns_give_zero_not_a_quotient_of_rounding(earned: float) -> None:
    metrics = evaluate(path_of(np.full(50, earned)))
    assert (metrics.sharpe, metrics.probabilistic_sharpe, metrics.flag) == (0.0, 0.0, Flag.NO_VARIANCE)


def test_one_session_has_no_variance() -> None:
    assert evaluate(path_of(np.array([0.01]))).flag is Flag.NO_VARIANCE


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_failed_lane_is_flagged(bad: float) -> None:
    equity_M = HAND.equity_M.copy()
    equity_M[3:] = bad
    metrics = evaluate(replace(HAND, equity_M=equity_M))
    assert (metrics.sharpe, metrics.flag) == (0.0, Flag.NOT_FINITE)


def test_profit_factor_without_losses_is_infinite() -> None:
    assert evaluate(replace(HAND, losses=0, loss_sum=0.0)).profit_factor == math.inf


def test_probabilistic_sharpe_takes_the_kurtosis_itself() -> None:
    """Bailey & Lopez de Prado's fund: 24 months, Sharpe 1.585 a year, skew -2.448, kurtosis 10.164.

    Taking the excess of 3 off before the formula takes it off again gives 0.91984.
    """

    def probability(kurtosis: float) -> float:
        monthly = 1.585 / math.sqrt(12)
        return probabilistic_sharpe_of_moments(
            sharpe=monthly, benchmark=0.0, observations=24, skew=-2.448, kurtosis=kurtosis
        )

    assert probability(10.164) == pytest.approx(0.91323, abs=5e-6)
    assert probability(10.164 - 3.0) == pytest.approx(0.91984, abs=5e-6)


def test_probabilistic_sharpe_by_hand() -> None:
    # returns 0, 0.02: mean 0.01, sample deviation 0.0141421, Sharpe 0.707107; skew 0, kurtosis 1: variance 1
    assert probabilistic_sharpe(np.array([0.0, 0.02]), 0.0) == pytest.approx(ndtr(math.sqrt(0.5)))
    assert probabilistic_sharpe(np.array([0.0, 0.02]), math.sqrt(0.5)) == pytest.approx(0.5)


def test_the_benchmark_sharpe_is_annualised() -> None:
    own = evaluate(HAND).sharpe
    metrics = backtest_metrics(HAND, sessions_per_year=250.0, min_trades=0, benchmark_sharpe=own)
    assert metrics.probabilistic_sharpe == pytest.approx(0.5)


returns = st.lists(st.floats(-0.05, 0.05), min_size=3, max_size=60).filter(lambda values: np.std(values) > 1e-4)


@settings(max_examples=60, deadline=None)
@given(returns)
def test_probabilistic_sharpe_equals_scipys_moments(values: list[float]) -> None:
    returns_S = np.array(values)
    sharpe = np.mean(returns_S) / np.std(returns_S, ddof=1)
    inner = 1.0 - skew(returns_S) * sharpe + (kurtosis(returns_S, fisher=True) + 2.0) / 4.0 * sharpe**2
    if inner > 1e-6:
        expected = ndtr((sharpe - 0.1) * math.sqrt(len(values) - 1) / math.sqrt(inner))
        assert probabilistic_sharpe(returns_S, 0.1) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(returns)
def test_ratios_equal_an_independent_library(values: list[float]) -> None:
    empyrical = import_module("empyrical")
    returns_S = np.array(values)
    metrics = evaluate(path_of(returns_S))
    assert metrics.sharpe == pytest.approx(empyrical.sharpe_ratio(returns_S, annualization=250), rel=1e-6, abs=1e-9)
    if np.min(returns_S) < -1e-6:
        sortino = empyrical.sortino_ratio(returns_S, annualization=250)
        assert metrics.sortino == pytest.approx(sortino, rel=1e-6, abs=1e-9)
    equity = np.concatenate([[1.0], 1.0 + np.cumsum(returns_S)])
    if np.all(equity > 0.1):
        compounded = equity[1:] / equity[:-1] - 1.0
        assert metrics.max_drawdown_share == pytest.approx(-empyrical.max_drawdown(compounded), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(returns, st.floats(0.1, 1e7))
def test_ratios_do_not_depend_on_the_currency(values: list[float], capital: float) -> None:
    one, other = evaluate(path_of(np.array(values))), evaluate(path_of(np.array(values), capital))
    assert other.sharpe == pytest.approx(one.sharpe, rel=1e-6, abs=1e-9)
    assert other.max_drawdown_share == pytest.approx(one.max_drawdown_share, rel=1e-6, abs=1e-12)
    assert other.annual_return == pytest.approx(one.annual_return, rel=1e-6, abs=1e-9)


def test_a_lane_cut_from_a_larger_array_keeps_its_bits() -> None:
    draw = np.random.default_rng(0)
    equity_ML = 1000.0 + np.cumsum(draw.normal(size=(700, 5)), axis=0)
    notional_ML = draw.random((700, 5)) * 1000.0
    session_M = np.arange(700) // 7
    held_M = np.ones(700)
    cut = replace(HAND, equity_M=equity_ML[:, 2], notional_M=notional_ML[:, 2], session_M=session_M, held_M=held_M)
    alone = replace(cut, equity_M=equity_ML[:, 2].copy(), notional_M=notional_ML[:, 2].copy())
    assert evaluate(cut) == evaluate(alone)
