"""Bounded oscillators. Wilder's smoothing of length w is an exponential average of weight 1 / w."""

from __future__ import annotations

import numpy as np

from trainer.market.bars_table import Floats
from trainer.market.features.path import Path
from trainer.market.features.registry import windowed
from trainer.market.features.rolling import ema, lag, ratio, rolling_max, rolling_min, rolling_sum
from trainer.market.market import Parity

TINY = 1e-12  # log price


@windowed(
    "rsi_{window}", windows=(14,), parity=Parity.REFLECTED, reflect_at=100.0, unit="percent", warmup=lambda w: 4 * w
)
def rsi(path: Path, window: int) -> Floats:
    """Wilder's (1978) RSI on log moves: 100 U / (U + D) of smoothed gains and losses; 50 when nothing moved."""
    up_N = ema(np.maximum(path.move_N, 0.0), 1.0 / window)
    down_N = ema(np.maximum(-path.move_N, 0.0), 1.0 / window)
    return ratio(100.0 * up_N, up_N + down_N, otherwise=50.0, floor=TINY)


@windowed("stochastic_{window}", windows=(14,), parity=Parity.REFLECTED, reflect_at=100.0, unit="percent")
def stochastic(path: Path, window: int) -> Floats:
    """Lane's %K: 100 (close - lowest low) / (highest high - lowest low); 50 for a flat window."""
    top_N, bottom_N = rolling_max(path.high_N, window), rolling_min(path.low_N, window)
    return ratio(100.0 * (path.level_N - bottom_N), top_N - bottom_N, otherwise=50.0, floor=TINY)


@windowed("efficiency_{window}", windows=(16,), parity=Parity.ODD, unit="share")
def efficiency(path: Path, window: int) -> Floats:
    """Kaufman's (1995) efficiency ratio with its sign: net move over the sum of absolute moves, in [-1, 1]."""
    return ratio(rolling_sum(path.move_N, window), rolling_sum(np.abs(path.move_N), window), floor=TINY)


@windowed(
    "plus_di_{window}",
    windows=(14,),
    parity=Parity.SWAPPED,
    partner="minus_di_{window}",
    unit="percent",
    warmup=lambda w: 4 * w,
)
def plus_di(path: Path, window: int) -> Floats:
    """Wilder's (1978) +DI: smoothed upward directional movement over the smoothed true range, in percent."""
    return _directional(path, window, path.high_N - lag(path.high_N, 1), lag(path.low_N, 1) - path.low_N)


@windowed(
    "minus_di_{window}",
    windows=(14,),
    parity=Parity.SWAPPED,
    partner="plus_di_{window}",
    unit="percent",
    warmup=lambda w: 4 * w,
)
def minus_di(path: Path, window: int) -> Floats:
    """Wilder's (1978) -DI: smoothed downward directional movement over the smoothed true range, in percent."""
    return _directional(path, window, lag(path.low_N, 1) - path.low_N, path.high_N - lag(path.high_N, 1))


def true_range(path: Path) -> Floats:
    """Range of the bar, stretched to the level before it."""
    return np.maximum(path.high_N, path.previous_N) - np.minimum(path.low_N, path.previous_N)


def _directional(path: Path, window: int, toward_N: Floats, against_N: Floats) -> Floats:
    movement_N = np.where((toward_N > against_N) & (toward_N > 0.0), toward_N, 0.0)
    return ratio(100.0 * ema(movement_N, 1.0 / window), ema(true_range(path), 1.0 / window), floor=TINY)
