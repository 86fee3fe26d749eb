"""Where the price stands against its own past, measured on the gap-free log path: mirroring negates it."""

from __future__ import annotations

import numpy as np

from trainer.market.bars_table import Floats
from trainer.market.features.path import Path
from trainer.market.features.registry import feature, windowed
from trainer.market.features.rolling import ema, lag, ratio, rolling_mean, rolling_slope, rolling_std
from trainer.market.market import Parity

FAST, SLOW, SIGNAL = 12, 26, 9  # Appel's spans
CUSUM_SPAN = 64
CUSUM_SLACK = 0.5  # Page's allowance: half the shift to be found, here one standard deviation
CUSUM_CLIP = 8.0
TINY = 1e-10  # log price: far below one tick of anything


@feature("macd_line", parity=Parity.ODD, unit="volatility", warmup=3 * SLOW)
def macd_line(path: Path) -> Floats:
    """EMA12 - EMA26 of the log price over the volatility, an EMA of moves squared with span 26 (Appel 1979)."""
    volatility_N = np.sqrt(_span_ema(path.move_N * path.move_N, SLOW))
    return ratio(_span_ema(path.level_N, FAST) - _span_ema(path.level_N, SLOW), volatility_N, floor=TINY)


@feature("macd_signal", parity=Parity.ODD, unit="volatility", warmup=3 * (SLOW + SIGNAL))
def macd_signal(path: Path) -> Floats:
    """EMA9 of the MACD line."""
    return _span_ema(macd_line(path), SIGNAL)


@feature("macd_histogram", parity=Parity.ODD, unit="volatility", warmup=3 * (SLOW + SIGNAL))
def macd_histogram(path: Path) -> Floats:
    """MACD line minus its signal."""
    return macd_line(path) - macd_signal(path)


@windowed("bollinger_position_{window}", windows=(20,), parity=Parity.ODD, unit="bands")
def bollinger_position(path: Path, window: int) -> Floats:
    """(level - SMA) / (2 std): -1 on the lower band, 1 on the upper (Bollinger 2001, centred); 0 for a flat window."""
    return ratio(path.level_N - rolling_mean(path.level_N, window), 2.0 * rolling_std(path.level_N, window), floor=TINY)


@windowed("sma_ratio_{window}", windows=(8, 16, 32, 64), parity=Parity.ODD, unit="log")
def sma_ratio(path: Path, window: int) -> Floats:
    """Log of price over its geometric moving average: level - SMA of the level."""
    return path.level_N - rolling_mean(path.level_N, window)


@windowed("slope_{window}", windows=(16, 32, 64), parity=Parity.ODD, unit="log/bar")
def slope(path: Path, window: int) -> Floats:
    """Least-squares slope of the log price over the window, per bar."""
    return rolling_slope(path.level_N, window)


@feature("cusum", parity=Parity.ODD, unit="volatility", warmup=2 * CUSUM_SPAN)
def cusum(path: Path) -> Floats:
    """Page's (1954) CUSUM of z = move / volatility one bar ago, up minus down: S = max(0, S + z - 1/2), |z| <= 8.

    The volatility is an EMA of moves squared with span 64. The recursion unrolls to X - min(0, running minimum of X)
    with X = cumsum(z - 1/2) (Lindley 1952).
    """
    volatility_N = np.sqrt(lag(_span_ema(path.move_N * path.move_N, CUSUM_SPAN), 1))
    z_N = np.clip(ratio(path.move_N, volatility_N, floor=TINY), -CUSUM_CLIP, CUSUM_CLIP)
    return _page(z_N) - _page(-z_N)


def _page(z_N: Floats) -> Floats:
    walk_N = np.cumsum(z_N - CUSUM_SLACK)
    return walk_N - np.minimum(np.minimum.accumulate(walk_N), 0.0)


def _span_ema(x_N: Floats, span: int) -> Floats:
    return ema(x_N, 2.0 / (span + 1.0))
