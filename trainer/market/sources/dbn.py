"""Databento DBN order-book and trade records to bars with microstructure features.

A folder holds MBP-10 (or MBP-1) and trades (or TBBO) files of any number of days, plain or zstd; a single file is read
by itself. Trades come from the trades files, else from TBBO, else from the trade records inside the MBP files. The book
is taken at the last record of each exchange event (F_LAST): records before it show states between two matches, which
may be locked or crossed. Crossed, locked, one-sided and doubtful states are left out and counted, and nothing is
computed across them. Time is ``ts_event``, the matching engine's clock: trades and book files agree on it alone.

Raw files may be larger than memory: they are read in pieces. Legend: N records, M levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np

from trainer.errors import UserError
from trainer.market.bar_config import BarConfig
from trainer.market.bars import cut_bars
from trainer.market.bars_table import BarTable, Bools, Ints
from trainer.market.calendar import DAY, SECOND, within_hours
from trainer.market.events import Book, Trades, merge
from trainer.market.instrument import Instrument
from trainer.market.quality import QualityReport, Tally
from trainer.market.sources.book_table import book_table
from trainer.market.sources.dbn_file import SCHEMAS, DbnFile, Records, open_dbn

TRADE_SCHEMAS = ("trades", "tbbo", "mbp-10", "mbp-1")  # the first of them that is there
BOOK_SCHEMAS = ("mbp-10", "mbp-1")
UNDEFINED_PRICE = int(np.iinfo(np.int64).max)
UNDEFINED_TIME = int(np.iinfo(np.uint64).max)
PRICE_UNIT = 1e9
F_LAST, F_MAYBE_BAD_BOOK = 128, 4
TIME_LIMIT = 9_000_000_000  # s, within 64 bits of ns
EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class Choice:
    """The instrument to take: its symbol in the files, and the exchange's ids for it by day."""

    symbol: str
    intervals: tuple[tuple[int, int, int], ...]  # first time, time after the last (ns UTC), instrument id

    def matches(self, time_N: Ints, contract_N: Ints) -> Bools:
        """Which records are of this instrument."""
        match_N = np.zeros(len(time_N), dtype=np.bool_)
        for start, end, contract in self.intervals:
            match_N |= (contract_N == contract) & (time_N >= start) & (time_N < end)
        return match_N

    def name(self, contract: int) -> str:
        """What reports call one contract; its id is added where the symbol stood for several."""
        return self.symbol if len({each for _, _, each in self.intervals}) == 1 else f"{self.symbol}:{contract}"


def read_dbn(path: str | Path, config: BarConfig, instrument: Instrument) -> tuple[BarTable, QualityReport]:
    """Bars of one instrument from a DBN file or a folder of them, and what was left out.

    ``UserError`` names the file and byte or record for damaged files, the schemas found where none can be used, and the
    symbols found where ``config.symbol`` does not choose one.
    """
    files, passed_over = find_files(Path(path))
    choice = choose(files, config.symbol, Path(path))
    files = [file for file in files if choice.symbol in symbols_of(file)]
    trade_files, book_files = _first_schema(files, TRADE_SCHEMAS), _first_schema(files, BOOK_SCHEMAS)
    tally = Tally(tuple(dict.fromkeys(str(file.path) for file in (*trade_files, *book_files))))
    tally.notes.extend(passed_over)
    levels = SCHEMAS[book_files[0].schema].levels if book_files else 1
    reader = _Reader(choice, config, instrument, tally, shared=trade_files == book_files)
    pieces = merge(reader.trades(trade_files), reader.book(book_files), levels)
    bars = cut_bars(pieces, config, instrument, levels)
    if bars is None:
        raise UserError(
            f"{path}: no trade of {choice.symbol} within the hours of {instrument.name}: nothing to make bars of"
        )
    table = book_table(bars, instrument, config.window, choice.name, str(path))
    return table, tally.report(tally.rows_read - sum(tally.dropped.values()))


