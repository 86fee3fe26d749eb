from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from trainer.errors import UserError
from trainer.market import quality
from trainer.market.instrument import load_instrument
from trainer.market.quality import PRICES, Tally

ES = load_instrument("es")


def frame(close: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "row": [f"line {i + 2}" for i in range(len(close))],
            "time": np.arange(len(close), dtype=np.int64) * 60,
            "open": close,
            "high": close,
            "low": close,
            "close": close,
            "volume": [1.0] * len(close),
            "contract": [""] * len(close),
        }
    )


def tally() -> Tally:
    return Tally(files=("x.csv",))


@pytest.mark.parametrize(
    ("column", "value", "fault"),
    [
        ("close", np.nan, "line 3: close is missing or not finite"),  # qlib #2301: never silently another price
        ("open", np.inf, "line 3: open is missing or not finite"),
        ("close", 0.0, "line 3: close is 0.0; prices must be positive"),  # TorchTrade #289, #398
        ("low", -5.0, "line 3: low is -5.0"),
        ("high", 99.0, "line 3: high 99.0 is below low 100.0"),
        ("open", 100.5, "line 3: high 100.0 is below open 100.5"),
        ("close", 99.5, "line 3: low 100.0 is above open 100.0 or close 99.5"),
        ("volume", -1.0, "line 3: volume is -1.0"),
        ("volume", np.nan, "line 3: volume is missing"),
    ],
)
def test_a_bad_number_names_file_and_row(column: str, value: float, fault: str) -> None:
    bad = frame([100.0, 100.0, 100.0])
    bad.loc[1, column] = value
    with pytest.raises(UserError, match=rf"^x\.csv: {fault}"):
        quality.check_numbers(bad, "x.csv")


def test_further_bad_rows_are_counted() -> None:
    with pytest.raises(UserError, match=r"line 2: open is 0.0 \(and 1 more\)"):
        quality.check_numbers(frame([0.0, 1.0, 0.0]), "x.csv")


def test_exact_copies_are_dropped_and_counted() -> None:
    raw, counts = frame([1.0, 2.0]), tally()
    doubled = pd.concat([raw, raw.assign(row=["line 4", "line 5"])])
    assert quality.drop_copies(doubled, counts, "x.csv")["row"].tolist() == ["line 2", "line 3"]
    assert counts.dropped == {"exact copies of an earlier row": 2}


def test_two_different_bars_of_one_time_are_an_error_naming_both() -> None:
    raw = frame([1.0, 2.0, 3.0])
    raw["time"] = [0, 60, 60]
    with pytest.raises(UserError, match="line 3 and line 4 are different bars of the same time"):
        quality.drop_copies(raw, tally(), "x.csv")


def test_two_contracts_may_share_a_time() -> None:
    raw = frame([1.0, 2.0])
    raw["time"], raw["contract"] = 0, ["A", "B"]
    assert len(quality.drop_copies(raw, tally(), "x.csv")) == 2


def test_unsorted_rows_are_sorted_and_counted() -> None:
    counts = tally()
    assert quality.sort_rows(frame([1.0, 2.0, 3.0]).iloc[[2, 0, 1]], counts)["close"].tolist() == [1.0, 2.0, 3.0]
    assert counts.repaired == {"rows out of order, sorted by time": 1}


@pytest.mark.parametrize("unit", quality.FIXED_POINT_UNITS)
def test_a_whole_session_in_fixed_point_is_scaled_back(unit: float) -> None:
    counts = tally()
    raw = frame([2178.25, 2178.5, 2178.25 * unit, 2179.0 * unit])
    factor_N = quality.fixed_point_factor(raw, np.array([0, 0, 1, 1]), ES, counts, "x.csv")
    assert factor_N.tolist() == [1.0, 1.0, unit, unit]
    assert list(counts.repaired.values()) == [2]


@pytest.mark.parametrize("close", [[2178.25, 2178.5e6], [2178.3e6, 2178.5e6], [5.0, 5.0], [2e14, 2e14]])
def test_a_price_out_of_range_that_no_unit_explains_is_an_error(close: list[float]) -> None:
    with pytest.raises(UserError, match=r"line [23]: prices .* are out of range.*ES lies in 100 to 100000"):
        quality.fixed_point_factor(frame(close), np.zeros(2, dtype=np.int64), ES, tally(), "x.csv")


