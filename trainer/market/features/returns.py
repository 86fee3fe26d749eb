"""Past returns and their shape: log returns along the gap-free path, without nights and contract rolls."""

from __future__ import annotations

import numpy as np

from trainer.market.bars_table import Floats
from trainer.market.features.path import Path
from trainer.market.features.registry import feature, windowed
from trainer.market.features.rolling import lag, ratio, rolling_moment
from trainer.market.market import Parity


@windowed("return_{window}", windows=(1, 2, 4, 8, 16, 32), parity=Parity.ODD, unit="log")
def past_return(path: Path, window: int) -> Floats:
    """Log return over the last bars: level[t] - level[t - w]. Runs on over nights and rolls, their gaps left out."""
    return path.level_N - lag(path.level_N, window)


@feature("overnight_gap", parity=Parity.ODD, unit="log")
def overnight_gap(path: Path) -> Floats:
    """log(session's open / last session's close), held through the session; 0 in the first session and after a roll."""
    first_N = np.arange(len(path)) - path.age_N
    gap_N: Floats = path.gap_N[first_N]
    return gap_N


@feature("close_location", parity=Parity.ODD, unit="share")
def close_location(path: Path) -> Floats:
    """Place of the close in the bar: (2 close - high - low) / (high - low), -1 at the low, 1 at the high; 0 if flat."""
    height_N = path.high_N - path.low_N
    return ratio(2.0 * path.level_N - path.high_N - path.low_N, height_N, floor=1e-12)


@windowed("skewness_{window}", windows=(32,), parity=Parity.ODD, unit="1")
def skewness(path: Path, window: int) -> Floats:
    """Skewness of the bar moves: m3 / m2^1.5, population moments (Amaya et al. 2015 use its realised form)."""
    second_N = rolling_moment(path.move_N, window, 2)
    return ratio(rolling_moment(path.move_N, window, 3), second_N * np.sqrt(second_N), floor=1e-30)
