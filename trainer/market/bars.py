"""Bars of a constant amount of time, trades, volume or money, cut from trades and a book (S13).

Bars never span a session, a contract change or a halt; what is left at such a seam is a shorter bar. A trade larger
than what its bar still needs is split over bars, so totals are conserved. Events come in pieces of any size: all state
is carried, and a bar's numbers are computed from its own events in one go, so the pieces change no bit of them.

Time bars hold ``start <= t < end`` and are anchored at the session's open; those without a trade are left out. Every
other bar ends with the trade that completes it, and holds the book states up to and including that instant. A bar's
label is the time at which all of it is known; where one instant completes several bars, the labels are 1 ns apart.

Legend: N bars, T trades, P trade parts, S book states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from trainer.errors import UserError
from trainer.market.bar_config import BarConfig
from trainer.market.bars_table import Floats, Ints
from trainer.market.calendar import DAY, MINUTE, SECOND, clock, session_days
from trainer.market.events import END_OF_TIME, Book, Piece, Trades
from trainer.market.instrument import Instrument
from trainer.market.microstructure import (
    BarMeasures,
    book_measures,
    ratio,
    segment_sum,
)

MOST_PARTS = 20_000_000


@dataclass(frozen=True)
class CutBars:
    """Finished bars in the order of time, and what their events say."""

    time_N: Ints
    open_N: Floats  # mid when the bar's first trade came, where a book exists, else its price
    high_N: Floats
    low_N: Floats
    close_N: Floats  # mid at the close, where a book exists, else the last trade
    volume_N: Floats
    buy_volume_N: Floats
    sell_volume_N: Floats
    session_N: Ints
    contract_N: Ints  # the exchange's instrument id
    measures: BarMeasures

    def __len__(self) -> int:
        return int(self.time_N.shape[0])

    @classmethod
    def concat(cls, parts: list[CutBars]) -> CutBars:
        """All bars of ``parts``, in order."""
        joined = {
            each.name: np.concatenate([getattr(part, each.name) for part in parts])
            for each in fields(cls)
            if each.name != "measures"
        }
        return cls(**joined, measures=BarMeasures.concat([part.measures for part in parts]))


def cut_bars(pieces: Iterator[Piece], config: BarConfig, instrument: Instrument, levels: int) -> CutBars | None:
    """All bars of the pieces; None where they hold no trade. ``levels``: depth of the book, 1 where there is none."""
    cutter = BarCutter(config, instrument, levels)
    finished = [bars for piece in pieces for bars in cutter.push(piece)]
    return CutBars.concat(finished) if finished else None


@dataclass(frozen=True)
class _Pending(Trades):
    """Trades with what was known of each when it came."""

    run_N: Ints  # stretches without a seam, 0-based
    session_N: Ints
    day_N: Ints
    open_N: Ints  # ns UTC, begin of the session
    close_N: Ints
    mid_N: Floats  # in force before the trade, else NaN
    sign_N: Floats  # side, by the quote rule where the exchange says none; 0 where that says none either


@dataclass(frozen=True)
class _Parts:
    """Trades of one run, divided over bars."""

    trade_P: Ints  # index of the trade
    bar_P: Ints  # index of the bar within the run
    size_P: Floats

    def front(self, count: int) -> _Parts:
        return _Parts(self.trade_P[:count], self.bar_P[:count], self.size_P[:count])


class BarCutter:
    """Feed it pieces; it gives bars back as they are finished."""

    def __init__(self, config: BarConfig, instrument: Instrument, levels: int) -> None:
        self._config = config
        self._instrument = instrument
        self._span = max(1, round(config.size * SECOND)) if config.kind == "time" else 0
        self._book = Book.none(levels)  # states not yet in a finished bar, after the last one that is
        self._trades: _Pending | None = None  # trades of the unfinished bar
        self._run = -1  # the stretch without a seam that is being cut
        self._clock = 0.0  # amount traded in the run before ``self._trades``
        self._next_bar = 0  # first unfinished bar of the run
        self._begin: int | None = None  # when that bar began; None where nothing of the run is finished
        self._end = 0  # of the last finished bar
        self._close = 0  # end of the session of the run
        self._last_label = -1
        self._seen: tuple[int, int, int, int, int] | None = None  # time, contract, day, run, session of the last trade

    def push(self, piece: Piece) -> list[CutBars]:
        """Bars that are finished by everything before the piece's watermark."""
        if len(piece.book):
            self._book = Book.concat([self._book, piece.book])
        if len(piece.trades):
            fresh = self._annotate(piece.trades)
            self._trades = fresh if self._trades is None else _Pending.concat([self._trades, fresh])
        finished = []
        while self._trades is not None:
            run_N = self._trades.run_N
            now = int(np.searchsorted(run_N, run_N[0], side="right"))
            run, following = self._trades.rows(slice(0, now)), self._trades.rows(slice(now, None))
            bars = self._cut_run(run, following, piece.watermark)
            if bars is not None:
                finished.append(bars)
            if not len(following):
                break
        self._forget(piece.watermark)
        return finished

    def _annotate(self, trades: Trades) -> _Pending:
        """Place new trades in sessions and runs, and look up the mid each met."""
        day_N = session_days(trades.time_N + 1, self._instrument)
        open_N, close_N = session_edges(trades.time_N, self._instrument)
        if self._seen is None:
            self._seen = (int(trades.time_N[0]), int(trades.contract_N[0]), int(day_N[0]), 0, 0)
        time, contract, day, run, session = self._seen
        silent_N = np.diff(trades.time_N, prepend=time) > self._instrument.max_halt_minutes * MINUTE
        seam_N = silent_N | (np.diff(day_N, prepend=day) != 0)
        session_N = session + np.cumsum(seam_N)
        run_N = run + np.cumsum(seam_N | (np.diff(trades.contract_N, prepend=contract) != 0))
        self._seen = (
            int(trades.time_N[-1]),
            int(trades.contract_N[-1]),
            int(day_N[-1]),
            int(run_N[-1]),
            int(session_N[-1]),
        )
        mid_N = np.full(len(trades), np.nan)
        if len(self._book):
            state_N = np.searchsorted(self._book.time_N, trades.time_N, side="left") - 1
            known_N = (
                (state_N >= 0)
                & (self._book.contract_N[state_N] == trades.contract_N)
                & (self._book.time_N[state_N] >= open_N)
            )
            mid_N[known_N] = self._book.mid_N[state_N[known_N]]
        quote_rule_N = np.nan_to_num(np.sign(trades.price_N - mid_N))
        sign_N = np.where(trades.side_N != 0.0, trades.side_N, quote_rule_N)
        own = {each.name: getattr(trades, each.name) for each in fields(Trades)}
        return _Pending(
            **own,
            run_N=run_N,
            session_N=session_N,
            day_N=day_N,
            open_N=open_N,
            close_N=close_N,
            mid_N=mid_N,
            sign_N=sign_N,
        )

    def _cut_run(self, run: _Pending, following: _Pending, watermark: int) -> CutBars | None:
        """Finish what can be finished of one run; ``following`` are the trades after it."""
        if run.run_N[0] != self._run:
            self._run, self._clock, self._next_bar, self._begin = int(run.run_N[0]), 0.0, 0, None
        over = len(following) > 0 or watermark == END_OF_TIME
        self._close = int(run.close_N[0])
        parts, after_T = self._divide(run)
        bar_N, first_N = np.unique(parts.bar_P, return_index=True)
        final_N = run.time_N[parts.trade_P[np.append(first_N[1:], len(parts.bar_P)) - 1]]
        if self._span:
            seam = int(following.time_N[0]) if len(following) else END_OF_TIME
            end_N = label_N = np.minimum(run.open_N[0] + (bar_N + 1) * self._span, min(self._close, seam))
            done_N = (end_N <= watermark) | over
        else:
            whole_N = bar_N < int(after_T[-1] // self._config.size)
            session_over = len(following) > 0 and following.day_N[0] != run.day_N[0]
            end_N = np.where(whole_N | (not session_over), final_N + 1, self._close)
            label_N = np.where(whole_N | (not session_over), final_N, self._close)
            done_N = whole_N | over
        count = int(done_N.sum())
        bars = None
        if count:
            begin = self._begin
            if begin is None and self._span:
                begin = max(int(run.open_N[0] + bar_N[0] * self._span), self._end)
            elif begin is None:
                begin = int(run.time_N[0])
            done = parts.front(int(first_N[count]) if count < len(bar_N) else len(parts.bar_P))
            begin_N = np.append(begin, end_N[: count - 1])
            bars = self._measure(run, done, first_N[:count], begin_N, end_N[:count], self._label(label_N[:count]))
            self._begin = self._end = int(end_N[count - 1])
            self._next_bar = int(bar_N[count - 1]) + 1
        self._keep(run, following, after_T, int(parts.trade_P[first_N[count]]) if count < len(bar_N) else None, over)
        return bars

    def _divide(self, run: _Pending) -> tuple[_Parts, Floats]:
        """Divide a run's trades over bars; also the amount traded in the run after each trade."""
        if self._config.kind == "time":
            bar_T = (run.time_N - run.open_N) // self._span
            return _Parts(np.arange(len(run)), bar_T, run.size_N), np.zeros(len(run))
        amount_T = {
            "tick": np.ones(len(run)),
            "volume": run.size_N,
            "dollar": run.size_N * run.price_N,
        }[self._config.kind]
        size = self._config.size
        clock = np.cumsum(np.concatenate([[self._clock], amount_T]))
        before_T, after_T = clock[:-1], clock[1:]
        low_T = np.floor(before_T / size).astype(np.int64)
        high_T = np.floor(after_T / size).astype(np.int64)
        high_T = np.maximum(np.where(after_T > high_T * size, high_T, high_T - 1), low_T)
        count_T = high_T - low_T + 1
        if int(count_T.sum()) > MOST_PARTS:
            raise UserError(
                f"market.bar.size {size}: more than {MOST_PARTS:,} bars in {len(run):,} trades; give bars a larger size"
            )
        trade_P = np.repeat(np.arange(len(run)), count_T)
        bar_P = low_T[trade_P] + np.arange(len(trade_P)) - np.repeat(np.cumsum(count_T) - count_T, count_T)
        held_P = np.minimum(after_T[trade_P], (bar_P + 1) * size) - np.maximum(before_T[trade_P], bar_P * size)
        size_P = np.where(count_T[trade_P] == 1, run.size_N[trade_P], held_P / amount_T[trade_P] * run.size_N[trade_P])
        new_P = bar_P >= self._next_bar
        return _Parts(trade_P[new_P], bar_P[new_P], size_P[new_P]), after_T

    def _keep(self, run: _Pending, following: _Pending, after_T: Floats, first: int | None, over: bool) -> None:
        """Carry on with the trades of the unfinished bar, which begin at index ``first``, or with the next run."""
        if over:
            self._trades = following if len(following) else None
        elif first is None:
            self._trades, self._clock = None, float(after_T[-1])
        elif first > 0:
            self._trades, self._clock = run.rows(slice(first, None)), float(after_T[first - 1])

    def _label(self, label_N: Ints) -> Ints:
        """Strictly increasing labels, none before the time given."""
        step_N = np.arange(len(label_N))
        label_N = np.maximum.accumulate(np.maximum(label_N, self._last_label + 1) - step_N) + step_N
        self._last_label = int(label_N[-1])
        return label_N

    def _measure(
        self, run: _Pending, parts: _Parts, first_N: Ints, begin_N: Ints, end_N: Ints, label_N: Ints
    ) -> CutBars:
        """Numbers of finished bars: bar n has the parts from ``first_N[n]`` on and the states of [begin, end)."""
        book = self._book.rows(
            (self._book.contract_N == run.contract_N[0])
            & (self._book.time_N >= run.open_N[0])
            & (self._book.time_N < run.close_N[0])
        )
        last_N = np.append(first_N[1:], len(parts.bar_P))
        price_P, sign_P = run.price_N[parts.trade_P], run.sign_N[parts.trade_P]
        mid_P, size_P = run.mid_N[parts.trade_P], parts.size_P

        def total(value_P: Floats) -> Floats:
            return segment_sum(value_P, first_N, last_N)

        began_N = np.maximum(run.time_N[parts.trade_P[first_N]], begin_N)
        open_N = _mid_before(book, began_N, price_P[first_N])
        close_N = _mid_before(book, end_N, price_P[last_N - 1])
        volume_N = total(size_P)
        signed_N = total(size_P * sign_P)
        sided_P = np.where(np.isfinite(mid_P), np.abs(sign_P) * size_P, 0.0)
        mid_P = np.where(np.isfinite(mid_P), mid_P, 0.0)
        close_P = np.repeat(close_N, last_N - first_N)
        measures = BarMeasures(
            **book_measures(book, begin_N, end_N, self._instrument.tick),
            seconds_N=(end_N - begin_N) / SECOND,
            trades_N=(last_N - first_N).astype(np.float64),
            signed_trades_N=total(sign_P),
            volume_N=volume_N,
            signed_volume_N=signed_N,
            effective_N=ratio(total(2.0 * sided_P * sign_P * (price_P - mid_P)), total(sided_P)),
            realised_N=ratio(total(2.0 * sided_P * sign_P * (price_P - close_P)), total(sided_P)),
        )
        return CutBars(
            time_N=label_N,
            open_N=open_N,
            high_N=np.maximum(np.maximum.reduceat(price_P, first_N), np.maximum(open_N, close_N)),
            low_N=np.minimum(np.minimum.reduceat(price_P, first_N), np.minimum(open_N, close_N)),
            close_N=close_N,
            volume_N=volume_N,
            buy_volume_N=total(size_P * (1.0 + sign_P) / 2.0),
            sell_volume_N=total(size_P * (1.0 - sign_P) / 2.0),
            session_N=run.session_N[parts.trade_P[first_N]],
            contract_N=run.contract_N[parts.trade_P[first_N]],
            measures=measures,
        )

    def _forget(self, watermark: int) -> None:
        """Drop book states that no later bar or trade can need; the last of them stays, as what was in force."""
        if not len(self._book) or watermark == END_OF_TIME:
            return
        floor = watermark
        if self._begin is not None and (self._trades is not None or watermark < self._close):
            floor = self._begin
        elif self._trades is not None:
            return
        elif self._span:
            opens = int(session_edges(np.array([watermark]), self._instrument)[0][0])
            floor = opens + (watermark - opens) // self._span * self._span
        first = max(int(np.searchsorted(self._book.time_N, floor, side="left")) - 1, 0)
        if first:
            self._book = self._book.rows(slice(first, None))


def session_edges(time_N: Ints, instrument: Instrument) -> tuple[Ints, Ints]:
    """Begin and end (ns UTC) of the session hours around each time; the UTC day where there are no hours.

    A clock change between the open and the time would shift both by an hour; exchanges change theirs while closed.
    """
    if instrument.open is None:
        open_N = time_N // DAY * DAY
        return open_N, open_N + DAY
    at = clock(time_N + 1, instrument)  # an event at the open is of the session that begins
    open_N = time_N - (at.local_N - 1 - at.open_N) % DAY
    return open_N, open_N + (at.close_N - at.open_N) % DAY


def _mid_before(book: Book, time_N: Ints, otherwise_N: Floats) -> Floats:
    """Mid of the last state before each time, or ``otherwise`` where there is none."""
    state_N = np.searchsorted(book.time_N, time_N, side="left") - 1
    if not len(book):
        return otherwise_N
    mid_N: Floats = np.where(state_N >= 0, book.mid_N[state_N], otherwise_N)
    return mid_N
