"""What a backtest was worth (S42): one lane at a time, on the host, in float64.

Returns are net of costs and taken on the traded capital, which stays constant (profits are not reinvested): the return
of a session is its change of equity over the capital. Sharpe, Sortino and Calmar come from session returns and are
annualised by the instrument's own sessions per year, never by a constant; ``raw_sharpe`` is bar-wise, not annualised.
Everything is summed in one fixed order, so the same path gives the same bits beside any other lanes.

Legend: M bars of the backtest, S its sessions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy.special import ndtr

from trainer.market.bars_table import Floats, Ints


class Flag(StrEnum):
    """Why a Sharpe ratio is 0 although the equity moved, or that nothing is wrong."""

    OK = "ok"
    NOT_FINITE = "not_finite"  # the equity holds NaN or infinity: the lane has failed
    FEW_TRADES = "few_trades"  # fewer closed trades than ``min_trades``
    NO_VARIANCE = "no_variance"  # fewer than two sessions, or all of them returned the same


@dataclass(frozen=True)
class BacktestPath:
    """One lane's backtest, bar by bar; money in the instrument's currency."""

    capital: float  # traded capital, the base of all returns
    start_equity: float  # before the first bar
    equity_M: Floats  # at each bar's close, after costs
    session_M: Ints
    held_M: Floats  # signed position carried from the bar's fill to its close
    notional_M: Floats  # money bought plus money sold in the bar
    wins: int  # closed trades (round trips) with a net profit
    losses: int  # the other closed trades
    win_sum: float  # money won in the former
    loss_sum: float  # money lost in the latter, positive


@dataclass(frozen=True)
class BacktestMetrics:
    """Ratios are 0 and flagged where they have no meaning; shares are fractions of 1."""

    sharpe: float  # net, on session returns, annualised
    raw_sharpe: float  # bar-wise, not annualised
    probabilistic_sharpe: float  # probability that the true Sharpe exceeds the benchmark
    sortino: float
    calmar: float
    profit: float  # money; it and the shares below are NaN where the equity is
    annual_return: float  # share of the capital, not compounded
    max_drawdown: float  # money, from the highest equity so far
    max_drawdown_share: float  # of that highest equity
    trades: int
    win_rate: float  # share of closed trades with a profit
    profit_factor: float  # gains over losses of closed trades; infinite where nothing was lost
    average_holding: float  # bars with a position over closed trades
    exposure: float  # share of bars with a position
    turnover: float  # traded notional over capital, per session
    sessions: int
    flag: Flag


@dataclass(frozen=True)
class Summary:
    """All that the metrics need of one lane's backtest; in whichever way it was summed up."""

    capital: float
    finite: bool  # whether the equity is, throughout
    profit: float  # money
    max_drawdown: float  # money
    max_drawdown_share: float
    sessions: int
    session_mean: (
        float  # return of a session; its sample deviation and the root mean square of its negative ones follow
    )
    session_deviation: float
    session_downside: float
    session_skew: float
    session_kurtosis: float  # 3 for a normal
    sessions_vary: bool
    bars: int
    bar_sharpe: float  # 0 where bars do not vary
    bars_held: int
    notional: float
    wins: int
    losses: int
    win_sum: float
    loss_sum: float


def backtest_metrics(
    path: BacktestPath, *, sessions_per_year: float, min_trades: int, benchmark_sharpe: float = 0.0
) -> BacktestMetrics:
    """Evaluate one path.

    Args:
        path: at least one bar.
        sessions_per_year: the instrument's, e.g. 252.
        min_trades: fewer closed trades give ratios of 0 and :attr:`Flag.FEW_TRADES`.
        benchmark_sharpe: annualised; what ``probabilistic_sharpe`` is held against.
    """
    return metrics_of(
        summarise(path),
        sessions_per_year=sessions_per_year,
        min_trades=min_trades,
        benchmark_sharpe=benchmark_sharpe,
    )


def metrics_of(
    seen: Summary, *, sessions_per_year: float, min_trades: int, benchmark_sharpe: float = 0.0
) -> BacktestMetrics:
    """:func:`backtest_metrics` of a path that was summed up."""
    trades = seen.wins + seen.losses
    flag = _flag(seen, trades, min_trades)
    annual_return = seen.session_mean * sessions_per_year
    year = math.sqrt(sessions_per_year)
    sharpe = seen.session_mean / seen.session_deviation if seen.sessions_vary else 0.0
    counts = flag is Flag.OK
    return BacktestMetrics(
        sharpe=sharpe * year if counts else 0.0,
        raw_sharpe=seen.bar_sharpe if counts else 0.0,
        probabilistic_sharpe=_probability(seen, sharpe, benchmark_sharpe / year) if counts else 0.0,
        sortino=_ratio(seen.session_mean, seen.session_downside) * year if counts else 0.0,
        calmar=_ratio(annual_return, seen.max_drawdown_share) if counts else 0.0,
        profit=seen.profit,
        annual_return=annual_return,
        max_drawdown=seen.max_drawdown,
        max_drawdown_share=seen.max_drawdown_share,
        trades=trades,
        win_rate=_ratio(seen.wins, trades),
        profit_factor=_profit_factor(seen.win_sum, seen.loss_sum),
        average_holding=_ratio(float(seen.bars_held), trades),
        exposure=seen.bars_held / seen.bars,
        turnover=seen.notional / seen.capital / seen.sessions,
        sessions=seen.sessions,
        flag=flag,
    )


