"""Volume and liquidity features by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trainer.market.bars_table import BarTable
from trainer.market.features.path import price_path
from trainer.market.features.volume import (
    directional_volume,
    funding,
    spread,
    trade_imbalance,
    volume_ratio,
    volume_zscore,
    vwap_distance,
)

MakeTable = Callable[..., BarTable]


def test_volume_zscore_by_hand(make_closes: MakeTable) -> None:
    """log(1 + v) of 0, 0, 0, 1 (v = e - 1): mean 1/4, std sqrt(3)/4, z = sqrt(3)."""
    path = price_path(make_closes([100.0] * 4, volume_N=np.array([0.0, 0.0, 0.0, np.e - 1.0])))
    assert volume_zscore(path, 4)[3] == pytest.approx(np.sqrt(3.0))


def test_volume_ratio_by_hand(make_closes: MakeTable) -> None:
    path = price_path(make_closes([100.0] * 16, volume_N=np.array([1.0] * 14 + [9.0] * 2)))
    assert volume_ratio(path, 2)[15] == pytest.approx(np.log(9.0 / 2.0))


def test_trade_imbalance_is_a_ratio_of_sums(make_closes: MakeTable) -> None:
    table = make_closes([100.0] * 2, buy_volume_N=np.array([30.0, 1.0]), sell_volume_N=np.array([10.0, 3.0]))
    np.testing.assert_allclose(trade_imbalance(price_path(table), 1), [0.5, -0.5])
    assert trade_imbalance(price_path(table), 2)[1] == pytest.approx(18.0 / 44.0)


def test_directional_volume_by_hand(make_closes: MakeTable) -> None:
    path = price_path(make_closes([100.0, 101.0, 101.0, 100.0], volume_N=np.array([9.0, 5.0, 2.0, 3.0])))
    assert directional_volume(path, 3)[3] == pytest.approx((5.0 - 3.0) / 10.0)


def test_vwap_distance_by_hand(make_closes: MakeTable) -> None:
    """Flat bars at levels 0 (volume 3) and m (volume 1): the mean is m/4, so the distance is 3/4 m."""
    flat = {name: np.array([100.0, 104.0]) for name in ("open_N", "high_N", "low_N")}
    table = make_closes([100.0, 104.0], volume_N=np.array([3.0, 1.0]), **flat)
    assert vwap_distance(price_path(table), 2)[1] == pytest.approx(0.75 * np.log(1.04))


def test_spread_and_funding_are_in_basis_points(make_closes: MakeTable) -> None:
    funding_N = np.array([0.0, 1e-4, 0.0, -2e-4, 0.0])
    path = price_path(make_closes([50.0] * 5, spread_N=np.full(5, 0.01), funding_N=funding_N))
    np.testing.assert_allclose(spread(path), 2.0)
    np.testing.assert_allclose(funding(path), [0.0, 1.0, 1.0, -2.0, -2.0])
