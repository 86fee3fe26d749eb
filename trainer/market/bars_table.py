"""The market on the host: one table of bars in numpy, as every source makes it and every feature reads it.

Legend: N bars. Prices and spreads are points; times are nanoseconds UTC and label the *end* of a bar: whatever stands
in row t was known at ``time_N[t]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainer.errors import UserError

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class BarTable:
    """Bars of one instrument, in the order of time."""

    time_N: Ints  # ns UTC, end of the bar, strictly increasing
    open_N: Floats
    high_N: Floats
    low_N: Floats
    close_N: Floats  # mid at the close where quotes exist, else the last trade
    volume_N: Floats  # units of the instrument (lots already multiplied out)
    spread_N: Floats  # full bid-ask spread at the close
    funding_N: Floats  # share of notional a long pays at the bar's close
    session_N: Ints  # 0-based, never decreasing
    contract_N: Ints  # index into ``contract``
    contract: tuple[str, ...] = ("",)
    buy_volume_N: Floats | None = None  # aggressor side; None where the source does not say
    sell_volume_N: Floats | None = None
    extra: Mapping[str, Floats] = field(default_factory=dict)  # ready-made columns, each [N]
    has_book: bool = False  # built from order-book messages

    def __len__(self) -> int:
        return int(self.time_N.shape[0])

    def rows(self, index: slice | Ints | Bools) -> BarTable:
        """The table of the chosen rows; session and contract numbers stay as they are."""
        own: dict[str, Any] = {name: column[index] for name, column in _own_columns(self).items()}
        return replace(self, **own, extra={name: column[index] for name, column in self.extra.items()})

    def validate(self, where: str) -> None:
        """Raise ``UserError`` naming ``where`` and the first bad row unless every invariant of the table holds."""
        if len(self) == 0:
            raise UserError(f"{where}: no bars; give data with at least one bar")
        for name, column in columns(self).items():
            if column.shape != self.time_N.shape:
                raise UserError(f"{where}: column {name} has {column.shape[0]} rows, the table has {len(self)}")
        for name, column in columns(self).items():
            _refuse(~np.isfinite(column), where, f"{name} is not finite")
        for name in ("open_N", "high_N", "low_N", "close_N"):
            _refuse(getattr(self, name) <= 0.0, where, f"{name} is not positive")
        _refuse(self.high_N < np.maximum(self.open_N, self.close_N), where, "high is below open or close")
        _refuse(self.low_N > np.minimum(self.open_N, self.close_N), where, "low is above open or close")
        _refuse(self.spread_N < 0.0, where, "spread is negative")
        _refuse(self.volume_N < 0.0, where, "volume is negative")
        _refuse(_after_first(np.diff(self.time_N) <= 0), where, "time does not increase")
        _refuse(_after_first(np.diff(self.session_N) < 0), where, "session number decreases")
        _refuse((self.contract_N < 0) | (self.contract_N >= len(self.contract)), where, "contract number has no name")


def columns(table: BarTable) -> dict[str, NDArray[Any]]:
    """Every per-bar column by name, the extra ones under their own names; absent optional columns are left out."""
    return {**_own_columns(table), **table.extra}


def _own_columns(table: BarTable) -> dict[str, NDArray[Any]]:
    values = {each.name: getattr(table, each.name) for each in fields(table)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _after_first(step_N: Bools) -> Bools:
    return np.concatenate([np.zeros(1, dtype=np.bool_), step_N])


def _refuse(bad_N: Bools, where: str, fault: str) -> None:
    if bad_N.any():
        raise UserError(f"{where}: bar {int(np.argmax(bad_N))}: {fault}")
