"""Quality gates: what is wrong with raw bars, what may be repaired, and a record of everything that was done.

A fault is repaired only where the repair cannot invent a price: exact copies of a row are dropped, rows are put in
order, a crossed, missing or absurd quote gives way to the last trade and the instrument's default spread, and prices
delivered in a fixed-point unit are scaled back. Anything else stops with the file and the row. Nothing is ever filled
from a later row. Gates read a *frame*: a pandas table with the columns time (ns UTC, end of the bar), open, high, low,
close, volume, contract and row (as a person would look it up), in the order of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from trainer.errors import UserError
from trainer.market.bars_table import Bools, Floats, Ints
from trainer.market.instrument import Instrument

PRICES = ("open", "high", "low", "close")
FIXED_POINT_UNITS = (1e3, 1e6, 1e9)


@dataclass(frozen=True)
class QualityReport:
    """What was read and what was done to it; reasons carry the first place they were met."""

    files: tuple[str, ...]
    rows_read: int
    rows_kept: int
    dropped: Mapping[str, int]
    repaired: Mapping[str, int]
    notes: tuple[str, ...] = ()


@dataclass
class Tally:
    """Counts drops and repairs while a source is read; ``report`` freezes them."""

    files: tuple[str, ...]
    rows_read: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def drop(self, reason: str, count: int) -> None:
        if count > 0:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def repair(self, reason: str, count: int) -> None:
        if count > 0:
            self.repaired[reason] = self.repaired.get(reason, 0) + count

    def report(self, rows_kept: int) -> QualityReport:
        return QualityReport(
            self.files, self.rows_read, rows_kept, dict(self.dropped), dict(self.repaired), tuple(self.notes)
        )


def refuse(bad_N: Bools, frame: pd.DataFrame, source: str, fault: str, right: str) -> None:
    """Raise ``UserError`` naming the first row where ``bad_N`` holds."""
    if bad_N.any():
        first = int(np.argmax(bad_N))
        more = int(bad_N.sum()) - 1
        others = f" (and {more} more)" if more else ""
        raise UserError(f"{source}: {frame['row'].iloc[first]}: {fault.format(**frame.iloc[first])}{others}; {right}")


def check_numbers(frame: pd.DataFrame, source: str) -> None:
    """Prices must be finite and positive, with high and low around open and close; volume must not be negative."""
    for name in PRICES:
        value_N = frame[name].to_numpy()
        refuse(
            ~np.isfinite(value_N),
            frame,
            source,
            f"{name} is missing or not finite",
            "give a price or leave the row out",
        )
        refuse(value_N <= 0.0, frame, source, f"{name} is {{{name}}}", "prices must be positive")
    body_high_N = frame[["open", "close"]].max(axis=1).to_numpy()
    body_low_N = frame[["open", "close"]].min(axis=1).to_numpy()
    high_N, low_N = frame["high"].to_numpy(), frame["low"].to_numpy()
    refuse(high_N < low_N, frame, source, "high {high} is below low {low}", "swap them if the columns are mixed up")
    refuse(
        high_N < body_high_N, frame, source, "high {high} is below open {open} or close {close}", "high is the largest"
    )
    refuse(low_N > body_low_N, frame, source, "low {low} is above open {open} or close {close}", "low is the smallest")
    volume_N = frame["volume"].to_numpy()
    refuse(~np.isfinite(volume_N), frame, source, "volume is missing or not finite", "give a number, 0 for none")
    refuse(volume_N < 0.0, frame, source, "volume is {volume}", "volume must not be negative")


def drop_copies(frame: pd.DataFrame, tally: Tally, source: str) -> pd.DataFrame:
    """Drop exact copies of earlier rows; two different rows for one bar of one contract are an error."""
    values = [name for name in frame.columns if name != "row"]
    copies_N = frame.duplicated(subset=values).to_numpy()
    tally.drop("exact copies of an earlier row", int(copies_N.sum()))
    kept = frame[~copies_N]
    again_N = kept.duplicated(subset=["time", "contract"]).to_numpy()
    if again_N.any():
        second = kept.iloc[int(np.argmax(again_N))]
        same = kept[(kept["time"] == second["time"]) & (kept["contract"] == second["contract"])]
        raise UserError(
            f"{source}: {same['row'].iloc[0]} and {second['row']} are different bars of the same time "
            f"{pd.Timestamp(int(second['time']), tz='UTC')}; keep the right one"
        )
    return kept


def sort_rows(frame: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Put rows in the order of time, keeping the file's order among contracts of one time."""
    late_N = np.diff(frame["time"].to_numpy()) < 0
    tally.repair("rows out of order, sorted by time", int(late_N.sum()))
    return frame.sort_values("time", kind="stable") if late_N.any() else frame


