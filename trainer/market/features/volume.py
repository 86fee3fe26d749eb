"""Volume, who traded it, and what trading costs. Windows run on over nights and rolls."""

from __future__ import annotations

import numpy as np

from trainer.market.bars_table import Floats
from trainer.market.features.path import Path
from trainer.market.features.registry import feature, windowed
from trainer.market.features.rolling import ratio, rolling_sum, zscore
from trainer.market.market import Parity


@windowed("volume_zscore_{window}", windows=(64,), parity=Parity.EVEN, unit="std")
def volume_zscore(path: Path, window: int) -> Floats:
    """z-score of log(1 + volume) within the window; 0 for bars of constant volume."""
    return zscore(np.log1p(path.volume_N), window)


@windowed("volume_ratio_{window}", windows=(8,), parity=Parity.EVEN, unit="log", warmup=lambda w: 8 * w)
def volume_ratio(path: Path, window: int) -> Floats:
    """log of the mean volume of w bars over that of 8 w bars, held to [-10, 10]; 0 without volume."""
    short_N, long_N = rolling_sum(path.volume_N, window) / window, rolling_sum(path.volume_N, 8 * window) / (8 * window)
    share_N = ratio(short_N, long_N, otherwise=1.0)
    return np.clip(np.log(np.maximum(share_N, 1e-10)), -10.0, 10.0)


@windowed("trade_imbalance_{window}", windows=(1, 8, 32), parity=Parity.ODD, unit="share", order_flow=True)
def trade_imbalance(path: Path, window: int) -> Floats:
    """(buys - sells) / (buys + sells) by the aggressor, sums over the window; 0 where the source names no side."""
    bought_N, sold_N = rolling_sum(path.buy_N, window), rolling_sum(path.sell_N, window)
    return ratio(bought_N - sold_N, bought_N + sold_N)


@windowed("directional_volume_{window}", windows=(16,), parity=Parity.ODD, unit="share")
def directional_volume(path: Path, window: int) -> Floats:
    """Granville's (1963) on-balance volume over a window: sum(sign(move) volume) / sum(volume), in [-1, 1]."""
    return ratio(rolling_sum(np.sign(path.move_N) * path.volume_N, window), rolling_sum(path.volume_N, window))


@windowed("vwap_distance_{window}", windows=(32,), parity=Parity.ODD, unit="log")
def vwap_distance(path: Path, window: int) -> Floats:
    """Level minus the volume-weighted mean of (high + low + close) / 3, in log price; 0 without volume."""
    typical_N = (path.high_N + path.low_N + path.level_N) / 3.0
    volume_N = rolling_sum(path.volume_N, window)
    mean_N = ratio(rolling_sum(typical_N * path.volume_N, window), volume_N)
    return np.where(volume_N > 0.0, path.level_N - mean_N, 0.0)


@feature("spread", parity=Parity.EVEN, unit="bps")
def spread(path: Path) -> Floats:
    """Full bid-ask spread at the close, in basis points of the close."""
    return 1e4 * path.spread_N


@feature("funding", parity=Parity.ODD, unit="bps")
def funding(path: Path) -> Floats:
    """The last funding that a long paid, in basis points of notional; 0 before the first and where there is none."""
    index_N = np.arange(len(path))
    last_N = np.maximum.accumulate(np.where(path.funding_N != 0.0, index_N, 0))
    return 1e4 * path.funding_N[last_N]
