"""Walk-forward folds and the holdout (S41).

    |--------------- visible -------------------------------------------|-- holdout --|
    fold 0  | train            | purge | validation | embargo |
    fold 1  | train                                           | purge | validation | embargo |

Ranges are bars ``[start, end)`` aligned to units (sessions, or blocks of bars). The units after the first train range
fall into ``count`` equal stretches: each gives up its first units to the purge and its last to the embargo, the rest
validates. Every train range ends where its fold's stretch begins: train always comes before validation, no train bar is
within the purge before or the embargo after the validation range of its fold, and the holdout starts after an embargo.

Legend: N bars, U units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trainer.errors import UserError
from trainer.market.bars_table import BarTable, Ints
from trainer.market.folds_config import FoldsConfig


class Range(NamedTuple):
    """Bars ``start`` to ``end - 1``."""

    start: int
    end: int


@dataclass(frozen=True)
class Fold:
    """One walk-forward split."""

    index: int
    train: Range
    validation: Range


def split_holdout(table: BarTable, config: FoldsConfig) -> tuple[BarTable, Range]:
    """The visible bars, and the range of the holdout in ``table``. Everything that is fitted sees the first alone."""
    cut = holdout_start(table.session_N, config)
    return table.rows(slice(0, cut)), Range(cut, len(table))


def holdout_start(session_N: Ints, config: FoldsConfig) -> int:
    """First row of the holdout: the last ``config.holdout`` of the units, rounded up to whole units.

    Rows may be bars, or the ticks that bars have yet to be made of: only the session of each row is looked at. Raises
    UserError when no row would stay visible, as for a single session.
    """
    size = int(session_N.shape[0])
    if config.holdout == 0.0:
        return size
    if config.unit == "block":
        cut = int((1.0 - config.holdout) * size)
        return _some_visible(cut, f"{size} rows")
    edges_U = _unit_edges(session_N, config)
    units = edges_U.size - 1
    held = int(np.ceil(config.holdout * units - 1e-9))
    return _some_visible(int(edges_U[units - held]), f"{units} sessions")


def make_folds(table: BarTable, config: FoldsConfig, warmup_bars: int = 0, look_back: int = 0) -> tuple[Fold, ...]:
    """Cut the visible ``table`` into folds.

    No train range starts before ``warmup_bars``. The purge covers at least ``look_back`` bars: what an observation or a
    target reaches across. Raises UserError, saying how many units are needed, when the data are too short.
    """
    edges_U = _unit_edges(table.session_N, config)
    edges_U = edges_U[edges_U >= warmup_bars]
    if edges_U.size < 2:
        raise UserError(
            f"folds: {len(table)} visible bars end before features have warmed up: {warmup_bars} bars and more"
        )
    units = edges_U.size - 1
    stretch = min(int((1.0 - config.first_train) * units + 1e-9), units - 1) // config.count
    first = units - stretch * config.count
    folds = []
    for index in range(config.count):
        begin = first + index * stretch
        purged = _purged_to(edges_U, begin, config.purge, look_back)
        end = begin + stretch - config.embargo
        if purged >= end:
            raise UserError(_too_short(edges_U, config, units, purged - begin))
        train_from = 0 if config.scheme == "expanding" else begin - first
        folds.append(
            Fold(
                index=index,
                train=Range(int(edges_U[train_from]), int(edges_U[begin])),
                validation=Range(int(edges_U[purged]), int(edges_U[end])),
            )
        )
    return tuple(folds)


def _unit_edges(session_N: Ints, config: FoldsConfig) -> Ints:
    """[U + 1] first bar of every unit, and the number of bars."""
    size = int(session_N.shape[0])
    if config.unit == "block":
        starts_U = np.arange(0, size, config.block_bars)
    else:
        starts_U = np.flatnonzero(np.diff(session_N, prepend=session_N[:1] - 1))
    return np.append(starts_U, size).astype(np.int64)


def _purged_to(edges_U: Ints, begin: int, purge: int, look_back: int) -> int:
    """First unit that is at least ``purge`` units and ``look_back`` bars behind the start of unit ``begin``."""
    far_enough = int(np.searchsorted(edges_U, edges_U[begin] + look_back, side="left"))
    return max(begin + purge, far_enough)


def _some_visible(cut: int, what: str) -> int:
    if cut == 0:
        raise UserError(
            f"folds: a holdout out of {what} leaves nothing to train on; "
            "give more data, set folds.holdout = 0, or folds.unit = 'block'"
        )
    return cut


def _too_short(edges_U: Ints, config: FoldsConfig, units: int, purged: int) -> str:
    stretch = purged + config.embargo + 1
    needed = max(int(np.ceil(stretch * config.count / (1.0 - config.first_train) - 1e-9)), stretch * config.count + 1)
    sessions = "sessions" if config.unit == "session" else f"blocks of {config.block_bars} bars"
    bars = int(edges_U[-1] - edges_U[0])
    short = (
        f"folds: {units} usable {sessions} ({bars} bars without holdout and warm-up) are too few for {config.count} "
        f"folds with {purged} purged and {config.embargo} under embargo: at least {needed} {sessions} are needed"
    )
    return short if config.unit == "block" else f"{short}, or a smaller folds.count, or folds.unit = 'block'"
