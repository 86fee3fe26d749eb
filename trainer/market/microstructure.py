"""The 20 microstructure features (S14): what one bar's order-book states and trades say, and rolling measures of it.

Legend: N bars, S book states, P trade parts (a trade split over bars has one part in each), M levels. Everything is
causal: a bar's row needs that bar and the ones before it. In the mirrored market (S12) bid and ask, buyer and seller,
change places; the parities below follow from that. Where no book exists all 20 columns are zero and ``has_book`` is 0.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trainer.market.bars_table import Bools, Floats, Ints
from trainer.market.events import Book
from trainer.market.features.spec import FeatureSpec, check_specs
from trainer.market.market import Parity

HAS_BOOK = "has_book"
ROLLING_BLOCK = 65_536  # bars whose windows are laid out at a time
SHORTEST_SECONDS = 1e-3  # rates over less time than this are taken over this

MICROSTRUCTURE: tuple[FeatureSpec, ...] = (
    FeatureSpec(
        "ofi_1",
        Parity.ODD,
        doc="units; order flow imbalance of the best level, summed over the bar's book changes "
        "(Cont, Kukanov, Stoikov 2014, eq. 4)",
    ),
    FeatureSpec(
        "ofi_2_5",
        Parity.ODD,
        doc="units; the same summed over levels 2 to 5 (multi-level: Xu, Gould, Howison 2019, eq. 6)",
    ),
    FeatureSpec("ofi_6_10", Parity.ODD, doc="units; the same summed over levels 6 to 10"),
    FeatureSpec(
        "queue_imbalance",
        Parity.ODD,
        doc="-1 to 1; (q_bid - q_ask) / (q_bid + q_ask) of the best level at the close (Gould, Bonart 2016, eq. 3)",
    ),
    FeatureSpec("depth_imbalance_5", Parity.ODD, doc="-1 to 1; the same with the sizes of levels 1 to 5 summed"),
    FeatureSpec("depth_imbalance_10", Parity.ODD, doc="-1 to 1; the same with the sizes of levels 1 to 10 summed"),
    FeatureSpec(
        "microprice_deviation",
        Parity.ODD,
        doc="ticks; (p_ask q_bid + p_bid q_ask) / (q_bid + q_ask) - mid at the close (Gatheral, Oomen 2010, sec. 2)",
    ),
    FeatureSpec("spread_ticks", Parity.EVEN, doc="ticks; best ask - best bid at the close"),
    FeatureSpec(
        "trade_imbalance",
        Parity.ODD,
        doc="-1 to 1; (bought - sold) / volume of the bar, by aggressor (Chordia, Roll, Subrahmanyam 2002)",
    ),
    FeatureSpec("trade_count_imbalance", Parity.ODD, doc="-1 to 1; the same counted in trades"),
    FeatureSpec(
        "vpin",
        Parity.EVEN,
        doc="0 to 1; sum of |bought - sold| over sum of volume, both over the window "
        "(Easley, Lopez de Prado, O'Hara 2012, eq. 5, with the exchange's own sides)",
    ),
    FeatureSpec("trade_intensity", Parity.EVEN, doc="trades per second, sum over sum, over the window"),
    FeatureSpec("mean_trade_size", Parity.EVEN, doc="units per trade of the bar"),
    FeatureSpec(
        "kyle_lambda",
        Parity.EVEN,
        doc="ticks per unit; slope of the bars' mid changes on their signed volumes over the window "
        "(Kyle 1985; regression as in Hasbrouck 2009, eq. 5)",
    ),
    FeatureSpec(
        "amihud",
        Parity.EVEN,
        doc="basis points per unit; mean over the window of |relative mid change| / volume (Amihud 2002, eq. 1)",
    ),
    FeatureSpec(
        "bid_slope",
        Parity.SWAPPED,
        partner="ask_slope",
        doc="units per tick; sizes of the shown bid levels over the ticks they span, at the close "
        "(after Biais, Hillion, Spatt 1995)",
    ),
    FeatureSpec("ask_slope", Parity.SWAPPED, partner="bid_slope", doc="units per tick; the same of the ask levels"),
    FeatureSpec("quote_rate", Parity.EVEN, doc="book changes per second, sum over sum, over the window"),
    FeatureSpec(
        "effective_spread",
        Parity.EVEN,
        doc="ticks; size-weighted mean of 2 s (p - m), s the side, p the price, m the mid before the trade "
        "(Huang, Stoll 1996, eq. 1)",
    ),
    FeatureSpec(
        "realised_spread",
        Parity.EVEN,
        doc="ticks; the same with the mid at the bar's close as m: what the passive side kept "
        "(Huang, Stoll 1996, eq. 2)",
    ),
)
check_specs(MICROSTRUCTURE)
MICROSTRUCTURE_NAMES: tuple[str, ...] = tuple(spec.name for spec in MICROSTRUCTURE)


@dataclass(frozen=True)
class BarMeasures:
    """What each bar's own events say. Rows without a book hold zeros."""

    has_book_N: Bools
    mid_open_N: Floats  # points; the mid in force when the bar began, else the bar's first
    mid_close_N: Floats  # points
    spread_N: Floats  # points, at the close
    flow_N3: Floats  # units; order flow of levels 1, 2 to 5, 6 to 10
    size_N6: Floats  # units at the close; bid and ask sizes summed over 1, 5 and 10 levels (bid 1, ask 1, bid 5, ...)
    microprice_N: Floats  # points, from the mid, at the close
    slope_N2: Floats  # units per tick; bid and ask
    changes_N: Floats  # book states
    seconds_N: Floats
    trades_N: Floats  # trades that have a part in the bar
    signed_trades_N: Floats
    volume_N: Floats  # units
    signed_volume_N: Floats
    effective_N: Floats  # points, size-weighted mean
    realised_N: Floats

    @classmethod
    def concat(cls, parts: list[BarMeasures]) -> BarMeasures:
        """All bars of ``parts``, in order."""
        return cls(**{each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)})


