"""Volatility features by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trainer.market.bars_table import BarTable
from trainer.market.features.path import price_path
from trainer.market.features.volatility import (
    atr,
    autocorrelation,
    bar_range,
    bollinger_width,
    down_volatility,
    lower_wick,
    parkinson,
    up_volatility,
    upper_wick,
    volatility,
    volatility_of_volatility,
)

MakeTable = Callable[..., BarTable]


def by_moves(*moves: float) -> list[float]:
    return list(100.0 * np.exp(np.cumsum(moves)))


def test_realised_volatilities_by_hand(make_closes: MakeTable) -> None:
    path = price_path(make_closes(by_moves(0.0, 0.03, -0.04)))
    assert volatility(path, 2)[2] == pytest.approx(np.sqrt((9 + 16) / 2) / 100)
    assert up_volatility(path, 2)[2] == pytest.approx(0.03 / np.sqrt(2))
    assert down_volatility(path, 2)[2] == pytest.approx(0.04 / np.sqrt(2))
    assert autocorrelation(path, 2)[2] == pytest.approx(-12.0 / 25.0)


def test_ranges_by_hand(make_closes: MakeTable) -> None:
    """Open 100, high 110, low 90, close 105."""
    table = make_closes([105.0], open_N=np.array([100.0]), high_N=np.array([110.0]), low_N=np.array([90.0]))
    path = price_path(table)
    assert bar_range(path)[0] == pytest.approx(np.log(110 / 90))
    assert upper_wick(path)[0] == pytest.approx(np.log(110 / 105))
    assert lower_wick(path)[0] == pytest.approx(np.log(100 / 90))
    assert parkinson(path, 1)[0] == pytest.approx(np.log(110 / 90) / np.sqrt(4 * np.log(2)))
    assert atr(path, 14)[0] == pytest.approx(np.log(110 / 90))


def test_a_mid_close_outside_the_traded_range_widens_it(make_closes: MakeTable) -> None:
    table = make_closes([111.0], open_N=np.array([100.0]), high_N=np.array([110.0]), low_N=np.array([90.0]))
    assert upper_wick(price_path(table))[0] == 0.0
    assert bar_range(price_path(table))[0] == pytest.approx(np.log(111 / 90))


def test_atr_reaches_over_holes_inside_a_session_but_not_over_the_night(make_closes: MakeTable) -> None:
    flat = {name: np.array([100.0, 120.0]) for name in ("open_N", "high_N", "low_N")}
    inside = price_path(make_closes([100.0, 120.0], **flat))
    night = price_path(make_closes([100.0, 120.0], sessions=(1, 1), **flat))
    assert atr(inside, 2)[1] == pytest.approx(np.log(1.2) / 2)
    assert atr(night, 2)[1] == 0.0


def test_bollinger_width_by_hand(make_closes: MakeTable) -> None:
    path = price_path(make_closes(by_moves(0.0, 0.02)))
    assert bollinger_width(path, 2)[1] == pytest.approx(0.04)


def test_volatility_of_volatility_is_zero_when_moves_are_of_one_size(make_closes: MakeTable) -> None:
    steady = price_path(make_closes(by_moves(*([0.01, -0.01] * 40))))
    assert volatility_of_volatility(steady, 32)[-1] == pytest.approx(0.0, abs=1e-6)
    # 8-bar volatility 1 % for 16 bars, then 3 %: seven bars of passage make it lie between
    louder = price_path(make_closes(by_moves(*([0.01, -0.01] * 40), *([0.03, -0.03] * 8))))
    passage = np.sqrt(1.0 + 8.0 * np.arange(1, 9) / 8.0)
    window = np.concatenate([np.ones(16), passage, np.full(8, 3.0)])
    assert volatility_of_volatility(louder, 32)[-1] == pytest.approx(window.std() / window.mean())
