"""Where the bar stands in its session, from time stamps already seen.

The session's end is estimated from past sessions: for bars that do not end on a clock the true one is in the future.
"""

from __future__ import annotations

import math

import numpy as np

from trainer.market.bars_table import Floats
from trainer.market.features.path import Path
from trainer.market.features.registry import feature
from trainer.market.features.rolling import lag, ratio, rolling_sum
from trainer.market.market import Parity

DAY = 86_400.0  # s
PAST_SESSIONS = 5
PACE_BARS = 32
HOLE = 3.0  # times the usual step between bars


@feature("time_sin", parity=Parity.EVEN, unit="1")
def time_sin(path: Path) -> Floats:
    """sin(2 pi s / 24 h), s the time since the session's first bar: keeps the exchange clock's daylight saving."""
    return np.sin(2.0 * math.pi / DAY * _elapsed(path))


@feature("time_cos", parity=Parity.EVEN, unit="1")
def time_cos(path: Path) -> Floats:
    """cos(2 pi s / 24 h), s the time since the session's first bar."""
    return np.cos(2.0 * math.pi / DAY * _elapsed(path))


@feature("session_left", parity=Parity.EVEN, unit="share")
def session_left(path: Path) -> Floats:
    """1 - s / (median duration of the last 5 completed sessions; 24 h before there is one), held to [0, 1]."""
    elapsed_N = _elapsed(path)
    starts_S = np.flatnonzero(path.session_start_N)
    durations = elapsed_N[starts_S[1:] - 1]
    typical_S = np.full(starts_S.size, DAY)
    for session in range(1, starts_S.size):
        typical_S[session] = np.median(durations[max(0, session - PAST_SESSIONS) : session])
    typical_N = np.maximum(typical_S[np.cumsum(path.session_start_N) - 1], 1.0)
    left_N: Floats = np.clip(1.0 - elapsed_N / typical_N, 0.0, 1.0)
    return left_N


@feature("session_age", parity=Parity.EVEN, unit="log")
def session_age(path: Path) -> Floats:
    """log(1 + bars since the session's first): the open is set apart, the middle of the day is not."""
    return np.log1p(path.age_N.astype(np.float64))


@feature("bar_pace", parity=Parity.EVEN, unit="log", warmup=PACE_BARS + 1)
def bar_pace(path: Path) -> Floats:
    """log of the bar's time step over the mean step of the 32 bars before; 0 for clock bars and where a run starts."""
    return np.log(_relative_step(path))


@feature("gap_flag", parity=Parity.EVEN, unit="flag")
def gap_flag(path: Path) -> Floats:
    """1 where the bar opens a session or a contract, or comes later than 3 usual steps after the last; else 0."""
    return (path.run_start_N | (_relative_step(path) > HOLE)).astype(np.float64)


def _elapsed(path: Path) -> Floats:
    """Seconds since the end of the session's first bar."""
    first_N = np.arange(len(path)) - path.age_N
    elapsed_N: Floats = (path.time_N - path.time_N[first_N]) / 1e9
    return elapsed_N


def _relative_step(path: Path) -> Floats:
    """Time since the bar before over the mean of earlier steps inside runs; 1 where there is nothing to compare."""
    inside_N = ~path.run_start_N
    step_N = np.where(inside_N, np.diff(path.time_N, prepend=path.time_N[:1]) / 1e9, 0.0)
    mean_N = ratio(lag(rolling_sum(step_N, PACE_BARS), 1), lag(rolling_sum(inside_N.astype(np.float64), PACE_BARS), 1))
    return np.where(inside_N, ratio(step_N, mean_N, otherwise=1.0), 1.0)
