"""Sessions, gaps and contract rolls, on the exchange clock.

A session is a trading day of the instrument. Days are told apart halfway through the hours in which the exchange is
closed, so overnight sessions, half days, early prints and special sessions all fall into the right day, whatever the
daylight-saving rule of the day is. Hours are those of the time: an exchange changes them. Legend: N bars.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, time

import numpy as np
import pandas as pd

from trainer.errors import UserError
from trainer.market.bars_table import BarTable, Bools, Floats, Ints
from trainer.market.instrument import Instrument

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
_EPOCH = date(1970, 1, 1).toordinal()
OPENING = 5 * MINUTE  # in which an opening auction and its price bands can hide the rest of an overnight move


def local_time(time_N: Ints, timezone: str) -> Ints:
    """Wall-clock time of UTC times, as ns since 1970 of a clock that never changes."""
    stamps = pd.DatetimeIndex(pd.to_datetime(time_N, utc=True)).tz_convert(timezone).tz_localize(None)
    return stamps.as_unit("ns").asi8.astype(np.int64)


@dataclass(frozen=True)
class Clock:
    """Where bars stand in the trading day, by the hours that held then; times of day in ns of the exchange clock."""

    local_N: Ints  # end of the bar, as ns since 1970
    day_N: Ints  # day number (since 1970) of the session: the date on which it closes
    open_N: Ints  # time of day
    close_N: Ints  # time of day; at or before the open: on the next day


def clock(time_N: Ints, instrument: Instrument) -> Clock:
    """Local time, session and hours of bars that end at these times; for instruments that have hours."""
    local_N = local_time(time_N, instrument.timezone)
    day_N, open_N, close_N = (np.zeros_like(local_N) for _ in range(3))
    for until, opens, closes in reversed(_eras(instrument)):
        boundary = (closes + ((opens - closes) % DAY) // 2) % DAY
        then_N = (local_N - 1 - boundary) // DAY + int(boundary > opens) + int(closes <= opens)
        held_N = then_N <= until
        day_N[held_N], open_N[held_N], close_N[held_N] = then_N[held_N], opens, closes
    return Clock(local_N, day_N, open_N, close_N)


def session_days(time_N: Ints, instrument: Instrument) -> Ints:
    """Day number (since 1970) of the session each bar belongs to: the date on which the session closes."""
    return (time_N - 1) // DAY if instrument.open is None else clock(time_N, instrument).day_N


def session_numbers(time_N: Ints, instrument: Instrument) -> Ints:
    """0-based session of each bar (times in order); a silence longer than the halt limit starts a new one."""
    new_day_N = np.diff(session_days(time_N, instrument)) != 0
    silent_N = np.diff(time_N) > instrument.max_halt_minutes * MINUTE
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(new_day_N | silent_N).astype(np.int64)])


def within_hours(time_N: Ints, instrument: Instrument) -> Bools:
    """Whether a bar that ends at this time ends inside the session hours: after the open, not after the close."""
    if instrument.open is None:
        return np.ones(len(time_N), dtype=np.bool_)
    at = clock(time_N, instrument)
    return (at.local_N - 1 - at.open_N) % DAY < (at.close_N - at.open_N) % DAY


def regular_bars(time_N: Ints, instrument: Instrument) -> Bools:
    """Bars within hours, and all bars of sessions that lie outside them altogether (special sessions)."""
    inside_N = within_hours(time_N, instrument)
    _, day_N = np.unique(session_days(time_N, instrument), return_inverse=True)
    regular_S = np.bincount(day_N, weights=inside_N) > 0
    return inside_N | ~regular_S[day_N]


def edge_offsets(time_N: Ints, instrument: Instrument) -> tuple[Ints, Ints]:
    """Per session: ns from the open to the first time, and from the close to the last (negative: before the close)."""
    if instrument.open is None:
        raise ValueError("an instrument that trades round the clock has no session edges")
    at = clock(time_N, instrument)
    first_S = np.flatnonzero(np.concatenate([[True], np.diff(at.day_N) != 0]))
    last_S = np.concatenate([first_S[1:] - 1, [len(time_N) - 1]])
    open_N = at.day_N * DAY + at.open_N - np.where(at.close_N <= at.open_N, DAY, 0)
    close_N = at.day_N * DAY + at.close_N
    return (at.local_N - open_N)[first_S], (at.local_N - close_N)[last_S]


def check_clock(time_N: Ints, bar: int, instrument: Instrument, where: str) -> None:
    """Refuse files whose sessions begin *and* end an hour off the exchange's hours for a part of the year.

    That is what a fixed shift from UTC, or the wrong zone, does to times: the hour it is off by would be traded at the
    wrong time of day. Both ends must be off by the same hour, in more than half of the sessions of summer or of winter.
    """
    if instrument.open is None:
        return
    first_S, last_S = edge_offsets(time_N, instrument)
    day_N = session_days(time_N, instrument)
    start_S = np.flatnonzero(np.concatenate([[True], np.diff(day_N) != 0]))
    utc_offset_S = local_time(time_N[start_S], instrument.timezone) - time_N[start_S]
    for offset in np.unique(utc_offset_S):
        season_S = utc_offset_S == offset
        for hour in (-HOUR, HOUR):
            off_S = (np.abs(first_S - bar - hour) <= bar) & (np.abs(last_S - hour) <= bar) & season_S
            if off_S.sum() * 2 > season_S.sum():
                day = pd.Timestamp(int(time_N[start_S[int(np.argmax(off_S))]]), tz="UTC")
                late = "late" if hour > 0 else "early"
                raise UserError(
                    f"{where}: sessions begin and end 1 h {late} on the clock of {instrument.timezone} (first: the one "
                    f"that starts {day}): daylight saving was handled with a fixed shift, or the zone is wrong; set "
                    f"`timezone` to the one the times are in"
                )


def bars_left(session_N: Ints) -> Ints:
    """Bars that follow within the session; 0 on its last bar."""
    last_N = np.searchsorted(session_N, session_N, side="right") - 1
    return (last_N - np.arange(len(session_N))).astype(np.int64)


def flat_bars(table: BarTable, allow_overnight: bool, max_gap_hours: float) -> Bools:
    """Bars at whose close no position may remain.

    The last of a session unless overnight is allowed; always the last before a contract change, before a silence longer
    than ``max_gap_hours``, and of the table. So the step across a roll or between dates far apart is never booked.
    """
    ends_N = np.diff(table.contract_N) != 0
    ends_N |= np.diff(table.time_N) > max_gap_hours * HOUR
    if not allow_overnight:
        ends_N |= np.diff(table.session_N) != 0
    return np.concatenate([ends_N, np.ones(1, dtype=np.bool_)])


def front_contract(session_N: Ints, contract_N: Ints, volume_N: Floats) -> Bools:
    """Which bars belong to the front contract: the one that led the volume of the session *before*.

    So a roll takes effect after the volume has moved, never before it is known, and never goes back to a contract that
    was left. In the first session nothing is known yet: its first bar's contract is the front.
    """
    keep_N = np.zeros(len(session_N), dtype=np.bool_)
    left: set[int] = set()
    front, leader = int(contract_N[0]), int(contract_N[0])
    for session in np.unique(session_N):
        rows_N = np.flatnonzero(session_N == session)
        present = list(dict.fromkeys(contract_N[rows_N].tolist()))
        if leader in present and leader not in left and leader != front:
            left.add(front)
            front = leader
        elif front not in present:
            left.add(front)
            front = next((each for each in present if each not in left), present[0])
        keep_N[rows_N] = contract_N[rows_N] == front
        totals = {each: float(volume_N[rows_N][contract_N[rows_N] == each].sum()) for each in present}
        leader = max(totals, key=totals.__getitem__)
    return keep_N


def funding_column(time_N: Ints, instrument: Instrument) -> Floats:
    """Share of notional a long pays at each close: the rate, for each funding time in (previous end, this end]."""
    if instrument.funding_interval_hours == 0.0 or instrument.funding_rate == 0.0:
        return np.zeros(len(time_N))
    due_N = time_N // round(instrument.funding_interval_hours * HOUR)
    return np.concatenate([np.zeros(1), np.diff(due_N) * instrument.funding_rate])


@dataclass(frozen=True)
class Gap:
    """A silence between the ends of ``bar`` and the next one."""

    bar: int
    seconds: float


@dataclass(frozen=True)
class Night:
    """The step from the last bar of a session to the first of the next of the same contract."""

    bar: int
    hours: float
    open_move: float  # next open / close - 1
    close_move: float  # next close / close - 1
    early_move: float  # open of the first bar that begins OPENING or more into the session / close - 1


@dataclass(frozen=True)
class Roll:
    """A contract change after ``bar``; ``step`` (next open - close, points) is in no return and no P&L."""

    bar: int
    before: str
    after: str
    step: float


@dataclass(frozen=True)
class Survey:
    """Everything a person wants to know about the table's time axis."""

    bar_seconds: float  # 0 where bars are not equally long: cut from trades, volume or money
    sessions: int
    dates: int  # distinct UTC dates
    late_opens: int  # sessions whose first bar is missing: more than one bar after the open
    early_closes: int  # half days, and sessions whose end is missing
    bars_per_session: tuple[int, int, int]  # shortest, median, longest
    gaps: tuple[Gap, ...]  # silences inside sessions: a bar missing, or a minute where bars are not equally long
    nights: tuple[Night, ...]
    rolls: tuple[Roll, ...]
    far_apart: tuple[Gap, ...]  # silences longer than the instrument's max_gap_hours, with or without a roll