def order_flow(book: Book) -> Floats:
    """Order flow imbalance [S, M] that each state brought, against the state before it, level by level.

    Cont, Kukanov, Stoikov (2014), eq. 4: ``e = 1{P_b >= P_b'} q_b - 1{P_b <= P_b'} q_b' - 1{P_a <= P_a'} q_a
    + 1{P_a >= P_a'} q_a'`` with ' the state before. Both inequalities hold at an unchanged price, so a change of size
    counts. The first state, and each ``fresh`` one, has nothing before it and brings 0.
    """
    flow_SM = np.zeros_like(book.bid_size_NM)
    if len(book) > 1:
        bid, bid_before = book.bid_price_NM[1:], book.bid_price_NM[:-1]
        ask, ask_before = book.ask_price_NM[1:], book.ask_price_NM[:-1]
        flow_SM[1:] = (
            np.where(bid >= bid_before, book.bid_size_NM[1:], 0.0)
            - np.where(bid <= bid_before, book.bid_size_NM[:-1], 0.0)
            - np.where(ask <= ask_before, book.ask_size_NM[1:], 0.0)
            + np.where(ask >= ask_before, book.ask_size_NM[:-1], 0.0)
        )
    flow_SM[book.fresh_N] = 0.0
    return flow_SM


def flow_of_bars(book: Book, first_N: Ints, last_N: Ints) -> Floats:
    """[N, 3] order flow of levels 1, 2 to 5 and 6 to 10 over each bar's states ``first <= s < last``."""
    flow_SM = order_flow(book)
    groups_S3 = np.stack([flow_SM[:, :1].sum(1), flow_SM[:, 1:5].sum(1), flow_SM[:, 5:10].sum(1)], axis=1)
    return np.stack([segment_sum(groups_S3[:, group], first_N, last_N) for group in range(3)], axis=1)


def depth(book: Book) -> Floats:
    """[S, 6] sizes summed over 1, 5 and 10 levels: bid 1, ask 1, bid 5, ask 5, bid 10, ask 10."""
    sides = [size[:, :levels].sum(1) for levels in (1, 5, 10) for size in (book.bid_size_NM, book.ask_size_NM)]
    return np.stack(sides, axis=1)


