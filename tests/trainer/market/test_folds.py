"""Walk-forward folds and the holdout (S41)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.market.bars_table import BarTable, Ints
from trainer.market.folds import Fold, Range, holdout_start, make_folds, split_holdout
from trainer.market.folds_config import FoldsConfig


def table_of(sessions: Sequence[int]) -> BarTable:
    """Bars numbered by their close, ``sessions`` bars in each session."""
    session_N = np.repeat(np.arange(len(sessions)), sessions)
    size = session_N.size
    price_N = 1.0 + np.arange(size, dtype=np.float64)
    zeros_N = np.zeros(size)
    return BarTable(
        time_N=np.arange(size) * 60 * 10**9,
        open_N=price_N, high_N=price_N, low_N=price_N, close_N=price_N,
        volume_N=zeros_N, spread_N=zeros_N, funding_N=zeros_N,
        session_N=session_N, contract_N=np.zeros(size, dtype=np.int64),
    )  # fmt: skip


def ranges(folds: Sequence[Fold]) -> list[tuple[int, int, int, int]]:
    return [(*fold.train, *fold.validation) for fold in folds]


def test_expanding_folds_by_hand() -> None:
    """16 sessions of 10 bars, half for the first train range, two stretches of 4: 1 purged, 2 validate, 1 embargo."""
    folds = make_folds(table_of([10] * 16), FoldsConfig(count=2, purge=1, embargo=1))
    assert ranges(folds) == [(0, 80, 90, 110), (0, 120, 130, 150)]
    assert [fold.index for fold in folds] == [0, 1]


def test_rolling_folds_keep_the_first_length() -> None:
    folds = make_folds(table_of([10] * 16), FoldsConfig(scheme="rolling", count=2, purge=1, embargo=1))
    assert ranges(folds) == [(0, 80, 90, 110), (40, 120, 130, 150)]


def test_units_that_do_not_divide_go_to_the_first_train_range() -> None:
    folds = make_folds(table_of([10] * 18), FoldsConfig(count=2, purge=0, embargo=0))
    assert ranges(folds) == [(0, 100, 100, 140), (0, 140, 140, 180)]


def test_train_starts_after_warm_up_on_a_session() -> None:
    folds = make_folds(table_of([10] * 17), FoldsConfig(count=2), warmup_bars=3)
    assert ranges(folds) == [(10, 90, 100, 120), (10, 130, 140, 160)]


def test_the_purge_covers_the_look_back() -> None:
    """Eleven bars of look-back need two sessions of ten, although the config asks for one."""
    folds = make_folds(table_of([10] * 16), FoldsConfig(count=2, purge=1, embargo=1), look_back=11)
    assert ranges(folds) == [(0, 80, 100, 110), (0, 120, 140, 150)]


def test_embargo_is_counted_from_the_end_of_validation() -> None:
    """timeseriescv #8 counted it from a wrong index: here the next stretch, and the holdout, start after it."""
    table = table_of([10] * 20)
    config = FoldsConfig(count=2, purge=0, embargo=3)
    visible, holdout = split_holdout(table, config)
    first, second = make_folds(visible, config)
    assert second.validation.start - first.validation.end == 30
    assert holdout.start - second.validation.end == 30


def test_holdout_is_the_last_share_of_the_sessions() -> None:
    table = table_of([10, 20, 30, 40, 50, 60])
    visible, holdout = split_holdout(table, FoldsConfig(holdout=0.3))
    assert holdout == Range(100, 210)
    assert len(visible) == 100
    assert visible.session_N[-1] == 3
    assert split_holdout(table, FoldsConfig(holdout=0.0))[1] == Range(210, 210)


def test_a_fifth_of_ten_sessions_is_two_whatever_the_rounding() -> None:
    assert holdout_start(np.arange(10), FoldsConfig(holdout=0.2)) == 8
    assert holdout_start(np.arange(10), FoldsConfig(holdout=0.3)) == 7
    assert holdout_start(np.arange(10), FoldsConfig(holdout=0.21)) == 7


def test_blocks_cut_through_a_single_session() -> None:
    config = FoldsConfig(unit="block", block_bars=10, count=2, holdout=0.2)
    visible, holdout = split_holdout(table_of([200]), config)
    assert holdout == Range(160, 200)
    assert ranges(make_folds(visible, config)) == [(0, 80, 90, 110), (0, 120, 130, 150)]


def test_a_single_session_has_no_session_to_hold_out() -> None:
    with pytest.raises(UserError, match=r"holdout out of 1 sessions leaves nothing to train on.*folds.unit = 'block'"):
        split_holdout(table_of([200]), FoldsConfig())


