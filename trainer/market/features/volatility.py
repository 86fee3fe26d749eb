"""How much the price moves: estimators from moves and from ranges, and their shape. Mirroring leaves sizes alone."""

from __future__ import annotations

import math

import numpy as np

from trainer.market.bars_table import Floats
from trainer.market.features.oscillators import true_range
from trainer.market.features.path import Path
from trainer.market.features.registry import feature, windowed
from trainer.market.features.rolling import ema, lag, ratio, rolling_mean, rolling_std, rolling_sum
from trainer.market.market import Parity

SHORT = 8  # bars of the volatility whose own volatility is measured
TINY = 1e-12  # log price


@windowed("volatility_{window}", windows=(8, 32, 128), parity=Parity.EVEN, unit="log")
def volatility(path: Path, window: int) -> Floats:
    """Realised volatility per bar: square root of the mean squared move (Andersen and Bollerslev 1998)."""
    return np.sqrt(rolling_mean(path.move_N * path.move_N, window))


@windowed("atr_{window}", windows=(14,), parity=Parity.EVEN, unit="log", warmup=lambda w: 4 * w)
def atr(path: Path, window: int) -> Floats:
    """Wilder's (1978) average true range, in log price; a run's first bar reaches back to its own open alone."""
    return ema(true_range(path), 1.0 / window)


@feature("bar_range", parity=Parity.EVEN, unit="log")
def bar_range(path: Path) -> Floats:
    """log(high / low) of the bar."""
    return path.high_N - path.low_N


@windowed("parkinson_{window}", windows=(32,), parity=Parity.EVEN, unit="log")
def parkinson(path: Path, window: int) -> Floats:
    """Parkinson's (1980) volatility per bar: sqrt(mean(log(high / low)^2) / (4 log 2))."""
    return np.sqrt(rolling_mean(bar_range(path) ** 2, window) / (4.0 * math.log(2.0)))


@windowed(
    "volatility_of_volatility_{window}", windows=(32,), parity=Parity.EVEN, unit="share", warmup=lambda w: w + SHORT
)
def volatility_of_volatility(path: Path, window: int) -> Floats:
    """Standard deviation over mean, across the window, of the 8-bar realised volatility; 0 if nothing moved."""
    volatility_N = volatility(path, SHORT)
    return ratio(rolling_std(volatility_N, window), rolling_mean(volatility_N, window), floor=TINY)


@windowed("bollinger_width_{window}", windows=(20,), parity=Parity.EVEN, unit="log")
def bollinger_width(path: Path, window: int) -> Floats:
    """Distance between the bands: 4 standard deviations of the log price (Bollinger 2001)."""
    return 4.0 * rolling_std(path.level_N, window)


@windowed("autocorrelation_{window}", windows=(32,), parity=Parity.EVEN, unit="1", warmup=lambda w: w + 1)
def autocorrelation(path: Path, window: int) -> Floats:
    """First autocorrelation of the moves, uncentred, held to [-1, 1]: sum(r[t] r[t-1]) / sum(r[t]^2); 0 at rest."""
    product_N = rolling_sum(path.move_N * lag(path.move_N, 1), window)
    return np.clip(ratio(product_N, rolling_sum(path.move_N * path.move_N, window), floor=TINY * TINY), -1.0, 1.0)


@windowed(
    "up_volatility_{window}",
    windows=(32,),
    parity=Parity.SWAPPED,
    partner="down_volatility_{window}",
    unit="log",
)
def up_volatility(path: Path, window: int) -> Floats:
    """Upward realised semi-deviation: sqrt(mean(max(r, 0)^2)) (Barndorff-Nielsen, Kinnebrock and Shephard 2010)."""
    return np.sqrt(rolling_mean(np.maximum(path.move_N, 0.0) ** 2, window))


@windowed(
    "down_volatility_{window}",
    windows=(32,),
    parity=Parity.SWAPPED,
    partner="up_volatility_{window}",
    unit="log",
)
def down_volatility(path: Path, window: int) -> Floats:
    """Downward realised semi-deviation: sqrt(mean(max(-r, 0)^2)) (Barndorff-Nielsen, Kinnebrock and Shephard 2010)."""
    return np.sqrt(rolling_mean(np.maximum(-path.move_N, 0.0) ** 2, window))


@feature("upper_wick", parity=Parity.SWAPPED, partner="lower_wick", unit="log")
def upper_wick(path: Path) -> Floats:
    """log(high / max(open, close)): how far the bar came back from its top."""
    return path.high_N - np.maximum(path.open_N, path.level_N)


@feature("lower_wick", parity=Parity.SWAPPED, partner="upper_wick", unit="log")
def lower_wick(path: Path) -> Floats:
    """log(min(open, close) / low): how far the bar came back from its bottom."""
    return np.minimum(path.open_N, path.level_N) - path.low_N