def bar_length(time_N: Ints) -> int:
    """The commonest step between bars, in ns (the smaller one of two equally common)."""
    if len(time_N) < 2:
        raise UserError("one bar alone does not tell its length; set `bar_seconds`")
    steps, counts = np.unique(np.diff(time_N), return_counts=True)
    return int(steps[np.argmax(counts)])


def survey(table: BarTable, instrument: Instrument) -> Survey:
    """Find sessions, gaps inside them, nights between them, and rolls."""
    step_N = np.diff(table.time_N)
    bar = _even_length(table)
    far_N = step_N > instrument.max_gap_hours * HOUR
    same_session_N = np.diff(table.session_N) == 0
    same_contract_N = np.diff(table.contract_N) == 0
    gaps = tuple(
        Gap(int(i), float(step_N[i] / SECOND)) for i in np.flatnonzero(same_session_N & (step_N > (bar or MINUTE)))
    )
    nights = tuple(_night(table, int(i)) for i in np.flatnonzero(~same_session_N & same_contract_N))
    rolls = tuple(_roll(table, int(i)) for i in np.flatnonzero(~same_contract_N))
    _, count_S = np.unique(table.session_N, return_counts=True)
    late, early = _off_hours(table.time_N, bar, instrument)
    return Survey(
        bar_seconds=bar / SECOND,
        sessions=len(count_S),
        dates=len(np.unique((table.time_N - 1) // DAY)),
        late_opens=late,
        early_closes=early,
        bars_per_session=(int(count_S.min()), int(np.median(count_S)), int(count_S.max())),
        gaps=gaps,
        nights=nights,
        rolls=rolls,
        far_apart=tuple(Gap(int(i), float(step_N[i] / SECOND)) for i in np.flatnonzero(far_N)),
    )


def _even_length(table: BarTable) -> int:
    """Length of a bar, in ns; 0 where it is not the same for most of them."""
    inside_N = np.diff(table.time_N)[np.diff(table.session_N) == 0]
    if not len(inside_N):
        return bar_length(table.time_N) if len(table) > 1 else 0
    steps, counts = np.unique(inside_N, return_counts=True)
    return int(steps[np.argmax(counts)]) if 2 * counts.max() >= len(inside_N) else 0


def _off_hours(time_N: Ints, bar: int, instrument: Instrument) -> tuple[int, int]:
    if instrument.open is None:
        return 0, 0
    first_S, last_S = edge_offsets(time_N, instrument)
    slack = 2 * (bar or MINUTE)
    return int((first_S > slack).sum()), int((last_S <= -slack).sum())


def _night(table: BarTable, last: int) -> Night:
    close, first = table.close_N[last], last + 1
    late = int(np.searchsorted(table.time_N, table.time_N[first] + OPENING, side="left"))
    end = int(np.searchsorted(table.session_N, table.session_N[first], side="right"))
    early = table.open_N[late] if late < end else table.close_N[end - 1]
    return Night(
        last,
        float((table.time_N[first] - table.time_N[last]) / HOUR),
        float(table.open_N[first] / close - 1.0),
        float(table.close_N[first] / close - 1.0),
        float(early / close - 1.0),
    )


def _roll(table: BarTable, bar: int) -> Roll:
    before, after = (table.contract[int(table.contract_N[i])] for i in (bar, bar + 1))
    return Roll(bar, before, after, float(table.open_N[bar + 1] - table.close_N[bar]))


def _eras(instrument: Instrument) -> list[tuple[int, int, int]]:
    """Last day, open and close of each set of hours, oldest first; today's have no last day."""
    if instrument.open is None or instrument.close is None:
        return []
    past = [(each.until.toordinal() - _EPOCH, each.open, each.close) for each in instrument.earlier]
    eras = [*past, (np.iinfo(np.int64).max, instrument.open, instrument.close)]
    return [(until, _of_day(opens), _of_day(closes)) for until, opens, closes in eras]


def _of_day(moment: time) -> int:
    return (moment.hour * 3600 + moment.minute * 60 + moment.second) * SECOND