def microprice_deviation(book: Book) -> Floats:
    """[S] points: the size-weighted price of the best level minus the mid."""
    bid, ask = book.bid_size_NM[:, 0], book.ask_size_NM[:, 0]
    deviation_S: Floats = book.spread_N / 2.0 * (bid - ask) / (bid + ask)
    return deviation_S


def slopes(book: Book, tick: float) -> Floats:
    """[S, 2] units per tick: sizes of the shown levels over the ticks from best to last level, both counted."""
    out = []
    for price, size in ((book.bid_price_NM, book.bid_size_NM), (book.ask_price_NM, book.ask_size_NM)):
        shown = size > 0.0
        far = np.where(shown, np.abs(np.where(shown, price, 0.0) - price[:, :1]), 0.0).max(axis=1, initial=0.0)
        out.append(size.sum(1) / (far / tick + 1.0))
    return np.stack(out, axis=1)


def book_measures(book: Book, begin_N: Ints, end_N: Ints, tick: float) -> dict[str, Any]:
    """What the book says of each bar [begin, end): the fields of ``BarMeasures`` that come from it."""
    first_N = np.searchsorted(book.time_N, begin_N, side="left")
    last_N = np.searchsorted(book.time_N, end_N, side="left")
    held_N = last_N > 0
    close = book.rows(np.maximum(last_N - 1, 0)[held_N])
    opened = book.rows(np.where(first_N > 0, first_N - 1, 0)[held_N])

    def spread_out(values: Floats) -> Floats:
        whole = np.zeros((len(held_N), *values.shape[1:]))
        whole[held_N] = values
        return whole

    return {
        "has_book_N": held_N,
        "mid_open_N": spread_out(opened.mid_N),
        "mid_close_N": spread_out(close.mid_N),
        "spread_N": spread_out(close.spread_N),
        "flow_N3": flow_of_bars(book, first_N, last_N),
        "size_N6": spread_out(depth(close)),
        "microprice_N": spread_out(microprice_deviation(close)),
        "slope_N2": spread_out(slopes(close, tick)),
        "changes_N": (last_N - first_N).astype(np.float64),
    }


def segment_sum(values: Floats, first_N: Ints, last_N: Ints) -> Floats:
    """Sum of ``values[first:last]`` per bar (0 where empty); a segment's bits depend on nothing outside it."""
    total_N = np.zeros(len(first_N))
    filled = last_N > first_N
    if filled.any():
        edges = np.stack([first_N[filled], last_N[filled]], axis=1).ravel()
        total_N[filled] = np.add.reduceat(np.append(values, 0.0), edges)[::2]
    return total_N


def microstructure_columns(bars: BarMeasures, window: int, tick: float) -> dict[str, Floats]:
    """The 20 columns of ``MICROSTRUCTURE`` and the flag ``has_book``, each [N] and finite."""
    held = bars.has_book_N
    move_N = np.where(held, bars.mid_close_N - bars.mid_open_N, 0.0)
    share_N = ratio(np.abs(move_N), np.where(held, bars.mid_open_N, 0.0))
    seconds_N = np.maximum(rolling_sum(bars.seconds_N, window), SHORTEST_SECONDS)
    size = bars.size_N6
    columns = {
        "ofi_1": bars.flow_N3[:, 0],
        "ofi_2_5": bars.flow_N3[:, 1],
        "ofi_6_10": bars.flow_N3[:, 2],
        "queue_imbalance": ratio(size[:, 0] - size[:, 1], size[:, 0] + size[:, 1]),
        "depth_imbalance_5": ratio(size[:, 2] - size[:, 3], size[:, 2] + size[:, 3]),
        "depth_imbalance_10": ratio(size[:, 4] - size[:, 5], size[:, 4] + size[:, 5]),
        "microprice_deviation": bars.microprice_N / tick,
        "spread_ticks": bars.spread_N / tick,
        "trade_imbalance": ratio(bars.signed_volume_N, bars.volume_N),
        "trade_count_imbalance": ratio(bars.signed_trades_N, bars.trades_N),
        "vpin": vpin(bars.signed_volume_N, bars.volume_N, window),
        "trade_intensity": rolling_sum(bars.trades_N, window) / seconds_N,
        "mean_trade_size": ratio(bars.volume_N, bars.trades_N),
        "kyle_lambda": kyle_lambda(move_N / tick, bars.signed_volume_N, window),
        "amihud": amihud(share_N * 1e4, bars.volume_N, window),
        "bid_slope": bars.slope_N2[:, 0],
        "ask_slope": bars.slope_N2[:, 1],
        "quote_rate": rolling_sum(bars.changes_N, window) / seconds_N,
        "effective_spread": bars.effective_N / tick,
        "realised_spread": bars.realised_N / tick,
    }
    return {name: np.where(held, columns[name], 0.0) for name in MICROSTRUCTURE_NAMES} | {HAS_BOOK: held.astype(float)}


