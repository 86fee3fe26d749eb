"""What is traded: tick, multiplier, hours, fees, margin and funding of one instrument, read from TOML.

Nothing of that is a constant in code. Prices are points; a price move becomes money once, through ``multiplier``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import date, time
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import ValidationError, field_validator, model_validator

from trainer.errors import UserError
from trainer.fields import Frozen, static

FOLDER = Path(__file__).parents[2] / "configs" / "instruments"


class Hours(Frozen):
    """Session hours that an exchange has changed since."""

    until: date = static(..., doc="the last session that had them: the date on which it closed")
    open: time = static(..., doc="start of the session on the exchange clock")
    close: time = static(..., doc="end of the session; before `open` means on the next day")


class Instrument(Frozen):
    """One tradable thing. A session is a trading day on the exchange clock; without hours it is a UTC day."""

    name: str = static(..., doc="what reports call it", min_length=1)
    aliases: tuple[str, ...] = static((), doc="beginnings of data file names that mean this instrument, lower case")
    tick: float = static(..., unit="points", doc="smallest price step", gt=0.0)
    multiplier: float = static(..., unit="money per point", doc="money one unit gains when the price rises 1", gt=0.0)
    currency: str = static(..., doc="currency of that money", min_length=3)
    timezone: str = static(..., doc="clock of the exchange, and of times in files that name no zone")
    sessions_per_year: float = static(..., unit="sessions", doc="annualises session returns", gt=0.0, le=366.0)
    open: time | None = static(None, doc="start of the session on the exchange clock; none: round the clock")
    close: time | None = static(None, doc="end of the session; at or before `open` means on the next day")
    earlier: tuple[Hours, ...] = static((), doc="hours that held before those, oldest first")
    roll: Literal["none", "column", "volume"] = static(
        "none",
        doc="none: one contract only; column: the file's contract column names the front contract; volume: the same, "
        "and where a file has several contracts at once, the one that led the previous session's volume",
    )
    commission_bps: float = static(..., unit="bps of notional a side", doc="fee", ge=0.0, le=100.0)
    margin_fraction: float = static(..., unit="share of notional", doc="margin to hold a position", gt=0.0, le=1.0)
    default_spread_ticks: float = static(..., unit="ticks", doc="spread of bars that have no quote", gt=0.0)
    lot: float = static(1.0, unit="units", doc="units in a lot, for volumes that are counted in lots", gt=0.0)
    funding_interval_hours: float = static(0.0, unit="hours", doc="time between fundings; 0: none", ge=0.0, le=24.0)
    funding_rate: float = static(
        0.0, unit="share of notional", doc="what a long pays each funding where data does not say", gt=-0.1, lt=0.1
    )
    price_low: float = static(..., unit="points", doc="a price below is a fault of the data", gt=0.0)
    price_high: float = static(..., unit="points", doc="a price above is a fault of the data", gt=0.0)
    max_halt_minutes: float = static(
        180.0, unit="minutes", doc="a longer silence inside a session means missing data: a new session starts", gt=0.0
    )
    max_gap_hours: float = static(
        120.0,
        unit="hours",
        doc="a longer silence between sessions means dates far apart: nothing is held over it",
        gt=0.0,
    )

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(f"no time zone is called {value!r}; use a name like America/Chicago or UTC") from error
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Instrument:
        if (self.open is None) != (self.close is None):
            raise ValueError("`open` and `close` come together: give both, or neither for round the clock")
        if self.open is not None and self.open == self.close:
            raise ValueError("`open` equals `close`: leave both out for an instrument that trades round the clock")
        if self.open is None and self.earlier:
            raise ValueError("`earlier` hours need `open` and `close`, the hours of today")
        if any(each.open == each.close for each in self.earlier):
            raise ValueError("`earlier`: `open` equals `close`")
        ends = [each.until for each in self.earlier]
        if ends != sorted(set(ends)):
            raise ValueError("`earlier`: give the oldest hours first, each `until` later than the one before")
        if self.funding_rate != 0.0 and self.funding_interval_hours == 0.0:
            raise ValueError("`funding_rate` needs `funding_interval_hours`")
        if self.price_low >= self.price_high:
            raise ValueError("`price_low` must be below `price_high`")
        return self

    @property
    def default_spread(self) -> float:
        """Spread, in points, of a bar that has no quote."""
        return self.default_spread_ticks * self.tick


def load_instrument(name_or_path: str | Path) -> Instrument:
    """Read an instrument by its name in ``configs/instruments`` or from a TOML file; ``UserError`` where that fails."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = FOLDER / f"{name_or_path}.toml"
    if not path.is_file():
        raise UserError(f"instrument {str(name_or_path)!r} not found; known are {', '.join(known_instruments())}")
    try:
        return Instrument.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path.name}: not valid TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path.name}: {key + ': ' if key else ''}{first['msg']}") from error


def known_instruments() -> tuple[str, ...]:
    """Names that ``load_instrument`` knows."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def guess_instrument(data: Path, symbol: str = "") -> Instrument:
    """The instrument that the data speak of: by the path's own name, else the symbol taken from it, else its files."""
    instruments = [load_instrument(name) for name in known_instruments()]
    for name in (data.name, symbol):
        named = _by_alias(name, instruments)
        if named is not None:
            return named
    inside = [] if not data.is_dir() else [_by_alias(file.name, instruments) for file in sorted(data.iterdir())]
    found = {each.name: each for each in inside if each is not None}
    if len(found) == 1:
        return next(iter(found.values()))
    raise UserError(
        f"{data.name}: cannot tell the instrument from the name; give --set market.instrument=NAME, a TOML file or one "
        f"of {', '.join(known_instruments())}"
    )


def _by_alias(name: str, instruments: Sequence[Instrument]) -> Instrument | None:
    """The instrument whose alias begins the name; the longest alias wins."""
    lower = name.lower()
    matches = [(len(alias), each) for each in instruments for alias in each.aliases if lower.startswith(alias)]
    return max(matches, key=lambda match: match[0])[1] if matches else None