def summarise(path: BacktestPath) -> Summary:
    """One lane on the host, in one fixed order."""
    finite = bool(np.isfinite(path.equity_M).all())
    if not finite:
        path = replace(path, equity_M=np.full_like(path.equity_M, np.nan))
    equity_M = np.concatenate([[path.start_equity], path.equity_M])
    returns_S = session_returns(path)
    drawdown, drawdown_share = max_drawdown(equity_M)
    vary = not _constant(returns_S)
    skew, kurtosis = _shape(returns_S) if vary else (0.0, 3.0)
    return Summary(
        capital=path.capital,
        finite=finite,
        profit=float(equity_M[-1] - path.start_equity),
        max_drawdown=drawdown,
        max_drawdown_share=drawdown_share,
        sessions=len(returns_S),
        session_mean=float(np.mean(returns_S)),
        session_deviation=float(np.std(returns_S, ddof=1)) if vary else 0.0,
        session_downside=float(np.sqrt(np.mean(np.minimum(returns_S, 0.0) ** 2))),
        session_skew=skew,
        session_kurtosis=kurtosis,
        sessions_vary=vary,
        bars=len(path.equity_M),
        bar_sharpe=sharpe_ratio(np.diff(equity_M) / path.capital),
        bars_held=int(np.sum(path.held_M != 0.0)),
        notional=float(np.sum(path.notional_M)),
        wins=path.wins,
        losses=path.losses,
        win_sum=path.win_sum,
        loss_sum=path.loss_sum,
    )


def session_returns(path: BacktestPath) -> Floats:
    """Change of equity over each session as a share of the capital, ``[S]``."""
    last_M = np.append(path.session_M[1:] != path.session_M[:-1], True)
    close_S: Floats = path.equity_M[last_M]
    return np.diff(close_S, prepend=path.start_equity) / path.capital


def sharpe_ratio(returns: Floats) -> float:
    """Mean over sample deviation (n - 1), per period; 0 where the returns do not vary."""
    return 0.0 if _constant(returns) else float(np.mean(returns) / np.std(returns, ddof=1))


def probabilistic_sharpe(returns: Floats, benchmark: float) -> float:
    """Probability that the true Sharpe per period exceeds ``benchmark``; 0.5 where the returns do not vary.

    Moments are the population's (n), as in scipy's ``skew`` and ``kurtosis(fisher=False)``.
    """
    if _constant(returns):
        return 0.5
    skew, kurtosis = _shape(returns)
    return probabilistic_sharpe_of_moments(
        sharpe=sharpe_ratio(returns), benchmark=benchmark, observations=len(returns), skew=skew, kurtosis=kurtosis
    )


def probabilistic_sharpe_of_moments(
    *, sharpe: float, benchmark: float, observations: int, skew: float, kurtosis: float
) -> float:
    """Bailey & Lopez de Prado, The Sharpe Ratio Efficient Frontier (2012), eq. 9.

    ``Phi((SR - SR*) sqrt(n - 1) / sqrt(1 - g3 SR + (g4 - 1) / 4 SR^2))`` with g4 the kurtosis itself, 3 for a normal:
    excess kurtosis belongs into ``(excess + 2) / 4``.
    """
    variance = 1.0 - skew * sharpe + (kurtosis - 1.0) / 4.0 * sharpe**2
    if variance <= 0.0:  # estimated moments of very few returns can contradict each other
        return float(sharpe > benchmark)
    return float(ndtr((sharpe - benchmark) * math.sqrt(observations - 1) / math.sqrt(variance)))


def max_drawdown(equity_M: Floats) -> tuple[float, float]:
    """Deepest fall below the highest equity so far, in money and as a share of that height (each its own maximum)."""
    peak_M = np.maximum.accumulate(equity_M)
    fall_M = peak_M - equity_M
    share_M = np.divide(fall_M, peak_M, out=np.zeros_like(fall_M), where=peak_M > 0.0)
    return float(np.max(fall_M)), float(np.max(share_M))


def _flag(seen: Summary, trades: int, min_trades: int) -> Flag:
    if not seen.finite:
        return Flag.NOT_FINITE
    if trades < min_trades:
        return Flag.FEW_TRADES
    return Flag.OK if seen.sessions_vary else Flag.NO_VARIANCE


def _probability(seen: Summary, sharpe: float, benchmark: float) -> float:
    return probabilistic_sharpe_of_moments(
        sharpe=sharpe,
        benchmark=benchmark,
        observations=seen.sessions,
        skew=seen.session_skew,
        kurtosis=seen.session_kurtosis,
    )


def _shape(returns: Floats) -> tuple[float, float]:
    """Skew and kurtosis, of the population."""
    deviation = returns - np.mean(returns)
    variance = np.mean(deviation**2)
    return float(np.mean(deviation**3) / variance**1.5), float(np.mean(deviation**4) / variance**2)


def _constant(returns: Floats) -> bool:
    """Whether the returns vary by nothing but rounding, so that a ratio over their deviation would be noise."""
    return len(returns) < 2 or float(np.std(returns)) <= 1e-10 * float(np.max(np.abs(returns)))


def _ratio(numerator: float, denominator: float) -> float:
    return 0.0 if denominator == 0.0 else numerator / denominator


def _profit_factor(win_sum: float, loss_sum: float) -> float:
    if loss_sum == 0.0:
        return math.inf if win_sum > 0.0 else 0.0
    return win_sum / loss_sum
