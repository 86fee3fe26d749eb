"""Raw messages of a perpetual's exchange (Binance USD-M streams) to bars with microstructure features.

One message a line, ``<receive ns> <JSON>``, plain or gzip: depth differences, one depth snapshot or more, trades and
best quotes. The book is replayed as the exchange prescribes: a snapshot, then every difference whose ``pu`` continues
the ``u`` before it; after a gap no state is taken until the next snapshot. Best quotes repeat the book and are passed
over. Time is the receive time, the one clock all streams share. Legend: N events, M levels.

Source: https://developers.binance.com/docs/derivatives/usds-margined-futures/websocket-market-streams/How-to-manage-a-local-order-book-correctly
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import UserError
from trainer.market.bar_config import BarConfig
from trainer.market.bars import cut_bars
from trainer.market.bars_table import BarTable
from trainer.market.calendar import within_hours
from trainer.market.events import Book, Trades, merge
from trainer.market.instrument import Instrument
from trainer.market.quality import QualityReport, Tally
from trainer.market.sources.book_table import book_table

LEVELS = 10


def read_exchange_json(path: str | Path, config: BarConfig, instrument: Instrument) -> tuple[BarTable, QualityReport]:
    """Bars of one recording. ``UserError`` names the file and line of a message that cannot be read."""
    place = Path(path)
    tally = Tally((str(place),))
    trades = _trades(place, config.piece_records, instrument, tally)
    book = _book(place, config.piece_records, instrument, tally)
    bars = cut_bars(merge(trades, book, LEVELS), config, instrument, LEVELS)
    if bars is None:
        raise UserError(f"{place}: no trade within the hours of {instrument.name}: nothing to make bars of")
    table = book_table(bars, instrument, config.window, lambda _: instrument.name, str(place))
    return table, tally.report(tally.rows_read - sum(tally.dropped.values()))


@dataclass
class _Ladder:
    """One side of the book: sizes by price, and prices from worst to best as keys that grow."""

    sign: float  # +1 for bids, whose best is the highest; -1 for asks
    size: dict[float, float] = field(default_factory=dict)
    keys: list[float] = field(default_factory=list)

    def update(self, levels: list[list[str]]) -> None:
        for price_text, size_text in levels:
            key, size = self.sign * float(price_text), float(size_text)
            if size > 0.0:
                if key not in self.size:
                    insort(self.keys, key)
                self.size[key] = size
            elif key in self.size:
                del self.size[key]
                self.keys.pop(bisect_left(self.keys, key))

    def best(self) -> tuple[list[float], list[float]]:
        """Prices and sizes of the best levels, best first, absent ones at the far end."""
        keys = self.keys[: -LEVELS - 1 : -1]
        absent = LEVELS - len(keys)
        prices = [self.sign * key for key in keys] + [-self.sign * np.inf] * absent
        return prices, [self.size[key] for key in keys] + [0.0] * absent


def _trades(path: Path, count: int, instrument: Instrument, tally: Tally) -> Iterator[Trades]:
    lines = _messages(path, '"e":"trade"')
    latest = 0
    while chunk := list(islice(lines, count)):
        tally.rows_read += len(chunk)
        kept = [(number, time, data) for number, time, data in chunk if data.get("X", "MARKET") == "MARKET"]
        tally.drop("trade outside the market (insurance fund, deleveraging)", len(chunk) - len(kept))
        rows = []
        for number, time, data in kept:
            try:
                price, size, buyer_waited = float(data["p"]), float(data["q"]), bool(data["m"])
            except (KeyError, ValueError) as error:
                raise UserError(f"{path}: line {number}: a trade without a readable p, q or m ({error})") from error
            if not (instrument.price_low <= price <= instrument.price_high and size > 0.0):
                raise UserError(f"{path}: line {number}: a trade of {size:g} at {price:g} cannot be")
            latest = max(latest, time)
            rows.append((latest, price, size, -1.0 if buyer_waited else 1.0))
        price_N, size_N, side_N = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 3).T
        time_N = np.array([row[0] for row in rows], dtype=np.int64)
        inside_N = within_hours(time_N + 1, instrument)
        tally.drop("trade outside the session hours", int((~inside_N).sum()))
        yield Trades(time_N, np.zeros_like(time_N), price_N, size_N, side_N).rows(inside_N)


def _book(path: Path, count: int, instrument: Instrument, tally: Tally) -> Iterator[Book]:
    states = _states(path, tally)
    while chunk := list(islice(states, count)):
        time_N = np.array([state[0] for state in chunk], dtype=np.int64)
        bid_price_NM, bid_size_NM, ask_price_NM, ask_size_NM = np.array([state[2] for state in chunk]).transpose(
            1, 0, 2
        )
        inside_N = within_hours(time_N + 1, instrument)
        tally.drop("book state outside the session hours", int((~inside_N).sum()))
        book = Book(
            time_N=time_N,
            contract_N=np.zeros_like(time_N),
            bid_price_NM=bid_price_NM,
            bid_size_NM=bid_size_NM,
            ask_price_NM=ask_price_NM,
            ask_size_NM=ask_size_NM,
            fresh_N=np.array([state[1] for state in chunk], dtype=np.bool_),
        )
        yield book.rows(inside_N)


def _states(path: Path, tally: Tally) -> Iterator[tuple[int, bool, tuple[list[float], ...]]]:
    """Time, whether what came before is unknown, and the four columns of levels, after each change of the book."""
    bids, asks = _Ladder(1.0), _Ladder(-1.0)
    last: int | None = None  # update id the book stands at; None without a book
    waiting: list[dict[str, Any]] = []  # differences that came before the snapshot they continue
    synced, fresh, latest = False, True, 0
    for number, time, data in _messages(path, '"depthUpdate"', '"lastUpdateId"'):
        tally.rows_read += 1
        latest = max(latest, time)
        try:
            if "lastUpdateId" in data:
                if last is not None:
                    continue
                bids, asks, last, synced, fresh = _Ladder(1.0), _Ladder(-1.0), int(data["lastUpdateId"]), False, True
                bids.update(data["bids"])
                asks.update(data["asks"])
                pending, waiting = waiting, []
            else:
                pending = [data]
            for change in pending:
                if last is None:
                    waiting.append(change)
                elif not synced and change["u"] < last:
                    continue
                elif change["U"] <= last <= change["u"] if not synced else change["pu"] == last:
                    bids.update(change["b"])
                    asks.update(change["a"])
                    last, synced = int(change["u"]), True
                else:
                    tally.drop("depth difference that does not continue the book", 1)
                    last, waiting = None, [change]
        except (KeyError, ValueError, TypeError) as error:
            raise UserError(f"{path}: line {number}: a depth message without a readable field ({error})") from error
        if last is None or not (bids.keys and asks.keys):
            continue
        if bids.keys[-1] >= -asks.keys[-1]:
            tally.drop("crossed or locked book state", 1)
            fresh = True
            continue
        yield latest, fresh, (*bids.best(), *asks.best())
        fresh = False


def _messages(path: Path, *marks: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Line number (from 1), receive time (ns) and payload of the messages that hold one of ``marks``."""
    number = 0
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if any(mark in line for mark in marks):
                    time, text = line.split(" ", 1)
                    message = json.loads(text)
                    yield number, int(time), message.get("data", message)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: line {number + 1}: the file is damaged or cut off ({error})") from error
    except ValueError as error:
        raise UserError(f"{path}: line {number}: expected '<receive ns> <JSON>' ({error})") from error
