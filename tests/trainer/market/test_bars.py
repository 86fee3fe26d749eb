"""Bars cut from trades and a book: worked by hand, then properties over random markets and pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.market.bar_config import BarConfig
from trainer.market.bars import CutBars, cut_bars, session_edges
from trainer.market.calendar import DAY, HOUR, MINUTE, SECOND
from trainer.market.events import Book, Trades, merge
from trainer.market.instrument import Instrument, load_instrument

KINDS = ("time", "tick", "volume", "dollar")
MONDAY = 19_723 * DAY  # 2024-01-01 00:00 UTC


def make_instrument(**changes: Any) -> Instrument:
    """Trades from 10:00 to 16:00 UTC."""
    settings_ = {
        "name": "test",
        "tick": 0.5,
        "multiplier": 1.0,
        "currency": "USD",
        "timezone": "UTC",
        "sessions_per_year": 252.0,
        "open": time(10),
        "close": time(16),
        "commission_bps": 0.1,
        "margin_fraction": 0.1,
        "default_spread_ticks": 1.0,
        "price_low": 1.0,
        "price_high": 1e6,
        "max_halt_minutes": 30.0,
    }
    return Instrument.model_validate(settings_ | changes)


Trade = tuple[int, float, float, float]  # time, price, size, side
State = tuple[int, float, float]  # time, bid, ask


def make_trades(rows: list[Trade], contract: int = 1) -> Trades:
    array = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 3)
    return Trades(
        time_N=np.array([row[0] for row in rows], dtype=np.int64),
        contract_N=np.full(len(rows), contract, dtype=np.int64),
        price_N=array[:, 0],
        size_N=array[:, 1],
        side_N=array[:, 2],
    )


def make_book(rows: list[State], contract: int = 1) -> Book:
    array = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 2)
    ones = np.ones((len(rows), 1))
    return Book(
        time_N=np.array([row[0] for row in rows], dtype=np.int64),
        contract_N=np.full(len(rows), contract, dtype=np.int64),
        bid_price_NM=array[:, :1],
        bid_size_NM=ones * 3.0,
        ask_price_NM=array[:, 1:],
        ask_size_NM=ones,
        fresh_N=np.zeros(len(rows), dtype=np.bool_),
    )


def cut(trades: Trades, book: Book, kind: str, size: float, instrument: Instrument | None = None) -> CutBars:
    config = BarConfig.model_validate({"kind": kind, "size": size})
    levels = book.bid_size_NM.shape[1]
    bars = cut_bars(
        merge(iter([trades]), iter([book]), levels),
        config,
        make_instrument() if instrument is None else instrument,
        levels,
    )
    assert bars is not None
    return bars


def clock(hours: float, seconds: float = 0.0) -> int:
    return MONDAY + round(hours * HOUR) + round(seconds * SECOND)


TEN = clock(10)


def test_volume_bars_split_a_large_trade_and_conserve_totals() -> None:
    trades = make_trades([(TEN, 100.0, 6.0, 1.0), (TEN + 5, 101.0, 25.0, -1.0), (TEN + 9, 99.0, 2.0, 1.0)])
    bars = cut(trades, make_book([]), "volume", 10.0)
    assert bars.volume_N.tolist() == [10.0, 10.0, 10.0, 3.0]
    assert bars.buy_volume_N.tolist() == [6.0, 0.0, 0.0, 2.0]
    assert bars.sell_volume_N.tolist() == [4.0, 10.0, 10.0, 1.0]
    assert bars.open_N.tolist() == [100.0, 101.0, 101.0, 101.0]
    assert bars.low_N.tolist() == [100.0, 101.0, 101.0, 99.0]
    assert bars.close_N.tolist() == [101.0, 101.0, 101.0, 99.0]
    # three bars are finished at one instant: 1 ns apart, none before it
    assert bars.time_N.tolist() == [TEN + 5, TEN + 6, TEN + 7, TEN + 9]


def test_a_bar_that_is_exactly_filled_leaves_nothing_for_the_next() -> None:
    bars = cut(make_trades([(TEN, 100.0, 4.0, 1.0), (TEN + 1, 100.0, 6.0, 1.0)]), make_book([]), "volume", 10.0)
    assert bars.volume_N.tolist() == [10.0]


def test_tick_bars_hold_whole_trades() -> None:
    trades = make_trades([(TEN + i, 100.0 + i, 1.0 + i, 1.0) for i in range(5)])
    bars = cut(trades, make_book([]), "tick", 2.0)
    assert bars.volume_N.tolist() == [3.0, 7.0, 5.0]
    assert bars.measures.trades_N.tolist() == [2.0, 2.0, 1.0]
    with pytest.raises(ValueError, match="whole"):
        BarConfig(kind="tick", size=2.5)


def test_dollar_bars_split_by_money() -> None:
    trades = make_trades([(TEN, 100.0, 3.0, 1.0), (TEN + 1, 50.0, 6.0, 1.0)])  # 300 and 300
    bars = cut(trades, make_book([]), "dollar", 400.0)
    assert bars.volume_N.tolist() == [5.0, 4.0]  # 300 + 2 x 50, then 4 x 50


def test_time_bars_are_labelled_by_their_end_on_the_session_clock() -> None:
    instrument = make_instrument(open=time(10, 15), close=time(16))
    quarter = clock(10.25)
    trades = make_trades(
        [
            (quarter, 100.0, 1.0, 1.0),
            (quarter + HOUR - 1, 101.0, 1.0, 1.0),
            (quarter + HOUR, 102.0, 1.0, 1.0),  # first instant of the next bar
        ]
    )
    bars = cut(trades, make_book([]), "time", 3600.0, make_instrument(open=time(10, 15), max_halt_minutes=600.0))
    assert bars.time_N.tolist() == [quarter + HOUR, quarter + 2 * HOUR]
    assert bars.volume_N.tolist() == [2.0, 1.0]
    late = make_trades([(clock(15.9), 100.0, 1.0, 1.0)])
    assert cut(late, make_book([]), "time", 3600.0, instrument).time_N.tolist() == [clock(16)]  # not past the close


def test_time_bars_without_a_trade_are_left_out() -> None:
    trades = make_trades([(TEN, 100.0, 1.0, 1.0), (TEN + 5 * MINUTE, 100.0, 1.0, 1.0)])
    bars = cut(trades, make_book([(TEN + MINUTE, 99.5, 100.5)]), "time", 60.0)
    assert bars.time_N.tolist() == [TEN + MINUTE, TEN + 6 * MINUTE]
    assert bars.measures.changes_N.tolist() == [0.0, 1.0]  # the state at exactly the first bar's end is not in it
    assert bars.measures.seconds_N.tolist() == [60.0, 300.0]


def test_close_and_open_are_mids_and_the_spread_is_that_of_the_close() -> None:
    trades = make_trades([(TEN + 10, 101.0, 10.0, 1.0), (TEN + 30, 103.0, 10.0, 1.0)])
    book = make_book([(TEN + 5, 100.0, 101.0), (TEN + 10, 100.5, 102.0), (TEN + 25, 102.0, 103.0)])
    bars = cut(trades, book, "volume", 10.0)
    # the state of the very instant that fills the bar is known at its close
    assert bars.open_N.tolist() == [100.5, 102.5]
    assert bars.close_N.tolist() == [101.25, 102.5]
    assert bars.measures.spread_N.tolist() == [1.5, 1.0]
    assert bars.measures.mid_open_N.tolist() == [100.5, 101.25]
    assert bars.high_N.tolist() == [101.25, 103.0]
    assert bars.low_N.tolist() == [100.5, 102.5]


def test_effective_and_realised_spread_by_hand() -> None:
    trades = make_trades([(TEN + 10, 101.0, 6.0, 1.0), (TEN + 20, 100.0, 2.0, -1.0)])
    book = make_book([(TEN + 5, 100.0, 101.0), (TEN + 15, 100.0, 102.0), (TEN + 20, 100.5, 101.0)])
    bars = cut(trades, book, "volume", 8.0)
    # mids before: 100.5 and 101; (6 * 2 * 0.5 + 2 * 2 * 1) / 8; mid at the close 100.75:
    # (6 * 2 * 0.25 + 2 * 2 * 0.75) / 8
    assert bars.measures.effective_N.tolist() == [1.25]
    assert bars.measures.realised_N.tolist() == [0.75]


def test_an_unsided_trade_takes_its_side_from_the_mid_and_is_halved_at_it() -> None:
    trades = make_trades([(TEN + i, price, 4.0, 0.0) for i, price in ((10, 101.0), (11, 100.0), (12, 100.5))])
    bars = cut(trades, make_book([(TEN + 5, 100.0, 101.0)]), "tick", 1.0)
    assert bars.buy_volume_N.tolist() == [4.0, 0.0, 2.0]
    assert bars.sell_volume_N.tolist() == [0.0, 4.0, 2.0]
    without = cut(trades, make_book([]), "tick", 3.0)
    assert (without.buy_volume_N.tolist(), without.sell_volume_N.tolist()) == ([6.0], [6.0])


def test_bars_never_span_a_session() -> None:
    trades = make_trades([(clock(15.99), 100.0, 3.0, 1.0), (clock(34.01), 110.0, 30.0, 1.0)])
    book = make_book([(clock(15.98), 99.5, 100.5), (clock(15.995), 98.0, 99.0), (clock(34), 109.0, 110.0)])
    for kind, size in (("volume", 10.0), ("time", 86_400.0), ("tick", 5.0), ("dollar", 2000.0)):
        bars = cut(trades, book, kind, size)
        assert bars.session_N[0] == 0
        assert (bars.session_N[1:] == 1).all()
        assert bars.volume_N[0] == 3.0
        assert bars.volume_N.sum() == pytest.approx(33.0, abs=1e-12)
        assert bars.time_N[0] == clock(16)  # the shorter bar is known to be over at the close, and ends with its book
        assert bars.close_N[0] == 98.5
        assert bars.measures.mid_open_N[1] == 109.5  # nothing of yesterday's book
    assert cut(trades, book, "volume", 10.0).volume_N.tolist() == [3.0, 10.0, 10.0, 10.0]


def test_a_trade_before_the_first_state_of_its_session_meets_no_mid() -> None:
    trades = make_trades([(TEN, 100.0, 4.0, 0.0), (TEN + DAY, 110.0, 4.0, 0.0), (TEN + DAY + 9, 110.0, 4.0, 0.0)])
    book = make_book([(TEN - 1, 99.0, 100.0), (TEN + 1, 99.0, 100.0), (TEN + DAY + 5, 109.0, 110.0)])
    bars = cut(trades, book, "tick", 1.0)
    assert bars.buy_volume_N.tolist() == [2.0, 2.0, 4.0]  # halved where no mid says more
    assert bars.open_N.tolist() == [100.0, 110.0, 109.5]
    assert bars.measures.has_book_N.tolist() == [False, False, True]


def test_a_long_silence_starts_a_session_and_a_bar() -> None:
    trades = make_trades(
        [(TEN, 100.0, 1.0, 1.0), (TEN + 31 * MINUTE, 100.0, 1.0, 1.0), (TEN + 32 * MINUTE, 100.0, 1.0, 1.0)]
    )
    bars = cut(trades, make_book([]), "volume", 10.0)
    assert bars.volume_N.tolist() == [1.0, 2.0]
    assert bars.session_N.tolist() == [0, 1]
    hourly = cut(trades, make_book([]), "time", 3600.0)
    assert hourly.volume_N.tolist() == [1.0, 2.0]
    assert hourly.time_N.tolist() == [TEN + 31 * MINUTE, TEN + HOUR]
    assert hourly.measures.seconds_N.sum() == 3600.0


def test_bars_never_span_a_contract_change() -> None:
    old, new = make_trades([(TEN, 100.0, 3.0, 1.0)]), make_trades([(TEN + 5, 120.0, 4.0, 1.0)], contract=2)
    book = Book.concat([make_book([(TEN, 99.5, 100.5)]), make_book([(TEN + 4, 119.0, 120.0)], contract=2)])
    for kind, size in (("volume", 10.0), ("time", 3600.0)):
        bars = cut(Trades.concat([old, new]), book, kind, size)
        assert bars.contract_N.tolist() == [1, 2]
        assert bars.session_N.tolist() == [0, 0]
        assert bars.volume_N.tolist() == [3.0, 4.0]
        assert bars.close_N.tolist() == [100.0, 119.5]
        assert (bars.time_N[1:] > bars.time_N[:-1]).all()
        assert bars.measures.mid_open_N.tolist() == [100.0, 119.5]


def test_session_hours_follow_the_exchange_clock_over_daylight_saving() -> None:
    instrument = make_instrument(timezone="America/Chicago", open=time(17), close=time(16))
    winter, summer = 19_732 * DAY, 19_914 * DAY  # 2024-01-10 and 2024-07-10
    open_N, close_N = session_edges(np.array([winter + 12 * HOUR, summer + 12 * HOUR]), instrument)
    assert (open_N - np.array([winter, summer])).tolist() == [-HOUR, -2 * HOUR]
    assert (close_N - open_N).tolist() == [23 * HOUR, 23 * HOUR]


def test_sessions_begin_and_end_by_the_hours_that_held_then() -> None:
    instrument = load_instrument("es")
    noon = np.array([15_987 * DAY + 17 * HOUR, 19_914 * DAY + 17 * HOUR])  # in Chicago, 2013-10-09 and 2024-07-10
    open_N, close_N = session_edges(noon, instrument)
    assert ((close_N - open_N) / HOUR).tolist() == [23.25, 23.0]
    assert ((noon - open_N) / HOUR).tolist() == [19.0, 19.0]


def test_absurdly_small_bars_are_refused() -> None:
    with pytest.raises(UserError, match="larger size"):
        cut(make_trades([(TEN, 100.0, 1e6, 1.0)]), make_book([]), "volume", 1e-3)


def random_market(seed: int, count: int) -> tuple[Trades, Book]:
    """Two sessions of events with many equal times, uneven sizes and fractional prices."""
    rng = np.random.default_rng(seed)

    def times(number: int) -> list[int]:
        seconds = np.sort(rng.integers(0, 120, number)) * SECOND
        late = rng.random() if rng.random() < 0.8 else 2.0
        return [TEN + int(s) + (DAY if i >= late * number else 0) for i, s in enumerate(seconds)]

    trade_times, book_times = sorted(times(count)), sorted(times(3 * count))
    level = 100.0 + np.cumsum(rng.integers(-1, 2, 3 * count)) * 0.5
    book = make_book(
        [(t, float(b), float(b) + 0.5 * float(rng.integers(1, 4))) for t, b in zip(book_times, level, strict=True)]
    )
    book = Book(
        **{each.name: getattr(book, each.name) for each in fields(Book)} | {"fresh_N": rng.random(3 * count) < 0.1}
    )
    trades = make_trades(
        [
            (t, 100.0 + float(rng.normal()), float(rng.integers(1, 40)) / 7.0, float(rng.integers(-1, 2)))
            for t in trade_times
        ]
    )
    return trades, book


def pieces_of(events: Any, cuts: list[int]) -> Iterator[Any]:
    edges = [0, *sorted(cut_ % (len(events) + 1) for cut_ in cuts), len(events)]
    for start, end in pairwise(edges):
        yield events.rows(slice(start, end))


def columns_of(bars: CutBars) -> dict[str, Any]:
    own = {each.name: getattr(bars, each.name) for each in fields(bars) if each.name != "measures"}
    return own | {
        each.name: getattr(bars.measures, each.name) for each in fields(bars.measures) if each.name not in own
    }


SIZES = {"time": 7.0, "tick": 3.0, "volume": 4.9, "dollar": 333.3}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(KINDS),
    trade_cuts=st.lists(st.integers(0, 1000), max_size=12),
    book_cuts=st.lists(st.integers(0, 1000), max_size=12),
)
def test_pieces_of_any_size_give_the_same_bits(
    seed: int, kind: str, trade_cuts: list[int], book_cuts: list[int]
) -> None:
    trades, book = random_market(seed, 40)
    whole = cut(trades, book, kind, SIZES[kind])
    config = BarConfig.model_validate({"kind": kind, "size": SIZES[kind]})
    in_pieces = cut_bars(
        merge(pieces_of(trades, trade_cuts), pieces_of(book, book_cuts), 1), config, make_instrument(), 1
    )
    assert in_pieces is not None
    for name, column in columns_of(whole).items():
        np.testing.assert_array_equal(columns_of(in_pieces)[name], column, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS), seconds=st.integers(1, 119))
def test_nothing_after_a_bar_changes_it(seed: int, kind: str, seconds: int) -> None:
    trades, book = random_market(seed, 40)
    end = TEN + seconds * SECOND
    whole = cut(trades, book, kind, SIZES[kind])
    early_trades, early_book = trades.rows(trades.time_N <= end), book.rows(book.time_N <= end)
    if not len(early_trades):
        return
    early = cut(early_trades, early_book, kind, SIZES[kind])
    known = int((whole.time_N <= end).sum())
    kept = (
        known if kind == "time" else min(known, len(early) - 1)
    )  # the last bar may be cut short by the end of the data
    for name, column in columns_of(whole).items():
        np.testing.assert_array_equal(columns_of(early)[name][:kept], column[:kept], err_msg=name)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS))
def test_totals_are_conserved_and_bars_are_consistent(seed: int, kind: str) -> None:
    trades, book = random_market(seed, 40)
    bars = cut(trades, book, kind, SIZES[kind])
    assert bars.volume_N.sum() == pytest.approx(trades.size_N.sum(), rel=1e-12)
    np.testing.assert_allclose(bars.buy_volume_N + bars.sell_volume_N, bars.volume_N, rtol=1e-12)
    assert (np.diff(bars.time_N) > 0).all()
    assert (np.diff(bars.session_N) >= 0).all()
    assert (bars.high_N >= np.maximum(bars.open_N, bars.close_N)).all()
    assert (bars.low_N <= np.minimum(bars.open_N, bars.close_N)).all()
    if kind == "volume":
        assert (bars.volume_N <= SIZES[kind] * (1 + 1e-12)).all()
    if kind == "tick":
        assert bars.measures.trades_N.sum() == len(trades)
