"""One door to every source of bars, with prepared tables cached by the fingerprint of their input."""

from __future__ import annotations

import os
from pathlib import Path

from trainer.errors import UserError
from trainer.market.cache import cached, fingerprint
from trainer.market.config import MarketConfig
from trainer.market.instrument import Instrument
from trainer.market.loaded import LoadedBars
from trainer.market.quality import QualityReport
from trainer.market.sources.dbn import find_files, read_dbn
from trainer.market.sources.files import bar_files, read_bars
from trainer.market.synthetic import generate


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
    files, own = (
        (dbn_files(config), {"bar": config.bar.model_dump(mode="json", exclude={"piece_records"})})
        if config.source == "dbn"
        else (
            [path for path in bar_files(config.files) if path is not None],
            {"files": config.files.model_dump(mode="json", exclude={"path", "quotes"})},
        )
    )
    return fingerprint(files, settings | own)


def dbn_files(config: MarketConfig) -> list[Path]:
    """Files behind a DBN source, in order."""
    return [file.path for file in find_files(data_path(config))[0]]


def data_path(config: MarketConfig) -> Path:
    """Where the data lie.

    Raises:
        UserError: nothing is configured or nothing is there.
    """
    if config.files.path is None:
        raise UserError(f"market.files.path: not given; source '{config.source}' needs it (or --data PATH)")
    path = Path(config.files.path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; --data takes bars (Parquet, CSV) or a folder of DBN files")
    return path


def cache_folder() -> Path:
    """``PACELINE_CACHE``, or the user's cache folder."""
    named = os.environ.get("PACELINE_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "paceline"


def _read(config: MarketConfig, instrument: Instrument) -> LoadedBars:
    if config.source == "dbn":
        return LoadedBars(*read_dbn(data_path(config), config.bar, instrument))
    return read_bars(config.files, instrument)