def test_an_absurd_move_inside_a_session_is_an_error() -> None:
    with pytest.raises(UserError, match=r"line 4: open 160.0 is more than 50% away"):
        quality.check_moves(frame([100.0, 100.0, 160.0]), np.zeros(3, dtype=np.int64), 0.5, "x.csv")


def test_an_absurd_wick_on_the_first_bar_is_an_error() -> None:
    raw = frame([100.0, 100.0])
    raw.loc[0, "high"] = 1000.0
    with pytest.raises(UserError, match=r"line 2: high 1000.0"):
        quality.check_moves(raw, np.zeros(2, dtype=np.int64), 0.5, "x.csv")


def test_moves_over_night_and_over_a_roll_are_not_judged() -> None:
    raw = frame([100.0, 200.0, 400.0])
    raw["contract"] = ["A", "A", "B"]
    quality.check_moves(raw, np.array([0, 1, 1]), 0.5, "x.csv")


def test_bars_without_volume_are_dropped_unless_the_file_has_none() -> None:
    counts = tally()
    raw = frame([1.0, 2.0, 3.0])
    raw["volume"] = [1.0, 0.0, 1.0]
    assert quality.drop_untraded(raw, counts)["close"].tolist() == [1.0, 3.0]
    assert counts.dropped == {"zero volume: nothing traded": 1}
    assert len(quality.drop_untraded(raw.assign(volume=0.0), counts)) == 3
    assert counts.notes == ["volume is zero everywhere: taken as not reported"]


@pytest.mark.parametrize(
    ("bid", "ask", "close", "spread", "repair"),
    [
        (100.0, 100.5, 100.25, 0.5, None),
        (100.0, 100.0, 100.0, 0.25, "locked quote: default spread"),
        (100.5, 100.0, 101.0, 0.25, "crossed quote: last trade and default spread"),
        (np.nan, 100.0, 101.0, 0.25, "no quote at the close: last trade and default spread"),
        (100.0, 0.0, 101.0, 0.25, "no quote at the close: last trade and default spread"),
        (90.0, 110.0, 101.0, 0.25, "absurd quote: last trade and default spread"),
        (200.0, 200.25, 101.0, 0.25, "absurd quote: last trade and default spread"),
        (200.0, 200.0, 101.0, 0.25, "absurd quote: last trade and default spread"),
    ],
)
def test_the_mid_where_the_quote_is_usable(
    bid: float, ask: float, close: float, spread: float, repair: str | None
) -> None:
    counts = tally()
    close_N, spread_N = quality.apply_quotes(frame([101.0]), np.array([bid]), np.array([ask]), ES, 0.05, counts)
    assert (close_N.tolist(), spread_N.tolist()) == ([close], [spread])
    assert counts.repaired == ({} if repair is None else {repair: 1})


def test_a_missing_quote_is_never_filled_from_a_neighbour() -> None:
    """FinRL: filling backwards is a look ahead."""
    bid_N, ask_N = np.array([np.nan, 110.0, np.nan]), np.array([np.nan, 110.5, np.nan])
    close_N, spread_N = quality.apply_quotes(frame([109.0, 110.0, 111.0]), bid_N, ask_N, ES, 0.05, tally())
    assert close_N.tolist() == [109.0, 110.25, 111.0]
    assert spread_N.tolist() == [0.25, 0.5, 0.25]


def test_the_report_counts_every_row() -> None:
    counts = tally()
    counts.rows_read = 10
    counts.drop("a", 2)
    counts.drop("a", 1)
    counts.drop("b", 0)
    counts.repair("c", 4)
    report = counts.report(rows_kept=7)
    assert report.rows_read - sum(report.dropped.values()) == report.rows_kept
    assert (dict(report.dropped), dict(report.repaired)) == ({"a": 3}, {"c": 4})
    assert set(PRICES) == {"open", "high", "low", "close"}
