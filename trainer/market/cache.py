"""Prepared tables on disk, found by the fingerprint of what they were made from.

One entry is ``<fingerprint>.npz`` (columns, no pickle) and ``<fingerprint>.json`` (names, quality report, digest of the
npz). Both are written under a temporary name and renamed, the manifest last, so an entry is whole or not there; one
whose digest does not agree is made again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.market.bars_table import BarTable
from trainer.market.loaded import LoadedBars
from trainer.market.quality import QualityReport

VERSION = 1  # of what the loaders make of the same input: raise it when they change


def fingerprint(files: Sequence[str | Path], settings: Mapping[str, Any]) -> str:
    """SHA-256 over the contents of ``files`` in their order, and the settings (JSON values) that matter.

    File names and dates do not count: a copy of the data elsewhere has the same fingerprint.
    """
    whole = hashlib.sha256()
    for file in files:
        with open(file, "rb") as stream:
            whole.update(hashlib.file_digest(stream, "sha256").digest())
    whole.update(json.dumps({"version": VERSION, **settings}, sort_keys=True, allow_nan=False).encode())
    return whole.hexdigest()


def cached(folder: Path, key: str, make: Callable[[], LoadedBars]) -> LoadedBars:
    """The entry ``key`` of ``folder``, made and stored where it is absent or damaged."""
    found = load(folder, key)
    if found is not None:
        return found
    made = make()
    store(folder, key, made)
    return made


def store(folder: Path, key: str, bars: LoadedBars) -> None:
    """Write one entry; a crash in between leaves the folder without it."""
    folder.mkdir(parents=True, exist_ok=True)
    own, extra = _split(bars.table)
    buffer = io.BytesIO()
    np.savez(buffer, **own, **{f"extra.{name}": column for name, column in extra.items()})  # type: ignore[arg-type]
    data = buffer.getvalue()
    manifest = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "contract": list(bars.table.contract),
        "has_book": bars.table.has_book,
        "report": asdict(bars.report),
    }
    _replace(folder / f"{key}.npz", data)
    _replace(folder / f"{key}.json", json.dumps(manifest, indent=1).encode())


def load(folder: Path, key: str) -> LoadedBars | None:
    """Read one entry; None where it is absent or damaged."""
    try:
        manifest = json.loads((folder / f"{key}.json").read_bytes())
        data = (folder / f"{key}.npz").read_bytes()
        if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
            return None
        with np.load(io.BytesIO(data), allow_pickle=False) as columns:
            table = _join(dict(columns), tuple(manifest["contract"]), bool(manifest["has_book"]))
        return LoadedBars(table, _report(manifest["report"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None


def _split(table: BarTable) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    values = {each.name: getattr(table, each.name) for each in fields(table)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}, dict(table.extra)


def _join(columns: dict[str, NDArray[Any]], contract: tuple[str, ...], has_book: bool) -> BarTable:
    own = {name: column for name, column in columns.items() if not name.startswith("extra.")}
    extra = {name.removeprefix("extra."): column for name, column in columns.items() if name.startswith("extra.")}
    return BarTable(**own, contract=contract, has_book=has_book, extra=extra)


def _report(values: Mapping[str, Any]) -> QualityReport:
    return QualityReport(**{**values, "files": tuple(values["files"]), "notes": tuple(values["notes"])})


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
