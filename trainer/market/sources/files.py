"""Bars from Parquet or CSV files, with or without quotes, as a checked ``BarTable``.

Everything that was assumed, dropped or repaired is in the quality report. Two conventions are fixed here: a bar is
labelled by its end (files that label the start are shifted by the bar's length), and with quotes the close is the mid
at the close and the open the mid at the open, with high and low widened to hold them. Legend: N bars.
"""

from __future__ import annotations

import glob
from pathlib import Path

import numpy as np
import pandas as pd

from trainer.errors import UserError
from trainer.market import calendar, quality
from trainer.market.bars_table import BarTable, Floats, Ints
from trainer.market.instrument import Instrument
from trainer.market.loaded import LoadedBars
from trainer.market.quality import PRICES, Tally
from trainer.market.sources.columns import is_bar_file, read_frame
from trainer.market.sources.config import FileConfig


def read_bars(config: FileConfig, instrument: Instrument) -> LoadedBars:
    """Read, check and convert the files of ``config``; ``UserError`` names file and row of what cannot be used."""
    trade_path, quote_path = bar_files(config)
    where = trade_path.name
    tally = Tally(files=tuple(str(path) for path in (trade_path, quote_path) if path is not None))
    zone = instrument.timezone if config.timezone is None else config.timezone
    frame = read_frame(trade_path, ("time", *PRICES), config.columns, zone, tally.notes)
    tally.rows_read = len(frame)
    frame = _with_defaults(frame, instrument, config, tally)
    quality.check_numbers(frame, where)
    frame = quality.sort_rows(quality.drop_copies(frame, tally, where), tally)
    bar = _bar_length(frame, config)
    offset = _label_offset(frame, bar, config, instrument, tally)
    frame["time"] += offset
    calendar.check_clock(frame["time"].to_numpy(), bar, instrument, where)
    frame = _front(frame, instrument, tally, where)
    frame = _in_hours(frame, config, instrument, tally)
    frame = quality.drop_untraded(frame, tally)
    session_N = calendar.session_numbers(frame["time"].to_numpy(), instrument)
    factor_N = quality.fixed_point_factor(frame, session_N, instrument, tally, where)
    frame = frame.assign(**{name: frame[name] / factor_N for name in PRICES})
    quality.check_moves(frame, session_N, config.max_move, where)
    if quote_path is not None:
        frame = _join_quotes(frame, quote_path, offset, config, zone, tally)
    table = _to_table(frame, factor_N, session_N, config, instrument, tally)
    table.validate(where)
    return LoadedBars(table, tally.report(len(table)))


def bar_files(config: FileConfig) -> tuple[Path, Path | None]:
    """The file with the trades, and the one with the quotes or None; ``UserError`` where that is unclear."""
    if config.path is None:
        raise UserError("no data path is set; give a Parquet or CSV file of bars with --data PATH")
    path = Path(config.path)
    trades = _trade_file(path)
    if config.quotes is not None:
        quotes = Path(config.quotes)
        if not quotes.is_file():
            raise UserError(f"{quotes}: no such quote file")
        return trades, quotes
    sibling = trades.with_name(trades.name.replace("_trade.", "_quote."))
    return trades, sibling if sibling != trades and sibling.is_file() else None


def _trade_file(path: Path) -> Path:
    if path.is_file():
        if not is_bar_file(path):
            raise UserError(f"{path}: not a file of bars; give .parquet, .csv or .csv.gz")
        if "_quote." in path.name:
            raise UserError(f"{path}: has quotes, not bars; give the `_trade` file beside it")
        return path
    if path.is_dir():
        bars = sorted(each for each in path.iterdir() if is_bar_file(each) and "_quote." not in each.name)
        if len(bars) == 1:
            return bars[0]
        names = ", ".join(each.name for each in bars)
        fault = (
            f"has several files of bars ({names}); name one"
            if bars
            else "has no .parquet, .csv or .csv.gz file of bars"
        )
        raise UserError(f"{path}: the folder {fault}")
    pair = [each for each in sorted(path.parent.glob(f"{glob.escape(path.name)}_trade.*")) if is_bar_file(each)]
    if len(pair) == 1:
        return pair[0]
    raise UserError(f"{path}: no such file or folder; give a Parquet or CSV file of bars")


