"""What a person wants to see before training on data: a page of text and a picture.

The folds, features and warm-up are the caller's: this module draws and prints what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trainer.market.bars_table import BarTable, Ints
from trainer.market.calendar import MINUTE, OPENING, SECOND, Night, Survey, bars_left, survey
from trainer.market.instrument import Instrument
from trainer.market.quality import QualityReport

LISTED = 5  # of gaps and nights, the largest; rolls and folds are listed all
COLOURS = {"train": "#4c72b0", "validation": "#dd8452", "purge": "#999999", "holdout": "#c44e52"}


@dataclass(frozen=True)
class Range:
    """Bars ``start`` to ``end`` (exclusive) under a name like ``fold 0 train``; the last word picks the colour."""

    name: str
    start: int
    end: int


def describe(
    table: BarTable,
    report: QualityReport,
    instrument: Instrument,
    ranges: Sequence[Range] = (),
    features: Sequence[str] = (),
    warm_up: int = 0,
) -> str:
    """The page: what was read, dropped and repaired, sessions, gaps, nights, rolls, features and folds."""
    found = survey(table, instrument)
    sections = [
        _source_lines(table, report, instrument),
        _session_lines(table, found, instrument),
        _roll_lines(table, found),
        _feature_lines(features, warm_up),
        [f"{each.name}: {_span(table, each)}" for each in ranges],
    ]
    return "\n".join(line for section in sections for line in section) + "\n"


def describe_holdout(table: BarTable, start: int, instrument: Instrument) -> str:
    """What lies out of sight: the time axis of the bars from ``start`` on, and of the whole table; no price."""
    lines = []
    if start < len(table):
        hidden = table.rows(slice(start, len(table)))
        begin = f"{len(hidden)} bars from {_stamp(hidden.time_N[0])} UTC"
        lines.append(f"holdout, out of sight: {begin}, {_axis(hidden, instrument)}")
    lines.append(f"all of it: {len(table)} bars to {_stamp(table.time_N[-1])} UTC, {_axis(table, instrument)}")
    return "\n".join(lines) + "\n"


def draw(table: BarTable, instrument: Instrument, path: Path, ranges: Sequence[Range] = ()) -> None:
    """Write a PNG: closes over bars with sessions, gaps, rolls and ranges shaded; spread and volume below."""
    found = survey(table, instrument)
    figure = Figure(figsize=(13.0, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    price, spread, volume = figure.subplots(3, 1, sharex=True, height_ratios=(5.0, 1.0, 1.0))
    bars_N = np.arange(len(table))
    _draw_price(price, table, found)
    _draw_ranges(price, ranges)
    spread.plot(bars_N, table.spread_N / instrument.tick, color="#55a868", linewidth=0.6)
    spread.set_ylabel("spread, ticks")
    volume.fill_between(bars_N, table.volume_N, color="#8172b3", linewidth=0.0, step="mid")
    volume.set_ylabel("volume")
    volume.set_xlabel(f"bar (dates on the clock of {instrument.timezone})")
    price.set_title(
        f"{instrument.name}: {len(table)} bars, {found.sessions} sessions, {len(found.gaps)} gaps inside sessions, "
        f"{len(found.rolls)} rolls"
    )
    _date_ticks(volume, table, instrument)
    figure.savefig(path, dpi=110, format="png")


def _source_lines(table: BarTable, report: QualityReport, instrument: Instrument) -> list[str]:
    lines = [f"{'pair' if len(report.files) > 1 else 'file'}: {', '.join(Path(file).name for file in report.files)}"]
    lines.append(
        f"instrument: {instrument.name}, tick {instrument.tick:g}, {instrument.multiplier:g} {instrument.currency} a "
        f"point, {_hours(instrument)}, {instrument.sessions_per_year:g} sessions a year"
    )
    lines.append(f"rows: {report.rows_read} read, {report.rows_kept} kept")
    lines += [f"  dropped {count}: {reason}" for reason, count in report.dropped.items()]
    lines += [f"  repaired {count}: {reason}" for reason, count in report.repaired.items()]
    lines += [f"  {note}" for note in report.notes]
    lines.append(f"span: {_stamp(table.time_N[0])} to {_stamp(table.time_N[-1])} UTC, bars labelled by their end")
    lines.append(
        f"prices: {table.low_N.min():g} to {table.high_N.max():g}, median spread "
        f"{np.median(table.spread_N) / instrument.tick:g} ticks, book: {'yes' if table.has_book else 'no'}"
    )
    return lines


def _session_lines(table: BarTable, found: Survey, instrument: Instrument) -> list[str]:
    shortest, median, longest = found.bars_per_session
    lines = [
        f"sessions: {found.sessions} on {found.dates} UTC dates, {_bars(found)}; "
        f"bars in a session: {shortest} shortest, {median} median, {longest} longest; "
        f"{found.late_opens} begin late, {found.early_closes} end early"
    ]
    lines.append(f"gaps inside sessions: {len(found.gaps)} ({_missing(found)})")
    for gap in sorted(found.gaps, key=lambda each: -each.seconds)[:LISTED]:
        lines.append(f"  {gap.seconds / 60.0:.4g} min after {_stamp(table.time_N[gap.bar])} UTC")
    lines.append(f"steps between sessions: {len(found.nights)} (same contract){'; largest:' if found.nights else ''}")
    for night in sorted(found.nights, key=_size)[:LISTED]:
        lines.append(f"  {_night(table, night)}")
    lines.append(f"dates far apart (more than {instrument.max_gap_hours:g} h): {len(found.far_apart)}")
    for gap in found.far_apart:
        lines.append(f"  {gap.seconds / 86400.0:.1f} days after {_stamp(table.time_N[gap.bar])} UTC")
    if table.funding_N.any():
        lines.append(
            f"funding: {int((table.funding_N != 0.0).sum())} times, {table.funding_N.sum():.4%} of notional in all"
        )
    return lines


def _roll_lines(table: BarTable, found: Survey) -> list[str]:
    lines = [f"contract rolls: {len(found.rolls)}"]
    for roll in found.rolls:
        lines.append(
            f"  {roll.before} to {roll.after} after {_stamp(table.time_N[roll.bar])} UTC, "
            f"step of {roll.step:+g} points not booked"
        )
    return lines


def _axis(table: BarTable, instrument: Instrument) -> str:
    found = survey(table, instrument)
    rolls = ", ".join(f"{roll.before} to {roll.after}" for roll in found.rolls)
    return (
        f"{found.sessions} sessions on {found.dates} UTC dates, {len(found.gaps)} gaps inside sessions, "
        f"{len(found.far_apart)} between dates far apart, {len(found.rolls)} rolls{f' ({rolls})' if rolls else ''}"
    )


def _feature_lines(features: Sequence[str], warm_up: int) -> list[str]:
    if not features:
        return []
    return [f"features: {len(features)}, warm-up {warm_up} bars", f"  {', '.join(features)}"]


def _bars(found: Survey) -> str:
    return f"bars of {found.bar_seconds:g} s" if found.bar_seconds else "bars of uneven length"


def _missing(found: Survey) -> str:
    if not found.bar_seconds:
        return "silences of more than a minute"
    return f"{sum(gap.seconds / found.bar_seconds - 1.0 for gap in found.gaps):.0f} bars missing"


def _size(night: Night) -> float:
    return -max(abs(night.open_move), abs(night.early_move))


def _night(table: BarTable, night: Night) -> str:
    return (
        f"{night.open_move:+.2%} at the open, {night.close_move:+.2%} at the first close, {night.early_move:+.2%} "
        f"after {OPENING // MINUTE} min, {night.hours:.1f} h after {_stamp(table.time_N[night.bar])} UTC"
    )


def _span(table: BarTable, each: Range) -> str:
    if each.end <= each.start:
        return "no bars"
    sessions = len(np.unique(table.session_N[each.start : each.end]))
    return (
        f"bars {each.start} to {each.end - 1} ({each.end - each.start}), {sessions} sessions, "
        f"{_stamp(table.time_N[each.start])} to {_stamp(table.time_N[each.end - 1])} UTC"
    )


def _hours(instrument: Instrument) -> str:
    if instrument.open is None or instrument.close is None:
        return "round the clock (sessions are UTC days)"
    earlier = "".join(f", {each.open:%H:%M} to {each.close:%H:%M} until {each.until}" for each in instrument.earlier)
    return f"{instrument.open:%H:%M} to {instrument.close:%H:%M} {instrument.timezone}{earlier}"


def _stamp(time: int | np.int64) -> str:
    return f"{pd.Timestamp(int(time), tz='UTC'):%Y-%m-%d %H:%M:%S}".removesuffix(":00")


def _draw_price(axes: Axes, table: BarTable, found: Survey) -> None:
    """Closes, broken where nothing may be held; every second session shaded; gaps and rolls as lines."""
    breaks_N = np.flatnonzero((np.diff(table.session_N) != 0) | (np.diff(table.contract_N) != 0)) + 1
    for part in np.split(np.arange(len(table)), breaks_N):
        axes.plot(part, table.close_N[part], color="black", linewidth=0.7)
    if found.sessions <= 400:
        last_S = np.flatnonzero(bars_left(table.session_N) == 0)
        first_S = np.concatenate([[0], last_S[:-1] + 1])
        for start, end in list(zip(first_S, last_S, strict=True))[1::2]:
            axes.axvspan(start - 0.5, end + 0.5, color="#eeeeee", linewidth=0.0, zorder=0)
    wide = [gap for gap in found.gaps if gap.seconds >= max(5.0 * found.bar_seconds, 5.0 * MINUTE / SECOND)]
    _lines(axes, [gap.bar for gap in wide], f"gap in a session of 5 bars or more ({len(wide)})", "#dd8452", ":")
    _lines(axes, [gap.bar for gap in found.far_apart], f"dates far apart ({len(found.far_apart)})", "#8172b3", "--")
    _lines(axes, [roll.bar for roll in found.rolls], f"contract roll ({len(found.rolls)})", "#c44e52", "-")
    axes.set_ylabel("close, points")
    axes.margins(x=0.01)


def _lines(axes: Axes, bars: Sequence[int], label: str, colour: str, style: str) -> None:
    for index, bar in enumerate(bars):
        axes.axvline(bar + 0.5, color=colour, linestyle=style, linewidth=1.0, label=label if index == 0 else None)


def _draw_ranges(axes: Axes, ranges: Sequence[Range]) -> None:
    """Each range as a bar along the bottom, one row per fold."""
    folds = list(dict.fromkeys(each.name.rpartition(" ")[0] for each in ranges))
    height = 0.035
    for each in ranges:
        fold, _, part = each.name.rpartition(" ")
        low = folds.index(fold) * height
        axes.axvspan(
            each.start,
            each.end,
            ymin=low,
            ymax=low + 0.8 * height,
            color=COLOURS.get(part, "#64b5cd"),
            alpha=0.9,
            zorder=3,
        )
    for part in dict.fromkeys(each.name.rpartition(" ")[2] for each in ranges):
        axes.plot([], [], color=COLOURS.get(part, "#64b5cd"), linewidth=6.0, label=part)
    if folds:
        low, high = axes.get_ylim()
        axes.set_ylim(low - (high - low) * height * (len(folds) + 1), high)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)


def _date_ticks(axes: Axes, table: BarTable, instrument: Instrument) -> None:
    last_S: Ints = np.flatnonzero(bars_left(table.session_N) == 0)
    first_S = np.concatenate([[0], last_S[:-1] + 1])
    few = len(first_S) < 3
    shown = np.arange(0, len(table), max(1, len(table) // 10)) if few else first_S[:: max(1, -(-len(first_S) // 12))]
    form = "%Y-%m-%d %H:%M" if few else "%Y-%m-%d"
    stamps = pd.to_datetime(table.time_N[shown], utc=True).tz_convert(instrument.timezone)
    axes.set_xticks(shown, list(stamps.strftime(form)), rotation=20, fontsize=8)
