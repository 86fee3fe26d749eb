"""The gap-free price path that every feature reads: log prices chained over moves that a position can live through.

A *run* is a stretch of bars of one session and one contract. Inside a run the move of a bar is log(close / previous
close); on a run's first bar it is log(close / open). So neither the night nor a contract roll is ever a return, and
windows run on across sessions and rolls with the gap taken out: nothing has to warm up again each morning. The
overnight gap itself is known at the session's first bar and is kept apart in ``gap_N``; across a roll it is zero.

In log prices the mirrored market is exactly ``-level``, with high and low swapped, which makes every parity exact.

Legend: N bars. All arrays are float64 unless they say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.errors import UserError
from trainer.market.bars_table import BarTable, Bools, Floats, Ints


@dataclass(frozen=True)
class Path:
    """Levels are log prices relative to the open of bar 0 with all gaps removed."""

    time_N: Ints  # ns UTC
    run_start_N: Bools  # first bar of a session or of a contract
    session_start_N: Bools
    age_N: Ints  # bars since the session's first, which has 0
    move_N: Floats  # log move of the bar, gap-free
    level_N: Floats  # at the close: cumulative sum of the moves
    previous_N: Floats  # level before the bar: the last close, or the open on a run's first bar
    open_N: Floats  # level of the open
    high_N: Floats  # level of the high, never below those of open and close
    low_N: Floats
    gap_N: Floats  # log(open / last close) at a session's first bar, else 0; 0 at a roll
    spread_N: Floats  # share of the close
    volume_N: Floats
    buy_N: Floats  # zeros where the source does not say
    sell_N: Floats
    funding_N: Floats

    def __len__(self) -> int:
        return int(self.level_N.shape[0])


def price_path(table: BarTable) -> Path:
    """Chain ``table`` into a gap-free path. Raises UserError for a price that has no logarithm."""
    for name, price_N in (
        ("open", table.open_N),
        ("high", table.high_N),
        ("low", table.low_N),
        ("close", table.close_N),
    ):
        bad_N = ~(price_N > 0.0)
        if bad_N.any():
            raise UserError(f"bar {int(np.argmax(bad_N))}: {name} is not positive; features need prices above zero")
    size = len(table)
    session_start_N = _changes(table.session_N)
    roll_N = _changes(table.contract_N)
    run_start_N = session_start_N | roll_N
    log_open_N, log_close_N = np.log(table.open_N), np.log(table.close_N)
    last_close_N = np.concatenate([log_open_N[:1], log_close_N[:-1]])
    base_N = np.where(run_start_N, log_open_N, last_close_N)
    move_N = log_close_N - base_N
    level_N = np.cumsum(move_N)
    previous_N = np.concatenate([np.zeros(1), level_N[:-1]])
    top_N = np.maximum(np.log(table.high_N), np.maximum(log_open_N, log_close_N))
    bottom_N = np.minimum(np.log(table.low_N), np.minimum(log_open_N, log_close_N))
    index_N = np.arange(size)
    zeros_N = np.zeros(size)
    gap_N = np.where(session_start_N & ~roll_N, log_open_N - last_close_N, zeros_N)
    return Path(
        time_N=table.time_N,
        run_start_N=run_start_N,
        session_start_N=session_start_N,
        age_N=index_N - np.maximum.accumulate(np.where(session_start_N, index_N, 0)),
        move_N=move_N,
        level_N=level_N,
        previous_N=previous_N,
        open_N=previous_N + (log_open_N - base_N),
        high_N=previous_N + (top_N - base_N),
        low_N=previous_N + (bottom_N - base_N),
        gap_N=gap_N,
        spread_N=table.spread_N / table.close_N,
        volume_N=table.volume_N,
        buy_N=zeros_N if table.buy_volume_N is None else table.buy_volume_N,
        sell_N=zeros_N if table.sell_volume_N is None else table.sell_volume_N,
        funding_N=table.funding_N,
    )


def _changes(label_N: Ints) -> Bools:
    """True where the label differs from the bar before, and on bar 0."""
    changed_N = np.ones(label_N.shape[0], dtype=np.bool_)
    changed_N[1:] = label_N[1:] != label_N[:-1]
    return changed_N
