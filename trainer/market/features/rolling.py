"""Causal windows over [N] columns, exact and in a fixed order of operations.

Row t reads rows t-w+1..t alone and in the same order whatever follows: appending bars changes no bit of earlier rows.
Windows are sums over shifted columns (two passes for variances): running updates would leave rounding dust behind an
outlier, and a z-score of dust is not zero. Rows before the first full window see zeros in place of bars that do not
exist, or the first bar; they are warm-up and zeroed by the caller.

Legend: N rows, w window.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from trainer.market.bars_table import Floats


def lag(x_N: Floats, steps: int) -> Floats:
    """``x[t - steps]``; zero before the first row."""
    if steps == 0:
        return x_N
    lagged_N = np.zeros_like(x_N)
    lagged_N[steps:] = x_N[:-steps]
    return lagged_N


def rolling_sum(x_N: Floats, window: int) -> Floats:
    """Sum of the last ``window`` rows."""
    return _fold(x_N, window, np.add)


def rolling_mean(x_N: Floats, window: int) -> Floats:
    """Mean of the last ``window`` rows."""
    return rolling_sum(x_N, window) / window


def rolling_max(x_N: Floats, window: int) -> Floats:
    """Largest of the last ``window`` rows."""
    return _fold(x_N, window, np.maximum)


def rolling_min(x_N: Floats, window: int) -> Floats:
    """Smallest of the last ``window`` rows."""
    return _fold(x_N, window, np.minimum)


def rolling_moment(x_N: Floats, window: int, order: int) -> Floats:
    """Central moment of the last ``window`` rows, divided by ``window``."""
    mean_N = rolling_mean(x_N, window)
    total_N = np.zeros_like(x_N)
    for step in range(window):
        deviation_N = lag(x_N, step) - mean_N
        power_N = deviation_N * deviation_N
        total_N += power_N if order == 2 else power_N * deviation_N
    return total_N / window


def rolling_std(x_N: Floats, window: int) -> Floats:
    """Population standard deviation of the last ``window`` rows."""
    return np.sqrt(rolling_moment(x_N, window, 2))


def rolling_slope(x_N: Floats, window: int) -> Floats:
    """Slope per row of the least-squares line through the last ``window`` rows."""
    centre = (window - 1) / 2.0
    total_N = np.zeros_like(x_N)
    for step in range(window):
        total_N += (centre - step) * lag(x_N, step)
    return total_N / (window * (window * window - 1) / 12.0)


def ema(x_N: Floats, weight: float) -> Floats:
    """``y[t] = weight x[t] + (1 - weight) y[t-1]``, started at ``y[0] = x[0]``."""
    return pd.Series(x_N).ewm(alpha=weight, adjust=False).mean().to_numpy(dtype=np.float64)


def ratio(top_N: Floats, bottom_N: Floats, otherwise: float = 0.0, floor: float = 0.0) -> Floats:
    """``top / bottom`` where ``bottom > floor``, else ``otherwise``."""
    usable_N = bottom_N > floor
    return np.where(usable_N, top_N / np.where(usable_N, bottom_N, 1.0), otherwise)


def zscore(x_N: Floats, window: int) -> Floats:
    """Distance of x from its mean over ``window`` rows, in their standard deviations; 0 for a constant window."""
    mean_N, std_N = rolling_mean(x_N, window), rolling_std(x_N, window)
    return np.where(std_N > 1e-9 * np.abs(mean_N), ratio(x_N - mean_N, std_N, floor=1e-12), 0.0)


def _fold(x_N: Floats, window: int, combine: Callable[[Floats, Floats], Floats]) -> Floats:
    total_N = x_N.copy()
    for step in range(1, window):
        total_N = combine(total_N, lag(x_N, step))
    return total_N
