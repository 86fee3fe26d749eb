"""Reading Parquet and CSV files into frames with known column names, numbers and UTC times.

A frame has the roles of ``Role`` as columns, ``time`` in ns UTC as the file labels it, and ``row``: how a person finds
the row again (the line of a CSV file with its header as line 1, the 0-based row of a Parquet file).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trainer.errors import UserError
from trainer.market.bars_table import Bools, Ints

ALIASES: Mapping[str, tuple[str, ...]] = {
    "time": ("time", "ts", "timestamp", "timestamp_utc", "time_utc", "datetime", "datetime_utc", "date", "ts_event"),
    "open": ("open", "o", "open_price"),
    "high": ("high", "h", "high_price"),
    "low": ("low", "l", "low_price"),
    "close": ("close", "c", "last", "close_price"),
    "volume": ("volume", "vol", "v", "qty"),
    "contract": ("contract", "symbol", "instrument_id", "expiry"),
    "bid_open": ("bid_open", "bo"),
    "ask_open": ("ask_open", "ao"),
    "bid": ("bid", "bc", "bid_close", "bid_price"),
    "ask": ("ask", "ac", "ask_close", "ask_price"),
    "buy_volume": ("buy_volume", "taker_buy_volume"),
    "sell_volume": ("sell_volume", "taker_sell_volume"),
    "funding": ("funding", "funding_rate"),
}
EPOCH_UNITS: tuple[tuple[Literal["ns", "us", "ms", "s"], float], ...] = (
    ("ns", 1e17),
    ("us", 1e14),
    ("ms", 1e11),
    ("s", 1e8),
)  # and the least size that a time since 1970 has in them
SUFFIXES = (".parquet", ".csv", ".csv.gz")


def is_bar_file(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES)


def read_frame(
    path: Path, required: Sequence[str], named: Mapping[Any, str], timezone: str, notes: list[str]
) -> pd.DataFrame:
    """Read ``path``; every role of ``required`` must be there, the others of ``ALIASES`` are taken where they are.

    ``named`` gives column names by role that differ from the usual ones, ``timezone`` the clock of times that name no
    zone; what was assumed is added to ``notes``.
    """
    raw = _read_csv(path) if ".csv" in path.name.lower() else _read_parquet(path)
    if len(raw) == 0:
        raise UserError(f"{path.name}: no rows; give a file with at least one bar")
    rows = (
        [f"line {i + 2}" for i in range(len(raw))]
        if ".csv" in path.name.lower()
        else [f"row {i}" for i in range(len(raw))]
    )
    found = _find_columns(path, list(raw.columns), required, named)
    frame = pd.DataFrame({"row": rows})
    for role, column in found.items():
        if role == "time":
            frame[role] = _utc_times(raw[column].reset_index(drop=True), column, path, rows, timezone, notes)
        elif role == "contract":
            frame[role] = _names(raw[column], path, rows)
        else:
            frame[role] = _numbers(raw[column], column, path, rows)
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        raw: pd.DataFrame = pd.read_csv(path, skip_blank_lines=False, low_memory=False)
    except pd.errors.EmptyDataError as error:
        raise UserError(f"{path.name}: the file is empty; give a CSV with a header line and bars") from error
    except pd.errors.ParserError as error:
        raise UserError(
            f"{path.name}: not a table: {_one_line(error)}; every line needs as many fields as the header"
        ) from error
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(
            f"{path.name}: not readable as CSV ({_one_line(error)}); give text in UTF-8, .gz only if gzipped"
        ) from error
    header = [str(column) for column in raw.columns]
    if sum(_looks_like_data(name) for name in header) >= 2:
        raise UserError(
            f"{path.name}: line 1 has data instead of a header; begin with a line like time,open,high,low,close,volume"
        )
    return raw


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        raw = pd.read_parquet(path, engine="pyarrow")
    except (ValueError, NotImplementedError, OSError) as error:  # pyarrow's errors derive from these
        raise UserError(
            f"{path.name}: not a Parquet file ({_one_line(error)}); give Parquet, .csv or .csv.gz"
        ) from error
    return raw if isinstance(raw.index, pd.RangeIndex) else raw.reset_index()


def _find_columns(path: Path, present: list[str], required: Sequence[str], named: Mapping[Any, str]) -> dict[str, str]:
    by_lower = {str(column).strip().lower(): column for column in present}
    found: dict[str, str] = {}
    for role, aliases in ALIASES.items():
        if role in named:
            if named[role] in present:
                found[role] = named[role]
            continue
        hits = [by_lower[alias] for alias in aliases if alias in by_lower]
        if len(hits) > 1:
            raise UserError(f"{path.name}: {' and '.join(hits)} could both be {role}; say which with columns.{role}")
        if hits:
            found[role] = hits[0]
    for role in required:
        if role not in found:
            wanted = named[role] if role in named else " or ".join(ALIASES[role])
            raise UserError(
                f"{path.name}: no {role} column (looked for {wanted}) among {', '.join(map(str, present))}; "
                f"name it with columns.{role}"
            )
    return found


def _numbers(column: pd.Series, name: str, path: Path, rows: list[str]) -> NDArray[Any]:
    numbers = pd.to_numeric(column, errors="coerce")
    text_N: Bools = (numbers.isna() & column.notna()).to_numpy()
    if text_N.any():
        first = int(np.argmax(text_N))
        raise UserError(f"{path.name}: {rows[first]}: {name} is {str(column.iloc[first])!r}; it must be a number")
    return np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))


def _names(column: pd.Series, path: Path, rows: list[str]) -> NDArray[Any]:
    missing_N: Bools = column.isna().to_numpy()
    if missing_N.any():
        raise UserError(
            f"{path.name}: {rows[int(np.argmax(missing_N))]}: no contract; every row needs one, or leave the column out"
        )
    return np.asarray(column.astype(str).str.strip().to_numpy(dtype=object))


def _utc_times(column: pd.Series, name: str, path: Path, rows: list[str], timezone: str, notes: list[str]) -> Ints:
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        stamps = _from_epoch(column, name, path, rows, notes)
    elif pd.api.types.is_datetime64_any_dtype(column):
        stamps = column
    else:
        stamps = _from_text(column, name, path, rows)
    _refuse_missing(stamps, column, name, path, rows, "give a time like 2024-01-31 09:30:00")
    if stamps.dt.tz is None:
        zone = "UTC" if name.lower().endswith("utc") else timezone
        notes.append(f"{path.name}: times name no zone: taken as {zone}")
        stamps = _localise(stamps, column, name, path, rows, zone)
    year_N = stamps.dt.year.to_numpy()
    strange_N = (year_N < 1971) | (year_N > 2199)
    if strange_N.any():
        first = int(np.argmax(strange_N))
        raise UserError(
            f"{path.name}: {rows[first]}: {name} {column.iloc[first]} is in the year {year_N[first]}; check its unit"
        )
    return np.asarray(pd.DatetimeIndex(stamps).tz_convert("UTC").as_unit("ns").asi8, dtype=np.int64)


def _from_epoch(column: pd.Series, name: str, path: Path, rows: list[str], notes: list[str]) -> pd.Series:
    value_N = column.to_numpy(dtype=np.float64, na_value=np.nan)
    missing_N = ~np.isfinite(value_N)
    if missing_N.any():
        raise UserError(f"{path.name}: {rows[int(np.argmax(missing_N))]}: {name} is missing; every row needs a time")
    size = float(np.median(np.abs(value_N)))
    unit = next((each for each, least in EPOCH_UNITS if size >= least), None)
    if unit is None:
        raise UserError(
            f"{path.name}: {rows[0]}: {name} {column.iloc[0]} is no time; give s, ms, us or ns since 1970, or text"
        )
    notes.append(f"{path.name}: {name} counts {unit} since 1970")
    return pd.Series(pd.to_datetime(column, unit=unit, utc=True))


def _from_text(column: pd.Series, name: str, path: Path, rows: list[str]) -> pd.Series:
    text = column.astype("string").str.strip()
    stamps = pd.Series(pd.to_datetime(text, format="ISO8601", errors="coerce", utc=True))
    _refuse_missing(stamps, column, name, path, rows, "give a time like 2024-01-31 09:30:00")
    zoned_N = text.str.contains(r"(?:Z|[+-]\d\d:?\d\d)$", regex=True).to_numpy(dtype=bool)
    if zoned_N.all():
        return stamps
    if zoned_N.any():
        odd = int(np.argmin(zoned_N) if zoned_N[0] else np.argmax(zoned_N))
        raise UserError(
            f"{path.name}: {rows[odd]}: {name} {column.iloc[odd]!r}: some times name a zone and some do not; be uniform"
        )
    return stamps.dt.tz_localize(None)


def _localise(stamps: pd.Series, column: pd.Series, name: str, path: Path, rows: list[str], zone: str) -> pd.Series:
    """Exchange clock to UTC. An hour that the clock skips is an error; one shown twice is told apart by order."""
    forward: pd.Series = stamps.dt.tz_localize(zone, nonexistent="NaT", ambiguous=np.ones(len(stamps), dtype=bool))
    right = f"the clock of {zone} skips that time; set `timezone` to the zone the times are in"
    _refuse_missing(forward, column, name, path, rows, right)
    unsure_N = stamps.dt.tz_localize(zone, nonexistent="NaT", ambiguous="NaT").isna().to_numpy()
    if not unsure_N.any():
        return forward
    try:
        inferred: pd.Series = stamps.dt.tz_localize(zone, ambiguous="infer")
    except ValueError as error:
        first = int(np.argmax(unsure_N))
        raise UserError(
            f"{path.name}: {rows[first]}: {name} {column.iloc[first]} happens twice on the clock of {zone}; "
            f"give times in UTC or with their offset"
        ) from error
    return inferred


def _refuse_missing(stamps: pd.Series, column: pd.Series, name: str, path: Path, rows: list[str], right: str) -> None:
    missing_N = stamps.isna().to_numpy()
    if missing_N.any():
        first = int(np.argmax(missing_N))
        raise UserError(f"{path.name}: {rows[first]}: {name} {column.iloc[first]!r} is no time; {right}")


def _looks_like_data(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
