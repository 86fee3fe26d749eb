"""Two streams of events joined by time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.market.events import END_OF_TIME, Book, Trades, merge


def make_trades(times: list[int]) -> Trades:
    count = len(times)
    return Trades(
        np.array(times, dtype=np.int64), np.ones(count, dtype=np.int64), np.ones(count), np.ones(count), np.zeros(count)
    )


def make_book(times: list[int]) -> Book:
    side = np.ones((len(times), 2))
    return Book(
        time_N=np.array(times, dtype=np.int64),
        contract_N=np.ones(len(times), dtype=np.int64),
        bid_price_NM=side * 100.0,
        bid_size_NM=side,
        ask_price_NM=side * 101.0,
        ask_size_NM=side,
        fresh_N=np.zeros(len(times), dtype=np.bool_),
    )


def chunks(times: list[int], cuts: list[int]) -> Iterator[list[int]]:
    edges = [0, *sorted(cut % (len(times) + 1) for cut in cuts), len(times)]
    for start, end in pairwise(edges):
        yield times[start:end]


def test_a_piece_holds_only_what_lies_before_its_watermark() -> None:
    pieces = list(merge(iter([make_trades([1, 5]), make_trades([5, 9])]), iter([make_book([2, 5, 7])]), 2))
    for piece in pieces:
        for events in (piece.trades, piece.book):
            assert (events.time_N < piece.watermark).all()
    assert pieces[-1].watermark == END_OF_TIME
    assert np.concatenate([piece.trades.time_N for piece in pieces]).tolist() == [1, 5, 5, 9]
    assert np.concatenate([piece.book.time_N for piece in pieces]).tolist() == [2, 5, 7]


def test_no_book_at_all_still_gives_every_trade() -> None:
    pieces = list(merge(iter([make_trades([3]), make_trades([4])]), iter([]), 1))
    assert sum(len(piece.trades) for piece in pieces) == 2


@given(
    st.lists(st.integers(1, 30), max_size=20),
    st.lists(st.integers(1, 30), max_size=20),
    st.lists(st.integers(0, 40), max_size=4),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_nothing_is_lost_or_early_whatever_the_chunks(
    trades: list[int], book: list[int], trade_cuts: list[int], book_cuts: list[int]
) -> None:
    trades, book = sorted(trades), sorted(book)
    before = 0
    seen_trades: list[int] = []
    seen_book: list[int] = []
    for piece in merge(
        (make_trades(part) for part in chunks(trades, trade_cuts)),
        (make_book(part) for part in chunks(book, book_cuts)),
        2,
    ):
        assert piece.watermark > before
        for events, seen in ((piece.trades, seen_trades), (piece.book, seen_book)):
            assert ((events.time_N >= before) & (events.time_N < piece.watermark)).all()
            seen.extend(events.time_N.tolist())
        before = piece.watermark
    assert (seen_trades, seen_book) == (trades, book)


def test_mid_and_spread_are_of_the_best_level() -> None:
    book = make_book([1])
    assert book.mid_N.tolist() == [100.5]
    assert book.spread_N.tolist() == [1.0]


def test_rows_and_concat_keep_every_field() -> None:
    book = make_book([1, 2, 3])
    again = Book.concat([book.rows(slice(0, 1)), book.rows(np.array([1, 2]))])
    assert again.time_N.tolist() == [1, 2, 3]
    assert again.bid_price_NM.shape == (3, 2)


def test_empty_books_have_the_levels_asked_for() -> None:
    assert Book.none(10).bid_size_NM.shape == (0, 10)
    assert len(Trades.none()) == 0
    with pytest.raises(ValueError, match="need at least one array"):
        Trades.concat([])