def _with_defaults(frame: pd.DataFrame, instrument: Instrument, config: FileConfig, tally: Tally) -> pd.DataFrame:
    if "volume" not in frame:
        tally.notes.append("no volume column: volume is 0")
        frame["volume"] = 0.0
    if config.volume_in_lots:
        for name in {"volume", "buy_volume", "sell_volume"} & set(frame.columns):
            frame[name] *= instrument.lot
    if "contract" not in frame:
        if instrument.roll != "none":
            tally.notes.append("no contract column: taken as one contract, rolls cannot be seen")
        frame["contract"] = ""
    return frame


def _bar_length(frame: pd.DataFrame, config: FileConfig) -> int:
    if config.bar_seconds is not None:
        return round(config.bar_seconds * calendar.SECOND)
    return calendar.bar_length(np.unique(frame["time"].to_numpy()))


def _label_offset(frame: pd.DataFrame, bar: int, config: FileConfig, instrument: Instrument, tally: Tally) -> int:
    """What to add to the file's times to get the ends of bars, in ns."""
    shift = round(config.shift_seconds * calendar.SECOND)
    label, why = (
        _guess_label(frame["time"].to_numpy() + shift, bar, instrument)
        if config.label == "auto"
        else (config.label, "configured")
    )
    tally.notes.append(f"bars of {bar / calendar.SECOND:g} s, labelled by their {label} ({why})")
    off = _edges_off(frame["time"].to_numpy() + shift + (bar if label == "start" else 0), bar, instrument)
    if off != 0:
        tally.notes.append(
            f"most sessions end {abs(off) / calendar.SECOND:g} s {'early' if off < 0 else 'late'} on the hours of "
            f"{instrument.name}: labels look off; market.files.shift_seconds={(shift - off) / calendar.SECOND:g} "
            "would put them right"
        )
    return shift + (bar if label == "start" else 0)


def _guess_label(time_N: Ints, bar: int, instrument: Instrument) -> tuple[str, str]:
    """Sessions that begin or end on an edge of the hours vote: start labels on the open, end labels on the close."""
    if instrument.open is None:
        return "start", "assumed: no session hours to compare with"
    first_S, last_S = calendar.edge_offsets(time_N, instrument)
    first_S, last_S = first_S[(first_S >= 0) & (first_S <= bar)], last_S[(last_S <= 0) & (last_S >= -bar)]
    start = int((2 * first_S < bar).sum() + (2 * last_S < -bar).sum())
    end = int((2 * first_S > bar).sum() + (2 * last_S > -bar).sum())
    if start == end:
        return "start", "assumed: session hours do not tell"
    return ("start", f"{start} session edges to {end}") if start > end else ("end", f"{end} session edges to {start}")


def _edges_off(time_N: Ints, bar: int, instrument: Instrument) -> int:
    """By how many ns, less than a bar, more than half of all sessions end off the close; 0 where they do not."""
    if instrument.open is None:
        return 0
    _, last_S = calendar.edge_offsets(time_N, instrument)
    offsets, counts = np.unique(last_S, return_counts=True)
    commonest = int(offsets[np.argmax(counts)])
    return commonest if 2 * counts.max() > len(last_S) and 0 < abs(commonest) < bar else 0


