"""One Databento DBN file: its header and its records as numpy arrays, in pieces (DBN versions 1 to 3, plain or zstd).

A DBN file is ``DBN``, a version byte, the length of the metadata, the metadata, then records. Each record begins with
its length in 4-byte words and its type. Trades and MBP records have the same layout in all three versions, so they
become numpy structures without any per-record Python: 43,780 compressed MBP-10 records take 15 ms. The decoder of
``databento_dbn`` makes a Python object of each: 30 ms, and 35 ms more for every two fields read from the objects.
Source: Databento Binary Encoding, https://databento.com/docs/standards-and-conventions/databento-binary-encoding
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

import databento_dbn
import numpy as np
import pyarrow.lib
from numpy.typing import NDArray

from trainer.errors import UserError

Records: TypeAlias = NDArray[np.void]

_MESSAGE = [
    ("length", "u1"),
    ("rtype", "u1"),
    ("publisher_id", "<u2"),
    ("instrument_id", "<u4"),
    ("ts_event", "<u8"),
    ("price", "<i8"),
    ("size", "<u4"),
    ("action", "S1"),
    ("side", "S1"),
    ("flags", "u1"),
    ("depth", "u1"),
    ("ts_recv", "<u8"),
    ("ts_in_delta", "<i4"),
    ("sequence", "<u4"),
]
_LEVEL = [
    ("bid_px", "<i8"),
    ("ask_px", "<i8"),
    ("bid_sz", "<u4"),
    ("ask_sz", "<u4"),
    ("bid_ct", "<u4"),
    ("ask_ct", "<u4"),
]


@dataclass(frozen=True)
class Layout:
    """Record type, and price levels carried, of one schema."""

    rtype: int
    levels: int

    def dtype(self, send_time: bool) -> np.dtype[np.void]:
        """The structure of one record."""
        levels: list[Any] = [("levels", _LEVEL, (self.levels,))] if self.levels else []
        sent: list[Any] = [("ts_out", "<u8")] if send_time else []
        return np.dtype([*_MESSAGE, *levels, *sent])


SCHEMAS = {"trades": Layout(0, 0), "mbp-1": Layout(1, 1), "tbbo": Layout(1, 1), "mbp-10": Layout(10, 10)}


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
PASSED_OVER = frozenset({0x15, 0x16, 0x17})  # error, symbol mapping and system messages of the gateway


@dataclass(frozen=True)
class DbnFile:
    """A file whose header has been read. Every error names the file, and the byte or record where reading stopped."""

    path: Path
    version: int
    schema: str
    send_time: bool  # every record ends with 8 bytes more
    start: int  # ns UTC, begin of the query
    mappings: dict[str, tuple[tuple[date, date, int], ...]]  # symbol: (first day, day after the last, instrument id)
    body: int  # byte of the first record in the uncompressed file

    def records(self, count: int) -> Iterator[Records]:
        """All records of the file's schema, at most about ``count`` at a time; gateway messages are passed over."""
        layout = SCHEMAS[self.schema]
        dtype = layout.dtype(self.send_time)
        position, rest, index = self.body, b"", 0
        with _open(self.path) as stream:
            _read(stream, self.body, self.path, 0)
            while chunk := _read(stream, count * dtype.itemsize, self.path, position + len(rest)):
                data = rest + chunk
                whole, used = _parse(data, dtype, layout.rtype, f"{self.path}", position, index)
                if len(whole):
                    yield whole
                rest, position, index = data[used:], position + used, index + len(whole)
        if rest:
            raise UserError(
                f"{self.path}: byte {position}: the file ends {len(rest)} bytes into record {index}; fetch it again"
            )


def open_dbn(path: Path) -> DbnFile:
    """Read the header of ``path``; ``UserError`` if it is not DBN, of an unknown version, cut off or mixed."""
    with _open(path) as stream:
        head = _read(stream, 8, path, 0)
        if len(head) < 8 or head[:3] != b"DBN":
            raise UserError(f"{path}: byte 0: not a DBN file (expected it to begin with 'DBN', plain or in zstd)")
        if not 1 <= head[3] <= 3:
            raise UserError(f"{path}: byte 3: DBN version {head[3]}; versions 1 to 3 can be read")
        length = int.from_bytes(head[4:8], "little")
        rest = _read(stream, length, path, 8)
    if len(rest) < length:
        raise UserError(f"{path}: byte {8 + len(rest)}: the file ends inside its header; fetch it again")
    try:
        metadata: Any = databento_dbn.Metadata.decode(head + rest)
    except (databento_dbn.DBNError, ValueError) as error:
        raise UserError(f"{path}: byte 8: the header cannot be read ({error}); fetch the file again") from error
    if metadata.schema is None:
        raise UserError(f"{path}: byte 8: the file mixes schemas; save mbp-10 and trades to one file each")
    return DbnFile(
        path=path,
        version=head[3],
        schema=str(metadata.schema),
        send_time=bool(metadata.ts_out),
        start=int(metadata.start),
        mappings={
            symbol: tuple((m["start_date"], m["end_date"], int(m["symbol"])) for m in intervals if m["symbol"])
            for symbol, intervals in metadata.mappings.items()
        },
        body=8 + length,
    )


def _open(path: Path) -> Any:
    """A binary stream of the uncompressed file."""
    try:
        with open(path, "rb") as raw:
            magic = raw.read(4)
        return pyarrow.lib.input_stream(str(path), compression="zstd" if magic == ZSTD_MAGIC else None)
    except OSError as error:
        raise UserError(f"{path}: cannot be opened ({error.strerror})") from error


def _read(stream: Any, count: int, path: Path, position: int) -> bytes:
    """Exactly ``count`` bytes, fewer at the end of the file."""
    try:
        return bytes(stream.read(count))
    except OSError as error:
        raise UserError(
            f"{path}: byte {position} uncompressed: the compressed data is damaged or cut off ({error}); fetch it again"
        ) from error


def _parse(
    data: bytes, dtype: np.dtype[np.void], rtype: int, where: str, position: int, index: int
) -> tuple[Records, int]:
    """Whole records of type ``rtype`` at the front of ``data``, and how many bytes they and what lies between take."""
    size = dtype.itemsize
    whole = np.frombuffer(data, dtype, count=len(data) // size)
    if bool(((whole["length"].astype(np.int64) * 4 == size) & (whole["rtype"] == rtype)).all()):
        return whole, len(whole) * size
    found: list[int] = []
    offset = 0
    while offset + 2 <= len(data) and offset + (length := data[offset] * 4) <= len(data):
        if data[offset + 1] == rtype and length == size:
            found.append(offset)
        elif data[offset + 1] not in PASSED_OVER or length < 16:
            raise UserError(
                f"{where}: byte {position + offset}: record {index + len(found)} has type {data[offset + 1]} and "
                f"{length} bytes, expected type {rtype} and {size} bytes; fetch the file again"
            )
        offset += length
    picked = b"".join(data[start : start + size] for start in found)
    return np.frombuffer(picked, dtype), offset
