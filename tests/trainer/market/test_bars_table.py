from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trainer.errors import UserError
from trainer.market.bars_table import BarTable, columns


def flat_table(bars: int = 4) -> BarTable:
    price_N = np.full(bars, 100.0)
    zero_N = np.zeros(bars)
    return BarTable(
        time_N=np.arange(1, bars + 1, dtype=np.int64) * 60_000_000_000,
        open_N=price_N,
        high_N=price_N + 1.0,
        low_N=price_N - 1.0,
        close_N=price_N,
        volume_N=zero_N + 5.0,
        spread_N=zero_N + 0.25,
        funding_N=zero_N,
        session_N=np.zeros(bars, dtype=np.int64),
        contract_N=np.zeros(bars, dtype=np.int64),
        extra={"flow": np.arange(bars, dtype=np.float64)},
    )


def test_rows_select_every_column_and_keep_absent_ones_absent() -> None:
    picked = flat_table().rows(slice(1, 3))
    assert len(picked) == 2
    assert picked.extra["flow"].tolist() == [1.0, 2.0]
    assert picked.buy_volume_N is None
    assert all(len(column) == 2 for column in columns(picked).values())


def test_a_sound_table_is_valid() -> None:
    flat_table().validate("x")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"close_N": np.array([100.0, np.nan, 100.0, 100.0])}, "bar 1: close_N is not finite"),
        ({"open_N": np.array([100.0, 100.0, 0.0, 100.0])}, "bar 2: open_N is not positive"),
        ({"high_N": np.array([101.0, 101.0, 101.0, 99.5])}, "bar 3: high is below"),
        ({"low_N": np.array([100.5, 99.0, 99.0, 99.0])}, "bar 0: low is above"),
        ({"spread_N": np.array([0.25, -0.25, 0.25, 0.25])}, "bar 1: spread is negative"),
        ({"volume_N": np.array([0.0, -1.0, 0.0, 0.0])}, "bar 1: volume is negative"),
        ({"time_N": np.array([1, 2, 2, 3])}, "bar 2: time does not increase"),
        ({"session_N": np.array([0, 1, 0, 1])}, "bar 2: session number decreases"),
        ({"contract_N": np.array([0, 0, 0, 1])}, "bar 3: contract number has no name"),
        ({"extra": {"flow": np.array([0.0, 0.0, np.inf, 0.0])}}, "bar 2: flow is not finite"),
        ({"volume_N": np.zeros(3)}, "column volume_N has 3 rows, the table has 4"),
    ],
)
def test_a_broken_invariant_names_the_first_bad_bar(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        replace(flat_table(), **change).validate("x.csv")


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(UserError, match="no bars"):
        flat_table(0).validate("x.csv")