def fixed_point_factor(
    frame: pd.DataFrame, session_N: Ints, instrument: Instrument, tally: Tally, source: str
) -> Floats:
    """What each row's prices must be divided by: 1, or the unit of a feed that counts in 1e-3, 1e-6 or 1e-9 points.

    Safe only where every price of the session is out of the instrument's range, and one unit brings them all into the
    range and onto the tick grid. Any other price out of range is an error.
    """
    price_NP = frame[list(PRICES)].to_numpy()
    outside_N = ((price_NP < instrument.price_low) | (price_NP > instrument.price_high)).any(axis=1)
    factor_N = np.ones(len(frame))
    for session in np.unique(session_N[outside_N]):
        rows_N = session_N == session
        unit = next((u for u in FIXED_POINT_UNITS if _explained(price_NP[rows_N] / u, instrument)), None)
        if unit is not None:
            factor_N[rows_N] = unit
            tally.repair(f"fixed-point prices, divided by {unit:.0e}", int(rows_N.sum()))
    limits = f"{instrument.name} lies in {instrument.price_low:g} to {instrument.price_high:g}"
    refuse(
        outside_N & (factor_N == 1.0),
        frame,
        source,
        "prices {open} {high} {low} {close} are out of range",
        f"{limits}: correct the row, or price_low and price_high of the instrument",
    )
    return factor_N


def check_moves(frame: pd.DataFrame, session_N: Ints, max_move: float, source: str) -> None:
    """No price may be further than ``max_move`` from the close before it; on a session's first bar, from its own."""
    close_N = frame["close"].to_numpy()
    contract_N = frame["contract"].to_numpy()
    before_N = np.concatenate([close_N[:1], close_N[:-1]])
    lives_N = np.concatenate(
        [np.zeros(1, dtype=np.bool_), (np.diff(session_N) == 0) & (contract_N[1:] == contract_N[:-1])]
    )
    anchor_N = np.where(lives_N, before_N, close_N)
    for name in PRICES:
        move_N = np.abs(frame[name].to_numpy() / anchor_N - 1.0)
        refuse(
            move_N > max_move,
            frame,
            source,
            f"{name} {{{name}}} is more than {max_move:.0%} away from the close before it in the session",
            "correct it, or raise `max_move` if the market did that",
        )


def drop_untraded(frame: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Drop bars without a trade: their price is a copy, nothing could fill. A file without any volume keeps them."""
    idle_N = frame["volume"].to_numpy() == 0.0
    if idle_N.all():
        tally.notes.append("volume is zero everywhere: taken as not reported")
        return frame
    tally.drop("zero volume: nothing traded", int(idle_N.sum()))
    traded: pd.DataFrame = frame.loc[~idle_N]
    return traded


def apply_quotes(
    frame: pd.DataFrame, bid_N: Floats, ask_N: Floats, instrument: Instrument, max_spread: float, tally: Tally
) -> tuple[Floats, Floats]:
    """Close and spread from the quotes at the close; where a quote is unusable, the last trade and the default spread.

    A locked quote keeps its mid, but crossing the spread is never free: it gets the default spread.
    """
    trade_N = frame["close"].to_numpy()
    default = instrument.default_spread
    missing_N = ~(np.isfinite(bid_N) & np.isfinite(ask_N) & (bid_N > 0.0) & (ask_N > 0.0))
    bid_N, ask_N = np.where(missing_N, trade_N, bid_N), np.where(missing_N, trade_N, ask_N)
    spread_N, mid_N = ask_N - bid_N, 0.5 * (bid_N + ask_N)
    crossed_N = ~missing_N & (spread_N < 0.0)
    locked_N = ~missing_N & (spread_N == 0.0)
    far_N = np.abs(mid_N - trade_N) > max_spread * trade_N
    absurd_N = ~missing_N & ~crossed_N & ((spread_N > max_spread * trade_N) | far_N)
    tally.repair("no quote at the close: last trade and default spread", int(missing_N.sum()))
    tally.repair("crossed quote: last trade and default spread", int(crossed_N.sum()))
    tally.repair("absurd quote: last trade and default spread", int(absurd_N.sum()))
    tally.repair("locked quote: default spread", int((locked_N & ~absurd_N).sum()))
    unusable_N = missing_N | crossed_N | absurd_N
    return np.where(unusable_N, trade_N, mid_N), np.where(unusable_N | locked_N, default, spread_N)


def _explained(price_NP: Floats, instrument: Instrument) -> bool:
    """Whether all prices lie in the instrument's range and on its tick grid."""
    ticks_NP = price_NP / instrument.tick
    in_range = (price_NP >= instrument.price_low) & (price_NP <= instrument.price_high)
    return bool((in_range & (np.abs(ticks_NP - np.round(ticks_NP)) < 1e-6)).all())
