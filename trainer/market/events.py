"""Market events on the host: trades and order-book states, as every event source makes them.

Legend: N events, M price levels (best first). Times are nanoseconds UTC on the exchange's clock and never decrease;
prices are points; sizes are units of the instrument. An absent level has size 0 and price -inf (bid) or +inf (ask), so
that comparisons of prices need no special case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Generic, Self, TypeVar

import numpy as np

from trainer.market.bars_table import Bools, Floats, Ints


@dataclass(frozen=True)
class Events:
    """What trades and book states share: slicing and joining along axis 0 of every field."""

    time_N: Ints
    contract_N: Ints  # the exchange's instrument id

    def __len__(self) -> int:
        return int(self.time_N.shape[0])

    def rows(self, index: slice | Ints | Bools) -> Self:
        """The chosen events."""
        return type(self)(**{each.name: getattr(self, each.name)[index] for each in fields(self)})

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """All events of ``parts`` (at least one part), in the order given."""
        return cls(**{each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)})


@dataclass(frozen=True)
class Trades(Events):
    """Executions."""

    price_N: Floats
    size_N: Floats
    side_N: Floats  # of the aggressor: +1 bought, -1 sold, 0 not said (auctions, implied trades)

    @classmethod
    def none(cls) -> Trades:
        return cls(_no_times(), _no_times(), np.empty(0), np.empty(0), np.empty(0))


@dataclass(frozen=True)
class Book(Events):
    """States of the book between events of the exchange: two-sided and not crossed."""

    bid_price_NM: Floats
    bid_size_NM: Floats
    ask_price_NM: Floats
    ask_size_NM: Floats
    fresh_N: Bools  # what preceded this state is unknown: no change may be computed against the row before

    @classmethod
    def none(cls, levels: int) -> Book:
        side = np.empty((0, levels))
        return cls(_no_times(), _no_times(), side, side, side, side, np.empty(0, dtype=np.bool_))

    @property
    def mid_N(self) -> Floats:
        """Points, halfway between the best prices."""
        mid_N: Floats = (self.bid_price_NM[:, 0] + self.ask_price_NM[:, 0]) / 2.0
        return mid_N

    @property
    def spread_N(self) -> Floats:
        """Points, best ask minus best bid."""
        spread_N: Floats = self.ask_price_NM[:, 0] - self.bid_price_NM[:, 0]
        return spread_N


@dataclass(frozen=True)
class Piece:
    """A stretch of events. Every event before ``watermark`` (ns) has now been delivered, and none at or after it."""

    trades: Trades
    book: Book
    watermark: int


END_OF_TIME = int(np.iinfo(np.int64).max)

E = TypeVar("E", bound=Events)


def merge(trades: Iterator[Trades], book: Iterator[Book], levels: int) -> Iterator[Piece]:
    """Join two streams by time into pieces, the last of which has the watermark ``END_OF_TIME``.

    Each stream is held back to the other's last time, so memory holds a few chunks of either, whatever the length.
    """
    trade_side: _Side[Trades] = _Side(trades, Trades.none())
    book_side: _Side[Book] = _Side(book, Book.none(levels))
    watermark = 0
    while watermark < END_OF_TIME:
        if trade_side.reach <= book_side.reach:
            trade_side.pull()
        else:
            book_side.pull()
        reached = min(trade_side.reach, book_side.reach)
        if reached > watermark:
            watermark = reached
            yield Piece(trade_side.before(watermark), book_side.before(watermark), watermark)


class _Side(Generic[E]):
    """One stream of ``merge``: what it has delivered, and the time before which nothing more can come."""

    def __init__(self, source: Iterator[E], none: E) -> None:
        self._source = source
        self._held = none
        self.reach = 0

    def pull(self) -> None:
        chunk = next(self._source, None)
        if chunk is None:
            self.reach = END_OF_TIME
        elif len(chunk):
            self.reach = int(chunk.time_N[-1])
            self._held = chunk.concat([self._held, chunk])

    def before(self, watermark: int) -> E:
        if watermark == END_OF_TIME:
            count = len(self._held)
        else:
            count = int(np.searchsorted(self._held.time_N, watermark, side="left"))
        ready = self._held.rows(slice(0, count))
        self._held = self._held.rows(slice(count, None))
        return ready


def _no_times() -> Ints:
    return np.empty(0, dtype=np.int64)