def _front(frame: pd.DataFrame, instrument: Instrument, tally: Tally, where: str) -> pd.DataFrame:
    """One contract at any time."""
    contract_N, names = pd.factorize(frame["contract"])
    if len(names) > 1 and instrument.roll == "none":
        raise UserError(
            f"{where}: {frame['row'].iloc[int(np.argmax(contract_N > 0))]}: a second contract, {names[1]}, but "
            f"{instrument.name} has no rolls; set `roll` in the instrument, or keep one contract"
        )
    time_N = frame["time"].to_numpy()
    twice_N = np.concatenate([np.zeros(1, dtype=np.bool_), np.diff(time_N) == 0])
    if not twice_N.any():
        return frame
    if instrument.roll == "column":
        quality.refuse(
            twice_N, frame, where, "a second contract at the same time", "keep the front one, or set roll = volume"
        )
    session_N = calendar.session_numbers(time_N, instrument)
    keep_N = calendar.front_contract(session_N, contract_N.astype(np.int64), frame["volume"].to_numpy())
    tally.drop("not the front contract", int((~keep_N).sum()))
    return frame[keep_N]


def _in_hours(frame: pd.DataFrame, config: FileConfig, instrument: Instrument, tally: Tally) -> pd.DataFrame:
    if config.hours == "all":
        return frame
    regular_N = calendar.regular_bars(frame["time"].to_numpy(), instrument)
    tally.drop("outside session hours", int((~regular_N).sum()))
    return frame[regular_N]


def _join_quotes(
    frame: pd.DataFrame, path: Path, offset: int, config: FileConfig, zone: str, tally: Tally
) -> pd.DataFrame:
    """Put each bar's own quote beside it: same time, same contract. Never an earlier or a later one."""
    quotes = read_frame(path, ("time", "bid", "ask"), config.columns, zone, tally.notes)
    quotes["time"] += offset
    if "contract" not in quotes:
        quotes["contract"] = frame["contract"].iloc[0]
    quotes = quotes[
        [name for name in ("time", "contract", "bid", "ask", "bid_open", "ask_open", "row") if name in quotes]
    ]
    quotes = quality.drop_copies(quotes, tally, path.name).drop(columns="row")
    tally.notes.append(f"{path.name}: {len(quotes)} quotes read")
    return frame.merge(quotes, on=["time", "contract"], how="left", validate="one_to_one")


def _to_table(
    frame: pd.DataFrame, factor_N: Floats, session_N: Ints, config: FileConfig, instrument: Instrument, tally: Tally
) -> BarTable:
    numbers = [str(name) for name in frame if name not in ("row", "contract", "time")]
    column = {name: frame[name].to_numpy(dtype=np.float64) for name in numbers}
    close_N, open_N = column["close"], column["open"]
    spread_N = np.full(len(frame), instrument.default_spread)
    if "bid" in column and "ask" in column:
        bid_N, ask_N = column["bid"] / factor_N, column["ask"] / factor_N
        close_N, spread_N = quality.apply_quotes(frame, bid_N, ask_N, instrument, config.max_spread, tally)
        if "bid_open" in column and "ask_open" in column:
            unnoted = Tally(files=())
            opening = frame.assign(close=frame["open"])
            bid_N, ask_N = column["bid_open"] / factor_N, column["ask_open"] / factor_N
            open_N, _ = quality.apply_quotes(opening, bid_N, ask_N, instrument, config.max_spread, unnoted)
    else:
        tally.notes.append(f"no quotes: the spread is {instrument.default_spread:g} points everywhere")
    contract_N, names = pd.factorize(frame["contract"])
    time_N = frame["time"].to_numpy(dtype=np.int64)
    return BarTable(
        time_N=time_N,
        open_N=open_N,
        high_N=np.maximum.reduce([column["high"], open_N, close_N]),
        low_N=np.minimum.reduce([column["low"], open_N, close_N]),
        close_N=close_N,
        volume_N=column["volume"],
        spread_N=spread_N,
        funding_N=_funding(column, time_N, instrument),
        session_N=session_N,
        contract_N=contract_N.astype(np.int64),
        contract=tuple(str(name) for name in names),
        buy_volume_N=column.get("buy_volume"),
        sell_volume_N=column.get("sell_volume"),
    )


def _funding(column: dict[str, Floats], time_N: Ints, instrument: Instrument) -> Floats:
    return column["funding"] if "funding" in column else calendar.funding_column(time_N, instrument)
