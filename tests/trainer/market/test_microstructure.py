"""The 20 microstructure features against books and trades worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.market.events import Book
from trainer.market.features.spec import FeatureSpec, check_specs
from trainer.market.market import Parity
from trainer.market.microstructure import (
    HAS_BOOK,
    MICROSTRUCTURE,
    MICROSTRUCTURE_NAMES,
    BarMeasures,
    amihud,
    book_measures,
    depth,
    flow_of_bars,
    kyle_lambda,
    microprice_deviation,
    microstructure_columns,
    no_book_columns,
    order_flow,
    rolling_sum,
    segment_sum,
    slopes,
    vpin,
)

Level = tuple[float, float, float, float]  # bid price, bid size, ask price, ask size


def make_book(states: list[list[Level]], fresh: list[int] | None = None) -> Book:
    """States at times 10, 20, ...; each a list of levels."""
    array = np.array(states, dtype=np.float64)
    fresh_N = np.zeros(len(states), dtype=np.bool_)
    fresh_N[fresh or []] = True
    return Book(
        time_N=10 * np.arange(1, len(states) + 1),
        contract_N=np.ones(len(states), dtype=np.int64),
        bid_price_NM=array[:, :, 0],
        bid_size_NM=array[:, :, 1],
        ask_price_NM=array[:, :, 2],
        ask_size_NM=array[:, :, 3],
        fresh_N=fresh_N,
    )


def one_level(*states: Level, fresh: list[int] | None = None) -> Book:
    return make_book([[state] for state in states], fresh)


def make_measures(count: int, **given_fields: Any) -> BarMeasures:
    zeros, ones = np.zeros(count), np.ones(count)
    defaults: dict[str, Any] = {
        "has_book_N": np.ones(count, dtype=np.bool_),
        "mid_open_N": ones * 100.0,
        "mid_close_N": ones * 100.0,
        "spread_N": ones * 0.25,
        "flow_N3": np.zeros((count, 3)),
        "size_N6": np.ones((count, 6)),
        "microprice_N": zeros,
        "slope_N2": np.ones((count, 2)),
        "changes_N": ones,
        "seconds_N": ones,
        "trades_N": ones,
        "signed_trades_N": zeros,
        "volume_N": ones,
        "signed_volume_N": zeros,
        "effective_N": zeros,
        "realised_N": zeros,
    }
    return BarMeasures(**(defaults | given_fields))


def test_there_are_twenty_with_unique_names_and_a_unit_and_source_each() -> None:
    assert len(MICROSTRUCTURE) == 20
    assert len(set(MICROSTRUCTURE_NAMES)) == 20
    assert HAS_BOOK not in MICROSTRUCTURE_NAMES
    for spec in MICROSTRUCTURE:
        assert ";" in spec.doc or " per " in spec.doc


def test_a_spec_must_say_what_its_parity_needs() -> None:
    with pytest.raises(ValueError, match="partner"):
        FeatureSpec("x", Parity.SWAPPED)
    with pytest.raises(ValueError, match="reflect_at"):
        FeatureSpec("x", Parity.ODD, reflect_at=100.0)
    with pytest.raises(ValueError, match="not swapped back"):
        check_specs([FeatureSpec("x", Parity.SWAPPED, partner="y"), FeatureSpec("y", Parity.ODD)])
    with pytest.raises(ValueError, match="share one name"):
        check_specs([FeatureSpec("x", Parity.ODD), FeatureSpec("x", Parity.EVEN)])


def test_order_flow_counts_size_changes_at_an_unchanged_price() -> None:
    book = one_level((100, 5, 101, 7), (100, 8, 101, 7), (100, 8, 101, 4), (100, 6, 101, 9))
    # bid grows by 3: +3; ask shrinks by 3: +3; bid shrinks by 2 and ask grows by 5: -7
    assert order_flow(book)[:, 0].tolist() == [0.0, 3.0, 3.0, -7.0]


def test_order_flow_of_moving_prices() -> None:
    book = one_level((100, 5, 101, 7), (100.5, 2, 101, 7), (100, 6, 101, 7), (100, 6, 102, 3), (100, 6, 101, 4))
    # bid up: the new queue 2; bid down: the old queue -2; ask up: the old queue +7; ask down: minus the new queue 4
    assert order_flow(book)[:, 0].tolist() == [0.0, 2.0, -2.0, 7.0, -4.0]


def test_nothing_is_computed_across_a_break() -> None:
    book = one_level((100, 5, 101, 7), (200, 50, 201, 7), (200, 51, 201, 7), fresh=[1])
    assert order_flow(book)[:, 0].tolist() == [0.0, 0.0, 1.0]


def test_a_level_that_appears_or_vanishes_counts_with_its_size() -> None:
    inf = float("inf")
    book = make_book(
        [
            [(100, 5, 101, 5), (99, 3, inf, 0)],
            [(100, 5, 101, 5), (-inf, 0, 102, 4)],
            [(100, 5, 101, 5), (-inf, 0, inf, 0)],
        ]
    )
    # level 2: the bid queue of 3 goes (-3) and an ask queue of 4 comes (-4); then the ask queue goes (+4)
    assert order_flow(book)[:, 1].tolist() == [0.0, -7.0, 4.0]
    assert order_flow(book)[:, 0].tolist() == [0.0, 0.0, 0.0]


def test_order_flow_is_grouped_by_level_and_summed_per_bar() -> None:
    still = [(100.0 - level, 10.0, 101.0 + level, 10.0) for level in range(10)]
    moved = [(price, size + 1.0 + level, ask, ask_size) for level, (price, size, ask, ask_size) in enumerate(still)]
    book = make_book([still, moved, still, moved])
    first_N, last_N = np.array([0, 2, 4]), np.array([2, 4, 4])
    flow_N3 = flow_of_bars(book, first_N, last_N)
    # a step up adds 1 to level 1, 2+3+4+5 to levels 2-5 and 6+...+10 to levels 6-10; bar 2 holds a step down and one up
    assert flow_N3.tolist() == [[1.0, 14.0, 40.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_depth_sums_one_five_and_ten_levels() -> None:
    book = make_book([[(100.0 - level, 1.0 + level, 101.0 + level, 2.0) for level in range(10)]])
    assert depth(book).tolist() == [[1.0, 2.0, 15.0, 10.0, 55.0, 20.0]]


def test_microprice_leans_to_the_thinner_side() -> None:
    book = one_level((100, 30, 101, 10))
    # (101 * 30 + 100 * 10) / 40 = 100.75, a quarter above the mid
    assert microprice_deviation(book).tolist() == [0.25]


def test_slope_is_size_over_the_ticks_it_spans() -> None:
    inf = float("inf")
    book = make_book([[(100, 6, 101, 4), (99, 3, inf, 0)]])
    # bid: 9 units over 100 down to 99 = 3 ticks of 0.5; ask: 4 units on 1 tick
    assert slopes(book, 0.5).tolist() == [[3.0, 4.0]]


def test_book_measures_take_the_state_in_force_at_open_and_close() -> None:
    book = one_level((100, 1, 101, 1), (102, 1, 103, 1), (104, 1, 106, 1))  # at 10, 20, 30
    measures = book_measures(book, np.array([5, 15, 31]), np.array([15, 31, 40]), 1.0)
    assert measures["mid_open_N"].tolist() == [100.5, 100.5, 105.0]
    assert measures["mid_close_N"].tolist() == [100.5, 105.0, 105.0]
    assert measures["spread_N"].tolist() == [1.0, 2.0, 2.0]
    assert measures["changes_N"].tolist() == [1.0, 2.0, 0.0]


def test_bars_before_the_first_state_have_no_book() -> None:
    measures = book_measures(one_level((100, 1, 101, 1)), np.array([0, 9]), np.array([9, 11]), 1.0)
    assert measures["has_book_N"].tolist() == [False, True]
    assert measures["mid_close_N"].tolist() == [0.0, 100.5]


def test_segment_sums_of_empty_and_trailing_segments() -> None:
    values = np.array([1.0, 2.0, 4.0])
    assert segment_sum(values, np.array([0, 1, 1, 3]), np.array([1, 1, 3, 3])).tolist() == [1.0, 0.0, 6.0, 0.0]


def test_vpin_is_sum_over_sum() -> None:
    # window of 2: |3|/4; (3 + 1) / (4 + 10); (1 + 0) / (10 + 6)
    assert vpin(np.array([3.0, -1.0, 0.0]), np.array([4.0, 10.0, 6.0]), 2).tolist() == [3 / 4, 4 / 14, 1 / 16]


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), min_size=1, max_size=60),
    st.integers(2, 10),
)
def test_vpin_stays_between_zero_and_one(sides: list[tuple[float, float]], window: int) -> None:
    buy_N, sell_N = np.array(sides).T
    value_N = vpin(buy_N - sell_N, buy_N + sell_N, window)
    assert ((value_N >= 0.0) & (value_N <= 1.0)).all()


def test_kyle_lambda_is_the_least_squares_slope_of_the_window() -> None:
    rng = np.random.default_rng(3)
    volume_N, noise_N = rng.normal(size=40), rng.normal(size=40)
    move_N = 0.5 * volume_N + noise_N
    slope_N = kyle_lambda(move_N, volume_N, 10)
    for bar in (1, 5, 9, 25, 39):
        rows = slice(max(0, bar - 9), bar + 1)
        assert slope_N[bar] == pytest.approx(np.polyfit(volume_N[rows], move_N[rows], 1)[0])
    assert slope_N[0] == 0.0


def test_kyle_lambda_of_a_constant_volume_is_zero() -> None:
    assert kyle_lambda(np.array([1.0, 2.0, 3.0]), np.full(3, 7.0), 2).tolist() == [0.0, 0.0, 0.0]


def test_amihud_is_a_mean_of_ratios() -> None:
    assert amihud(np.array([2.0, -6.0, 0.0]), np.array([4.0, 2.0, 5.0]), 2).tolist() == [0.5, 1.75, 1.5]


def test_rolling_sums_do_not_depend_on_what_follows() -> None:
    values_N = np.random.default_rng(0).normal(size=500)
    whole_N = rolling_sum(values_N, 17)
    for end in (1, 16, 17, 18, 321):
        assert (rolling_sum(values_N[:end], 17) == whole_N[:end]).all()
    assert whole_N[100] == pytest.approx(values_N[84:101].sum())


def test_columns_of_one_bar_worked_by_hand() -> None:
    measures = make_measures(
        1,
        mid_open_N=np.array([100.0]),
        mid_close_N=np.array([101.0]),
        spread_N=np.array([0.5]),
        flow_N3=np.array([[1.0, 2.0, 3.0]]),
        size_N6=np.array([[3.0, 1.0, 5.0, 15.0, 10.0, 30.0]]),
        microprice_N=np.array([0.125]),
        slope_N2=np.array([[4.0, 5.0]]),
        changes_N=np.array([20.0]),
        seconds_N=np.array([4.0]),
        trades_N=np.array([5.0]),
        signed_trades_N=np.array([3.0]),
        volume_N=np.array([10.0]),
        signed_volume_N=np.array([-6.0]),
        effective_N=np.array([0.5]),
        realised_N=np.array([-0.25]),
    )
    columns = {name: float(column[0]) for name, column in microstructure_columns(measures, 50, 0.25).items()}
    assert columns == {
        "ofi_1": 1.0,
        "ofi_2_5": 2.0,
        "ofi_6_10": 3.0,
        "queue_imbalance": 0.5,
        "depth_imbalance_5": -0.5,
        "depth_imbalance_10": -0.5,
        "microprice_deviation": 0.5,
        "spread_ticks": 2.0,
        "trade_imbalance": -0.6,
        "trade_count_imbalance": 0.6,
        "vpin": 0.6,
        "trade_intensity": 1.25,
        "mean_trade_size": 2.0,
        "kyle_lambda": 0.0,
        "amihud": 10.0,  # 100 basis points over 10 units
        "bid_slope": 4.0,
        "ask_slope": 5.0,
        "quote_rate": 5.0,
        "effective_spread": 2.0,
        "realised_spread": -1.0,
        "has_book": 1.0,
    }


def test_bars_without_a_book_are_zeros_and_a_flag() -> None:
    measures = make_measures(3, has_book_N=np.array([True, False, True]))
    columns = microstructure_columns(measures, 2, 0.25)
    assert tuple(columns) == (*MICROSTRUCTURE_NAMES, HAS_BOOK)
    assert all(column[1] == 0.0 for column in columns.values())
    assert columns[HAS_BOOK].tolist() == [1.0, 0.0, 1.0]
    none = no_book_columns(2)
    assert tuple(none) == tuple(columns)
    assert all((column == 0.0).all() for column in none.values())


def test_many_bars_at_one_instant_give_finite_rates() -> None:
    columns = microstructure_columns(make_measures(3, seconds_N=np.zeros(3)), 2, 0.25)
    assert all(np.isfinite(column).all() for column in columns.values())


def mirrored(book: Book, middle: float) -> Book:
    """Every price reflected at ``middle``: bids become asks."""
    return Book(
        time_N=book.time_N,
        contract_N=book.contract_N,
        bid_price_NM=2 * middle - book.ask_price_NM,
        bid_size_NM=book.ask_size_NM,
        ask_price_NM=2 * middle - book.bid_price_NM,
        ask_size_NM=book.bid_size_NM,
        fresh_N=book.fresh_N,
    )


@given(st.integers(0, 2**32 - 1))
def test_declared_parities_hold_for_a_mirrored_book_and_tape(seed: int) -> None:
    """Mirror book and trades for real: each column becomes what its parity says (amihud but for the price level)."""
    rng = np.random.default_rng(seed)
    states = []
    for _ in range(12):
        best = 100.0 + float(rng.integers(-2, 3))
        states.append(
            [
                (best - level, float(rng.integers(1, 9)), best + 1 + level, float(rng.integers(1, 9)))
                for level in range(10)
            ]
        )
    book = make_book(states)
    begin_N, end_N = np.array([5, 45, 85]), np.array([45, 85, 125])
    signed_N, effective_N, realised_N = rng.integers(-5, 6, (3, 3)).astype(np.float64)

    def columns(view: Book, sign: float) -> dict[str, Any]:
        measured = book_measures(view, begin_N, end_N, 1.0)
        return microstructure_columns(
            make_measures(
                3,
                **measured,
                volume_N=np.full(3, 5.0),
                signed_volume_N=sign * signed_N,
                signed_trades_N=sign * signed_N / 5.0,
                effective_N=effective_N,
                realised_N=realised_N,
            ),
            2,
            1.0,
        )

    real, mirror = columns(book, 1.0), columns(mirrored(book, 100.0), -1.0)
    for spec in MICROSTRUCTURE:
        sign = -1.0 if spec.parity is Parity.ODD else 1.0
        source = spec.name if spec.partner is None else spec.partner
        tolerance = 0.1 if spec.name == "amihud" else 1e-12
        np.testing.assert_allclose(
            mirror[spec.name], sign * real[source], rtol=tolerance, atol=1e-12, err_msg=spec.name
        )
