"""Windows against numpy, one window at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trainer.market.bars_table import Floats
from trainer.market.features import rolling

X = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])


@pytest.mark.parametrize(
    ("ours", "numpys"),
    [
        (rolling.rolling_sum, np.sum),
        (rolling.rolling_mean, np.mean),
        (rolling.rolling_max, np.max),
        (rolling.rolling_min, np.min),
        (rolling.rolling_std, np.std),
        (lambda x, w: rolling.rolling_moment(x, w, 3), lambda part: np.mean((part - part.mean()) ** 3)),
        (rolling.rolling_slope, lambda part: np.polyfit(np.arange(part.size), part, 1)[0]),
    ],
)
def test_windows_agree_with_numpy(ours: Callable[[Floats, int], Floats], numpys: Callable[[Floats], float]) -> None:
    expected = [numpys(X[end - 4 : end]) for end in range(4, 9)]
    np.testing.assert_allclose(ours(X, 4)[3:], expected, atol=1e-12)


def test_lag_and_ema_by_hand() -> None:
    np.testing.assert_array_equal(rolling.lag(X, 2), [0, 0, 3, 1, 4, 1, 5, 9])
    np.testing.assert_array_equal(rolling.lag(X, 0), X)
    np.testing.assert_array_equal(rolling.lag(X, 20), np.zeros(8))
    np.testing.assert_allclose(rolling.ema(np.array([4.0, 8.0, 0.0]), 0.25), [4.0, 5.0, 3.75])


def test_ratio_and_zscore_at_their_edges() -> None:
    np.testing.assert_array_equal(rolling.ratio(np.array([1.0, 2.0]), np.array([0.0, 4.0]), otherwise=7.0), [7.0, 0.5])
    np.testing.assert_allclose(rolling.zscore(np.array([1.0, 2.0, 3.0]), 3)[2], 1.0 / np.sqrt(2.0 / 3.0))
    assert rolling.zscore(np.full(5, 0.1), 3)[4] == 0.0
