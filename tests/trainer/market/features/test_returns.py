"""Returns by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trainer.market.bars_table import BarTable
from trainer.market.features.path import price_path
from trainer.market.features.returns import close_location, overnight_gap, past_return, skewness

MakeTable = Callable[..., BarTable]


def test_returns_are_log_returns(make_closes: MakeTable) -> None:
    path = price_path(make_closes([100.0, 110.0, 99.0, 108.9]))
    np.testing.assert_allclose(past_return(path, 1), np.log([1.0, 1.1, 0.9, 1.1]), atol=1e-15)
    assert past_return(path, 2)[3] == pytest.approx(np.log(108.9 / 110.0))


def test_returns_leave_the_night_out(make_closes: MakeTable) -> None:
    """Close 110, open 55 the next day, close 60.5: the two-bar return is log 1.1 + log 1.1, the gap log(55 / 110)."""
    table = make_closes(
        [100.0, 110.0, 60.5, 60.5],
        sessions=(2, 2),
        open_N=np.array([100.0, 100.0, 55.0, 60.5]),
        low_N=np.array([100.0, 100.0, 55.0, 60.5]),
    )
    path = price_path(table)
    np.testing.assert_allclose(past_return(path, 1), np.log([1.0, 1.1, 1.1, 1.0]), atol=1e-15)
    assert past_return(path, 2)[2] == pytest.approx(2.0 * np.log(1.1))
    np.testing.assert_allclose(overnight_gap(path), np.log([1.0, 1.0, 0.5, 0.5]), atol=1e-15)


def test_a_new_contract_has_no_overnight_gap(make_closes: MakeTable) -> None:
    table = make_closes(
        [100.0, 200.0], sessions=(1, 1), open_N=np.array([100.0, 200.0]), low_N=np.array([100.0, 200.0]),
        contract=("H", "M"), contract_N=np.array([0, 1]),
    )  # fmt: skip
    assert not overnight_gap(price_path(table)).any()
    assert not past_return(price_path(table), 1).any()


def test_close_location_runs_from_low_to_high(make_closes: MakeTable) -> None:
    table = make_closes([100.0, 110.0, 121.0, 121.0])
    np.testing.assert_allclose(close_location(price_path(table)), [0.0, 1.0, 1.0, 0.0], atol=1e-9)
    half = make_closes([110.0], open_N=np.array([100.0]), high_N=np.array([121.0]), low_N=np.array([100.0]))
    assert close_location(price_path(half))[0] == pytest.approx(0.0)  # log 1.1 of log 1.21


def test_skewness_by_hand(make_closes: MakeTable) -> None:
    """Moves 0, 0, 0, x: m2 = 3/16 x^2, m3 = 6/64 x^3, so skewness is (6/64) / (3/16)^1.5 = 1.1547."""
    path = price_path(make_closes([100.0, 100.0, 100.0, 101.0]))
    assert skewness(path, 4)[3] == pytest.approx(1.1547005)
