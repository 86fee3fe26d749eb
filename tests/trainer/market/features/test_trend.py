"""Trend features by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trainer.market.bars_table import BarTable
from trainer.market.features.path import price_path
from trainer.market.features.trend import (
    bollinger_position,
    cusum,
    macd_histogram,
    macd_line,
    macd_signal,
    slope,
    sma_ratio,
)

MakeTable = Callable[..., BarTable]


def test_macd_by_hand(make_closes: MakeTable) -> None:
    """One move m: EMA12 = m 2/13, EMA26 = m 2/27, volatility = m sqrt(2/27); the signal is a fifth of the line."""
    path = price_path(make_closes([100.0, 110.0]))
    line = (2 / 13 - 2 / 27) / np.sqrt(2 / 27)
    assert macd_line(path)[1] == pytest.approx(line)
    assert macd_signal(path)[1] == pytest.approx(0.2 * line)
    assert macd_histogram(path)[1] == pytest.approx(0.8 * line)


def test_bollinger_position_by_hand(make_closes: MakeTable) -> None:
    """Levels 0, 0, 0, m: mean m/4, std m sqrt(3)/4, so (3/4) / (2 sqrt(3)/4) = 0.8660."""
    path = price_path(make_closes([100.0, 100.0, 100.0, 107.0]))
    assert bollinger_position(path, 4)[3] == pytest.approx(0.8660254)
    assert bollinger_position(path, 3)[2] == 0.0


def test_sma_ratio_and_slope_by_hand(make_closes: MakeTable) -> None:
    path = price_path(make_closes(100.0 * np.exp(0.01 * np.arange(8))))
    assert sma_ratio(path, 4)[7] == pytest.approx(0.015)
    assert slope(path, 4)[7] == pytest.approx(0.01)


def test_cusum_by_hand(make_closes: MakeTable) -> None:
    """Moves a, 2a, 0, -3a against the volatility one bar before (EMA of squares, weight 2/65)."""
    a = 0.01
    moves = np.array([0.0, a, 2 * a, 0.0, -3 * a])
    table = make_closes(100.0 * np.exp(np.cumsum(moves)))
    weight, variance, up, down, expected = 2.0 / 65.0, 0.0, 0.0, 0.0, []
    for move in moves:
        z = 0.0 if variance == 0.0 else float(np.clip(move / np.sqrt(variance), -8.0, 8.0))
        up, down = max(0.0, up + z - 0.5), max(0.0, down - z - 0.5)
        variance += weight * (move**2 - variance)
        expected.append(up - down)
    assert expected[2] == 7.5  # 2a is over 8 volatilities
    np.testing.assert_allclose(cusum(price_path(table)), expected, atol=1e-9)


def test_cusum_equals_its_recursion(make_random: MakeTable) -> None:
    path = price_path(make_random(11, (400, 400)))
    weight, variance, up, down, expected = 2.0 / 65.0, path.move_N[0] ** 2, 0.0, 0.0, []
    for index, move in enumerate(path.move_N):
        z = 0.0 if index == 0 else float(np.clip(move / np.sqrt(variance), -8.0, 8.0))
        up, down = max(0.0, up + z - 0.5), max(0.0, down - z - 0.5)
        variance += weight * (move**2 - variance)
        expected.append(up - down)
    np.testing.assert_allclose(cusum(path), expected, atol=1e-9)
