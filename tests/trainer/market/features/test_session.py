"""Session features by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trainer.market.bars_table import BarTable
from trainer.market.features.path import price_path
from trainer.market.features.session import bar_pace, gap_flag, session_age, session_left, time_cos, time_sin

MakeTable = Callable[..., BarTable]
HOUR = 3_600 * 10**9


def test_time_is_counted_from_the_session_start(make_closes: MakeTable) -> None:
    hours = np.array([0, 6, 12, 30, 33])
    path = price_path(make_closes([100.0] * 5, sessions=(3, 2), time_N=HOUR * hours))
    np.testing.assert_allclose(time_sin(path), [0.0, 1.0, 0.0, 0.0, np.sqrt(0.5)], atol=1e-12)
    np.testing.assert_allclose(time_cos(path), [1.0, 0.0, -1.0, 1.0, np.sqrt(0.5)], atol=1e-12)
    np.testing.assert_allclose(session_age(path), np.log([1.0, 2.0, 3.0, 1.0, 2.0]))


def test_session_left_is_estimated_from_completed_sessions(make_closes: MakeTable) -> None:
    """Sessions of 12, 4 and 8 hours: the first counts against 24 h, the second against 12 h, the third against 8 h."""
    hours = np.array([0, 6, 12, 24, 28, 48, 52, 56])
    path = price_path(make_closes([100.0] * 8, sessions=(3, 2, 3), time_N=HOUR * hours))
    np.testing.assert_allclose(session_left(path), [1.0, 0.75, 0.5, 1.0, 2 / 3, 1.0, 0.5, 0.0])


def test_daylight_saving_moves_no_feature_of_time(make_closes: MakeTable) -> None:
    """The exchange opens an hour earlier in UTC from the second session on; inside it nothing changes."""
    hours = np.array([0, 1, 2, 23, 24, 25])
    path = price_path(make_closes([100.0] * 6, sessions=(3, 3), time_N=HOUR * hours))
    np.testing.assert_array_equal(time_sin(path)[:3], time_sin(path)[3:])


def test_pace_and_gap_flag_by_hand(make_closes: MakeTable) -> None:
    """Steps of 1 minute, one of 2, one of 7 after a usual step of 8/7 minutes; the night is a gap but no step."""
    minutes = np.array([0, 1, 2, 3, 4, 5, 6, 8, 15, 900, 901])
    path = price_path(make_closes([100.0] * 11, sessions=(9, 2), time_N=60 * 10**9 * minutes))
    assert bar_pace(path)[10] == pytest.approx(np.log(1.0 / (15.0 / 8.0)))
    np.testing.assert_allclose(
        bar_pace(path)[[6, 7, 8, 9]], [0.0, np.log(2.0), np.log(7.0 / (8.0 / 7.0)), 0.0], atol=1e-12
    )
    np.testing.assert_array_equal(gap_flag(path), [1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0])


def test_clock_bars_have_no_pace(make_closes: MakeTable) -> None:
    assert not bar_pace(price_path(make_closes([100.0] * 50))).any()