def no_book_columns(count: int) -> dict[str, Floats]:
    """The columns of ``count`` bars that no book stands behind: zeros, the flag too."""
    return {name: np.zeros(count) for name in (*MICROSTRUCTURE_NAMES, HAS_BOOK)}


def vpin(signed_volume_N: Floats, volume_N: Floats, window: int) -> Floats:
    """Sum of |signed volume| over sum of volume of the last ``window`` bars (fewer at the start): within [0, 1]."""
    share = ratio(rolling_sum(np.abs(signed_volume_N), window), rolling_sum(volume_N, window))
    return np.minimum(share, 1.0)


def kyle_lambda(move_N: Floats, signed_volume_N: Floats, window: int) -> Floats:
    """Least-squares slope of moves on signed volumes over the last ``window`` bars, 0 where the volumes do not vary."""
    slope_N = np.zeros(len(move_N))
    for start in range(0, len(move_N), ROLLING_BLOCK):
        rows_N = np.arange(start, min(start + ROLLING_BLOCK, len(move_N)))
        count_N = np.minimum(rows_N + 1, window)[:, None]
        present = np.arange(window)[None, :] >= window - count_N
        x, y = _windows(signed_volume_N, window, rows_N), _windows(move_N, window, rows_N)
        x = np.where(present, x - x.sum(1, keepdims=True) / count_N, 0.0)
        y = np.where(present, y - y.sum(1, keepdims=True) / count_N, 0.0)
        slope_N[rows_N] = ratio((x * y).sum(1), (x * x).sum(1))
    return slope_N


def amihud(move_N: Floats, volume_N: Floats, window: int) -> Floats:
    """Mean of |move| / volume over the last ``window`` bars (fewer at the start)."""
    count_N = np.minimum(np.arange(1, len(move_N) + 1), window)
    mean_N: Floats = rolling_sum(ratio(np.abs(move_N), volume_N), window) / count_N
    return mean_N


def rolling_sum(values_N: Floats, window: int) -> Floats:
    """Sum of the last ``window`` values (fewer at the start), each added up by itself so that no error accumulates."""
    total_N = np.zeros(len(values_N))
    for start in range(0, len(values_N), ROLLING_BLOCK):
        rows_N = np.arange(start, min(start + ROLLING_BLOCK, len(values_N)))
        total_N[rows_N] = _windows(values_N, window, rows_N).sum(1)
    return total_N


def _windows(values_N: Floats, window: int, rows_N: Ints) -> Floats:
    """[rows, window] the last ``window`` values of consecutive rows, older ones first, zeros before the first bar."""
    padded = np.concatenate([np.zeros(window - 1), values_N])
    return np.ascontiguousarray(sliding_window_view(padded[rows_N[0] : rows_N[-1] + window], window))


def ratio(over: Floats, under: Floats) -> Floats:
    """``over / under``, 0 where ``under`` is 0."""
    return np.divide(over, under, out=np.zeros_like(over), where=under != 0.0)