def test_too_few_sessions_says_how_many_are_needed() -> None:
    """Three folds of purge 1, validation 1, embargo 1 are 9 sessions, and as many train first: 18."""
    with pytest.raises(UserError, match=r"17 usable sessions .* are too few for 3 folds .* at least 18 sessions"):
        make_folds(table_of([10] * 17), FoldsConfig())
    assert len(make_folds(table_of([10] * 18), FoldsConfig())) == 3


def test_shares_are_taken_without_rounding_dust() -> None:
    """(1 - 0.8) x 5 is a hair below one in binary; it is one stretch all the same."""
    folds = make_folds(table_of([10] * 5), FoldsConfig(count=1, first_train=0.8, purge=0, embargo=0))
    assert ranges(folds) == [(0, 40, 40, 50)]


def test_warm_up_longer_than_the_data_is_said() -> None:
    with pytest.raises(UserError, match="20 visible bars end before features have warmed up: 128 bars"):
        make_folds(table_of([10, 10]), FoldsConfig(), warmup_bars=128)


configs = st.builds(
    FoldsConfig,
    scheme=st.sampled_from(["expanding", "rolling"]),
    count=st.integers(1, 4),
    unit=st.sampled_from(["session", "block"]),
    block_bars=st.integers(1, 9),
    first_train=st.floats(0.05, 0.8),
    purge=st.integers(0, 2),
    embargo=st.integers(0, 2),
    holdout=st.floats(0.0, 0.6),
)
session_lengths = st.lists(st.integers(1, 12), min_size=1, max_size=80)
long_enough = st.lists(st.integers(4, 12), min_size=40, max_size=90)
many = settings(max_examples=100, deadline=None)


@settings(many, suppress_health_check=[HealthCheck.filter_too_much])
@given(config=configs, sessions=long_enough, warmup=st.integers(0, 30), look_back=st.integers(0, 12))
def test_folds_walk_forward(config: FoldsConfig, sessions: list[int], warmup: int, look_back: int) -> None:
    """mlfinlab #295 let train events reach into validation: here the purge keeps every train bar away from it."""
    table = table_of(sessions)
    try:
        visible, holdout = split_holdout(table, config)
        folds = make_folds(visible, config, warmup, look_back)
    except UserError:
        assume(False)
    edges = units(visible.session_N, config)
    assert len(folds) == config.count
    for fold in folds:
        assert {*fold.train, *fold.validation} <= set(edges)
        assert warmup <= fold.train.start < fold.train.end <= fold.validation.start < fold.validation.end
        assert fold.validation.start - fold.train.end >= look_back
        assert between(edges, fold.train.end, fold.validation.start) >= config.purge
        assert between(edges, fold.validation.end, len(visible)) >= config.embargo
        assert fold.validation.end <= len(visible) == holdout.start
    for before, after in pairwise(folds):
        assert before.train.end < after.train.end
        assert between(edges, before.validation.end, after.validation.start) >= config.embargo + config.purge
        if config.scheme == "expanding":
            assert after.train.start == before.train.start
        else:
            assert between(edges, *before.train) == between(edges, *after.train)


@many
@given(config=configs, sessions=session_lengths, factor=st.floats(0.1, 10.0))
def test_the_holdout_is_never_touched(config: FoldsConfig, sessions: list[int], factor: float) -> None:
    """What stands in the holdout changes neither the visible rows nor the folds."""
    table = table_of(sessions)
    try:
        visible, holdout = split_holdout(table, config)
    except UserError:
        assume(False)
    close_N = table.close_N.copy()
    close_N[holdout.start :] *= factor
    again, _ = split_holdout(replace(table, close_N=close_N), config)
    np.testing.assert_array_equal(visible.close_N, again.close_N)
    assert visible.close_N.tolist() == table.close_N[: holdout.start].tolist()
    assert holdout.end == len(table)
    assert attempt(visible, config) == attempt(again, config)


@many
@given(config=configs, count=st.integers(1, 90))
def test_the_number_of_sessions_asked_for_is_the_smallest_that_does(config: FoldsConfig, count: int) -> None:
    config = config.model_copy(update={"unit": "session"})
    try:
        make_folds(table_of([4] * count), config)
    except UserError as error:
        needed = int(re.findall(r"at least (\d+) sessions", str(error))[0])
        assert needed > count
        assert len(make_folds(table_of([4] * needed), config)) == config.count
        with pytest.raises(UserError):
            make_folds(table_of([4] * (needed - 1)), config)


def attempt(table: BarTable, config: FoldsConfig) -> Any:
    try:
        return make_folds(table, config)
    except UserError as error:
        return str(error)


def units(session_N: Ints, config: FoldsConfig) -> list[int]:
    size = session_N.size
    if config.unit == "block":
        return [*range(0, size, config.block_bars), size]
    return [index for index in range(size) if index == 0 or session_N[index] != session_N[index - 1]] + [size]


def between(edges: list[int], start: int, end: int) -> int:
    """Whole units from bar ``start`` to bar ``end``."""
    return edges.index(end) - edges.index(start)
