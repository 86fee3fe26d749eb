"""One door to every source of bars, with prepared tables cached by the fingerprint of their input."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Literal

from trainer.errors import UserError
from trainer.market.cache import cached, fingerprint
from trainer.market.config import MarketConfig
from trainer.market.instrument import Instrument
from trainer.market.loaded import LoadedBars
from trainer.market.quality import QualityReport
from trainer.market.sources.columns import is_bar_file
from trainer.market.sources.dbn import find_files, read_dbn
from trainer.market.sources.exchange_json import read_exchange_json
from trainer.market.sources.files import bar_files, read_bars
from trainer.market.synthetic import generate

RAW_SUFFIXES = (".json", ".jsonl", ".ndjson", ".gz")


def read_source(config: MarketConfig, instrument: Instrument) -> LoadedBars:
    """The bars that ``config`` names, holdout included.

    Raises:
        UserError: missing, damaged or faulty data.
    """
    if config.source == "synthetic":
        table = generate(config.synthetic).table
        return LoadedBars(table, QualityReport(("embedded market",), len(table), len(table), {}, {}))
    return cached(cache_folder(), source_fingerprint(config, instrument), lambda: _read(config, instrument))


def source_fingerprint(config: MarketConfig, instrument: Instrument) -> str:
    """Identifies the bars: contents of the files and every setting that shapes them, wherever the files lie."""
    settings = {"instrument": instrument.model_dump(mode="json"), "source": config.source}
    if config.source == "synthetic":
        return fingerprint([], settings | {"synthetic": config.synthetic.model_dump(mode="json")})
    if config.source == "bars":
        own = {"files": config.files.model_dump(mode="json", exclude={"path", "quotes"})}
    else:
        own = {"bar": config.bar.model_dump(mode="json", exclude={"piece_records"})}
    return fingerprint(source_files(config), settings | own)


def source_files(config: MarketConfig) -> list[Path]:
    """Files behind a source that has any, in order."""
    if config.source == "dbn":
        return [file.path for file in find_files(data_path(config))[0]]
    if config.source == "exchange_json":
        return [data_path(config)]
    return [path for path in bar_files(config.files) if path is not None]


def kind_of(path: Path) -> Literal["bars", "dbn", "exchange_json"]:
    """What a path holds by its names: DBN by ``.dbn``, raw messages by ``.json`` or a bare ``.gz``, bars by theirs.

    Raises:
        UserError: the names say none of these.
    """
    inside = list(path.iterdir()) if path.is_dir() else [path]
    if any(each.name.endswith((".dbn", ".dbn.zst")) for each in inside):
        return "dbn"
    if is_pair(path) or any(is_bar_file(each) for each in inside):
        return "bars"
    if path.is_file() and path.suffix in RAW_SUFFIXES:
        return "exchange_json"
    raise UserError(
        f"{path}: holds no data that are read here: bars are .parquet, .csv or .csv.gz, order books .dbn or .dbn.zst, "
        f"raw messages {', '.join(RAW_SUFFIXES)}"
    )


def data_path(config: MarketConfig) -> Path:
    """Where the data lie.

    Raises:
        UserError: nothing is configured or nothing is there.
    """
    if config.files.path is None:
        raise UserError(f"market.files.path: not given; source '{config.source}' needs it (or --data PATH)")
    path = Path(config.files.path)
    if not (path.exists() or is_pair(path)):
        raise UserError(f"{path}: no such file or folder; --data takes bars (Parquet, CSV) or a folder of DBN files")
    return path


def is_pair(path: Path) -> bool:
    """Whether the path is the common beginning of a trade and a quote file."""
    return bool(path.name) and any(path.parent.glob(f"{glob.escape(path.name)}_trade.*"))


def cache_folder() -> Path:
    """``PACELINE_CACHE``, or the user's cache folder."""
    named = os.environ.get("PACELINE_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "paceline"


def _read(config: MarketConfig, instrument: Instrument) -> LoadedBars:
    if config.source == "dbn":
        return LoadedBars(*read_dbn(data_path(config), config.bar, instrument))
    if config.source == "exchange_json":
        return LoadedBars(*read_exchange_json(data_path(config), config.bar, instrument))
    return read_bars(config.files, instrument)
