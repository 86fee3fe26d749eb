"""Oscillators by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trainer.market.bars_table import BarTable
from trainer.market.features.oscillators import efficiency, minus_di, plus_di, rsi, stochastic, true_range
from trainer.market.features.path import price_path

MakeTable = Callable[..., BarTable]


def by_moves(*moves: float) -> list[float]:
    return list(100.0 * np.exp(np.cumsum(moves)))


def test_rsi_by_hand(make_closes: MakeTable) -> None:
    """Length 2, moves 0, 2, -1 (percent): gains 0, 1, 0.5; losses 0, 0, 0.5."""
    path = price_path(make_closes(by_moves(0.0, 0.02, -0.01)))
    np.testing.assert_allclose(rsi(path, 2), [50.0, 100.0, 50.0])


def test_stochastic_by_hand(make_closes: MakeTable) -> None:
    path = price_path(make_closes(by_moves(0.0, 0.04, -0.01, -0.02)))
    np.testing.assert_allclose(stochastic(path, 3), [50.0, 100.0, 75.0, 25.0])


def test_efficiency_by_hand(make_closes: MakeTable) -> None:
    path = price_path(make_closes(by_moves(0.0, 0.04, -0.01, -0.01)))
    np.testing.assert_allclose(efficiency(path, 3)[3], 2.0 / 6.0)


def test_directional_index_by_hand(make_closes: MakeTable) -> None:
    """Bar 1 runs 0 to 4 %: high up 4. Bar 2 runs 4 to 1 %: high stays, low up 1. Bar 3 runs 1 to -2 %: low down 3."""
    path = price_path(make_closes(by_moves(0.0, 0.04, -0.03, -0.03)))
    np.testing.assert_allclose(true_range(path), [0.0, 0.04, 0.03, 0.03], atol=1e-15)
    # smoothed true range: 0, 2, 2.5, 2.75; up: 0, 2, 1, 0.5; down: 0, 0, 0, then low from 1 % to -2 %: 3 / 2
    np.testing.assert_allclose(plus_di(path, 2), [0.0, 100.0, 40.0, 50.0 / 2.75], atol=1e-9)
    np.testing.assert_allclose(minus_di(path, 2), [0.0, 0.0, 0.0, 150.0 / 2.75], atol=1e-9)


def test_an_outside_bar_moves_in_its_longer_direction_alone(make_closes: MakeTable) -> None:
    """The second bar reaches 3 % above and 1 % below the first: +DM 3, -DM 0, true range 4."""
    flat, high, low = 100.0, 100.0 * np.exp(0.03), 100.0 * np.exp(-0.01)
    table = make_closes([flat, flat], high_N=np.array([flat, high]), low_N=np.array([flat, low]))
    path = price_path(table)
    assert plus_di(path, 2)[1] == pytest.approx(75.0)
    assert minus_di(path, 2)[1] == 0.0


@pytest.mark.parametrize(("direction", "expected"), [(1.0, 100.0), (-1.0, 0.0)])
def test_oscillators_saturate(make_closes: MakeTable, direction: float, expected: float) -> None:
    path = price_path(make_closes(100.0 * np.exp(direction * 0.001 * np.arange(60))))
    assert rsi(path, 14)[-1] == expected
    assert stochastic(path, 14)[-1] == pytest.approx(expected)
    assert efficiency(path, 16)[-1] == pytest.approx(direction)