def find_files(path: Path) -> tuple[list[DbnFile], list[str]]:
    """DBN files with usable schemas at ``path``, by time, and a note on each of the others."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    paths = [path]
    if path.is_dir():
        paths = sorted(each for each in path.iterdir() if each.name.endswith((".dbn", ".dbn.zst")))
        if not paths:
            raise UserError(f"{path}: no .dbn or .dbn.zst file in this folder")
    files = [open_dbn(each) for each in paths]
    usable = sorted((file for file in files if file.schema in SCHEMAS), key=lambda file: (file.start, file.path.name))
    if not usable:
        found = ", ".join(sorted({file.schema for file in files}))
        raise UserError(f"{path}: schema {found}; bars are made of {', '.join(SCHEMAS)}")
    others = [f"{file.path.name}: schema {file.schema} passed over" for file in files if file.schema not in SCHEMAS]
    return usable, others


def symbols_of(file: DbnFile) -> tuple[str, ...]:
    """Symbols a file holds; the instrument ids of its records where its header names none."""
    if file.mappings:
        return tuple(file.mappings)
    ids = {int(each) for records in file.records(65_536) for each in np.unique(records["instrument_id"])}
    return tuple(str(each) for each in sorted(ids))


def choose(files: list[DbnFile], symbol: str, where: Path) -> Choice:
    """The instrument called ``symbol`` (or with that id); without one, the only instrument of the files."""
    intervals: dict[str, set[tuple[int, int, int]]] = {}
    for file in files:
        for name in symbols_of(file):
            days = file.mappings.get(name, ((date.min, date.max, int(name) if name.isdigit() else -1),))
            intervals.setdefault(name, set()).update(
                (_midnight(first), _midnight(last), each) for first, last, each in days
            )
    listed = ", ".join(
        f"{name} (id {', '.join(str(each) for each in sorted({i for _, _, i in spans}))})"
        for name, spans in sorted(intervals.items())
    )
    if not symbol and len(intervals) == 1:
        symbol = next(iter(intervals))
    elif not symbol:
        raise UserError(f"{where}: several instruments; set market.bar.symbol to one of: {listed}")
    by_id = [name for name, spans in intervals.items() if symbol in {str(each) for _, _, each in spans}]
    if symbol not in intervals and len(by_id) == 1:
        symbol = by_id[0]
    if symbol not in intervals:
        raise UserError(f"{where}: no instrument {symbol!r}; there are: {listed}")
    return Choice(symbol, tuple(sorted(intervals[symbol])))


@dataclass
class _Reader:
    """Turns records into events, counting what is left out."""

    choice: Choice
    config: BarConfig
    instrument: Instrument
    tally: Tally
    shared: bool  # trades and book come from the same files, which count as read once

    def trades(self, files: list[DbnFile]) -> Iterator[Trades]:
        """Trades of the instrument, file after file."""
        for file, first, records, time_N in self._own(files, count=not self.shared):
            traded = records["action"] == b"T"
            sized = traded & (records["size"] > 0)
            inside = within_hours(time_N + 1, self.instrument)
            self.tally.drop("trade of size 0", int((traded & ~sized).sum()))
            self.tally.drop("trade outside the session hours", int((sized & ~inside).sum()))
            kept = np.flatnonzero(sized & inside)
            price_N = records["price"][kept] / PRICE_UNIT
            wrong = (price_N < self.instrument.price_low) | (price_N > self.instrument.price_high)
            if wrong.any():
                at = int(np.argmax(wrong))
                price = "missing" if records["price"][kept[at]] == UNDEFINED_PRICE else f"{price_N[at]:g}"
                low, high = self.instrument.price_low, self.instrument.price_high
                raise UserError(
                    f"{file.path}: record {int(first[kept[at]])}: trade price {price}; prices of "
                    f"{self.instrument.name} lie between {low:g} and {high:g}"
                )
            side = records["side"][kept]
            yield Trades(
                time_N=time_N[kept],
                contract_N=records["instrument_id"][kept].astype(np.int64),
                price_N=price_N,
                size_N=records["size"][kept].astype(np.float64),
                side_N=(side == b"B").astype(np.float64) - (side == b"A"),
            )

    def book(self, files: list[DbnFile]) -> Iterator[Book]:
        """States of the instrument's book between exchange events, file after file."""
        broken, broken_at_last, within_event = 0, -1, 0
        for _, _, records, time_N in self._own(files, count=True):
            level_NM = records["levels"]
            bid, ask = level_NM[:, 0]["bid_px"], level_NM[:, 0]["ask_px"]
            complete = (records["flags"] & F_LAST) != 0
            doubtful = (records["flags"] & F_MAYBE_BAD_BOOK) != 0
            outside = ~within_hours(time_N + 1, self.instrument)
            empty = (bid == UNDEFINED_PRICE) | (ask == UNDEFINED_PRICE)
            empty |= (level_NM[:, 0]["bid_sz"] == 0) | (level_NM[:, 0]["ask_sz"] == 0)
            left = complete.copy()
            for reason, fault in (
                ("book state marked as doubtful", doubtful),
                ("one-sided book state", empty),
                ("crossed book state", bid > ask),
                ("locked book state", bid == ask),
                ("book state outside the session hours", outside),
            ):
                self.tally.drop(reason, int((left & fault).sum()))
                left &= ~fault
            within_event += int((~complete).sum())
            broken_N = broken + np.cumsum((complete & ~left) | (records["action"] == b"R"))
            kept = np.flatnonzero(left)
            fresh_N = np.diff(broken_N[kept], prepend=broken_at_last) != 0
            if len(records):
                broken = int(broken_N[-1])
            if len(kept):
                broken_at_last = int(broken_N[kept[-1]])
            level_NM = level_NM[kept]
            bid_size_NM, ask_size_NM = (level_NM[name].astype(np.float64) for name in ("bid_sz", "ask_sz"))
            yield Book(
                time_N=time_N[kept],
                contract_N=records["instrument_id"][kept].astype(np.int64),
                bid_price_NM=np.where(bid_size_NM > 0.0, level_NM["bid_px"] / PRICE_UNIT, -np.inf),
                bid_size_NM=bid_size_NM,
                ask_price_NM=np.where(ask_size_NM > 0.0, level_NM["ask_px"] / PRICE_UNIT, np.inf),
                ask_size_NM=ask_size_NM,
                fresh_N=fresh_N,
            )
        if within_event:
            self.tally.notes.append(f"{within_event} book records in the middle of an event are not states of the book")

    def _own(self, files: list[DbnFile], count: bool) -> Iterator[tuple[DbnFile, Ints, Records, Ints]]:
        """Records of the instrument: the file, their numbers in it, they themselves, and times that never decrease."""
        latest, previous = -1, None
        for file in files:
            begun, number = False, 0
            for records in file.records(self.config.piece_records):
                event_N, received_N = records["ts_event"], records["ts_recv"]
                time_N = np.where(event_N == UNDEFINED_TIME, received_N, event_N).astype(np.int64)
                mine = self.choice.matches(time_N, records["instrument_id"].astype(np.int64))
                if count:
                    self.tally.rows_read += len(records)
                    self.tally.drop("record of another instrument", int((~mine).sum()))
                number_N = number + np.flatnonzero(mine)
                number += len(records)
                time_N = time_N[mine]
                if not len(time_N):
                    continue
                if not begun and previous is not None and time_N[0] < latest:
                    raise UserError(
                        f"{file.path}: record {int(number_N[0])}: {self.choice.symbol} begins before {previous} ends; "
                        "give each stretch of time in one file only"
                    )
                ordered_N = np.maximum.accumulate(np.maximum(time_N, latest))
                self.tally.repair("record timed before the one ahead of it, moved up", int((ordered_N != time_N).sum()))
                latest, begun = int(ordered_N[-1]), True
                yield file, number_N, records[mine], ordered_N
            previous = file.path


def _first_schema(files: list[DbnFile], schemas: tuple[str, ...]) -> list[DbnFile]:
    for schema in schemas:
        found = [file for file in files if file.schema == schema]
        if found:
            return found
    return []


def _midnight(day: date) -> int:
    """Begin of a UTC day, in ns, within what 64 bits hold."""
    return int(np.clip((day.toordinal() - EPOCH) * (DAY // SECOND), -TIME_LIMIT, TIME_LIMIT)) * SECOND
