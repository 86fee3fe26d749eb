"""Properties that hold for every registered feature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.market.bars_table import BarTable, columns
from trainer.market.features.compute import FeatureTable, chosen_features, compute_features, mirror_view
from trainer.market.features.config import FAMILIES, FeatureConfig
from trainer.market.features.registry import REGISTRY
from trainer.market.market import Parity
from trainer.market.microstructure import MICROSTRUCTURE

ALL = FeatureConfig()
MakeTable = Callable[..., BarTable]
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_about_forty_features_of_which_seventeen_or_more_are_directional() -> None:
    parities = [each.spec.parity for each in REGISTRY.values()]
    assert 40 <= len(parities) <= 60
    assert parities.count(Parity.ODD) >= 17
    assert all(each.spec.doc and each.unit for each in REGISTRY.values())
    assert {each.family for each in REGISTRY.values()} == set(FAMILIES)


@few
@given(seed=st.integers(0, 2**31), cut=st.integers(1, 299), longer=st.integers(0, 200))
def test_no_feature_looks_ahead(make_random: MakeTable, seed: int, cut: int, longer: int) -> None:
    """Bars after t are replaced, sessions, contracts and extra columns too, or cut off: earlier rows keep every bit."""
    table = make_random(seed, (70, 110, 5, 115), (0, 0, 1, 1))
    other = make_random(seed + 1, (40, 61, 33, 66 + 100 + longer), (0, 1, 2, 3))
    seen = compute_features(table, ALL)
    for tail in (other.rows(slice(cut, None)), other.rows(slice(0, 0))):
        changed = compute_features(_join(table.rows(slice(0, cut)), tail), ALL)
        for column, name in enumerate(seen.names):
            before, after = seen.values_NF[:cut, column], changed.values_NF[:cut, column]
            assert before.tobytes() == after.tobytes(), f"{name} changed when bars from {cut} on changed"


@few
@given(seed=st.integers(0, 2**31))
def test_each_feature_has_the_parity_it_declares(make_random: MakeTable, seed: int) -> None:
    table = make_random(seed, (70, 110, 5, 115), (0, 0, 1, 1))
    real, mirrored = compute_features(table, ALL), compute_features(_mirrored(table), ALL)
    view = mirror_view(real.specs)
    expected_NF = view.offset_F.numpy() + view.sign_F.numpy() * real.values_NF[:, view.partner_F.numpy()]
    warm = slice(real.warmup_bars, None)
    for column, name in enumerate(real.names):
        expected_N = expected_NF[warm, column]
        tolerance = 1e-6 * float(np.abs(expected_N).max())
        np.testing.assert_allclose(mirrored.values_NF[warm, column], expected_N, rtol=0.0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_each_feature_varies_and_has_a_sane_scale(make_random: MakeTable, name: str) -> None:
    table = compute_features(make_random(3, (200,) * 5), ALL)
    column_N = table.values_NF[table.warmup_bars :, table.names.index(name)]
    assert 1e-7 < column_N.std() < 100.0
    assert np.abs(column_N).max() < 1e4


def test_warm_up_rows_are_zero_and_counted(make_random: MakeTable) -> None:
    table = make_random(0, (200,))
    features = compute_features(table, ALL)
    assert features.warmup_bars == max(each.warmup for each in REGISTRY.values()) == 128
    for each in REGISTRY.values():
        assert not features.values_NF[: each.warmup, features.names.index(each.spec.name)].any()
    assert compute_features(table, FeatureConfig(families=("session",))).warmup_bars == 33


def test_warm_up_is_long_enough(make_random: MakeTable) -> None:
    """After its warm-up a feature hardly differs from one that saw 200 more bars: windows not at all, averages little.

    Exempt are those that remember sessions or payments, however long ago: they say so.
    """
    table = make_random(0, (200,) * 4)
    config = FeatureConfig(exclude=("overnight_gap", "session_left", "funding"))
    informed, fresh = compute_features(table, config), compute_features(table.rows(slice(200, None)), config)
    averages = {"macd_line", "macd_signal", "macd_histogram", "cusum", "rsi_14", "plus_di_14", "minus_di_14", "atr_14"}
    for each in chosen_features(config):
        column = informed.names.index(each.spec.name)
        long_N, short_N = informed.values_NF[200:, column], fresh.values_NF[:, column]
        error = np.abs(long_N - short_N)[each.warmup :].max() / long_N.std()
        assert error < (0.1 if each.spec.name in averages else 1e-5), each.spec.name


@pytest.mark.parametrize("size", [1, 2, 40])
def test_short_tables_are_defined(make_random: MakeTable, size: int) -> None:
    assert np.isfinite(compute_features(make_random(0, (size,)), ALL).values_NF).all()


def test_dead_markets_give_finite_values_at_rest(make_closes: MakeTable) -> None:
    """A price that stops after an outlier leaves no dust that a quotient would blow up."""
    closes = [100.0] * 150 + [250.0, 100.0] + [100.0] * 400
    features = compute_features(make_closes(closes, volume_N=np.zeros(552)), ALL)
    assert np.isfinite(features.values_NF).all()
    last = dict(zip(features.names, features.values_NF[-1], strict=True))
    for name in ("bollinger_position_20", "skewness_32", "return_32", "efficiency_16", "volume_zscore_64"):
        assert last[name] == 0.0, name
    assert last["stochastic_14"] == 50.0


def test_a_roll_is_not_a_return(make_random: MakeTable) -> None:
    """The second contract trades at twice the price: no feature can tell."""
    table = make_random(5, (150, 150), (0, 1))
    factor_N = np.where(table.contract_N == 1, 2.0, 1.0)
    prices = {name: getattr(table, name) * factor_N for name in ("open_N", "high_N", "low_N", "close_N", "spread_N")}
    _same(compute_features(table, ALL), compute_features(replace(table, **prices), ALL))


def test_a_roll_inside_a_session_is_not_a_return(make_random: MakeTable) -> None:
    table = replace(make_random(6, (300,)), contract=("A", "B"), contract_N=np.repeat([0, 1], [140, 160]))
    factor_N = np.where(table.contract_N == 1, 0.5, 1.0)
    prices = {name: getattr(table, name) * factor_N for name in ("open_N", "high_N", "low_N", "close_N", "spread_N")}
    _same(compute_features(table, ALL), compute_features(replace(table, **prices), ALL))


def test_the_night_is_in_no_feature_but_the_gap_itself(make_random: MakeTable) -> None:
    table = make_random(7, (150, 150))
    factor_N = np.where(table.session_N == 1, 0.75, 1.0)
    prices = {name: getattr(table, name) * factor_N for name in ("open_N", "high_N", "low_N", "close_N", "spread_N")}
    halved = replace(table, **prices)
    config = FeatureConfig(exclude=("overnight_gap",))
    _same(compute_features(table, config), compute_features(halved, config))
    with_gap = compute_features(halved, ALL)
    gap = np.log(halved.open_N[150] / halved.close_N[149])
    column_N = with_gap.values_NF[:, with_gap.names.index("overnight_gap")]
    np.testing.assert_allclose(column_N, np.repeat([0.0, gap], 150), rtol=1e-6)


def test_book_columns_are_always_there_and_zero_without_a_book(make_random: MakeTable) -> None:
    table = make_random(1, (60,))
    features = compute_features(table, FeatureConfig(families=()))
    book = [spec.name for spec in MICROSTRUCTURE]
    assert len(book) == 20
    assert features.names == (*book, "has_book", "flow_latent", "canary")
    assert not features.values_NF[:, :21].any()
    rng = np.random.default_rng(0)
    held_N = np.repeat([1.0, 0.0], 30)
    extra = {name: rng.standard_normal(60) for name in reversed(book)}
    with_book = replace(table, has_book=True, extra={**extra, "has_book": held_N})
    filled = compute_features(with_book, FeatureConfig(families=()))
    assert filled.names == (*book, "has_book")
    np.testing.assert_array_equal(filled.values_NF[:, 3], with_book.extra[book[3]].astype(np.float32))
    np.testing.assert_array_equal(filled.values_NF[:, 20], held_N)


def test_order_flow_columns_are_named(make_random: MakeTable) -> None:
    features = compute_features(make_random(1, (60,)), ALL)
    flow = {features.names[index] for index in features.order_flow}
    assert flow == {spec.name for spec in MICROSTRUCTURE} | {
        "trade_imbalance_1",
        "trade_imbalance_8",
        "trade_imbalance_32",
        "flow_latent",
    }


def test_columns_are_the_same_with_and_without_known_trade_sides(make_random: MakeTable) -> None:
    table = make_random(1, (60,))
    blind = compute_features(replace(table, buy_volume_N=None, sell_volume_N=None), ALL)
    assert blind.names == compute_features(table, ALL).names
    assert not blind.values_NF[:, blind.names.index("trade_imbalance_1")].any()


def test_mirror_view_maps_columns_by_parity(make_random: MakeTable) -> None:
    features = compute_features(make_random(1, (60,)), ALL)
    view = mirror_view(features.specs)
    at = features.names.index

    def row(name: str) -> list[float]:
        return [float(part[at(name)]) for part in (view.sign_F, view.offset_F, view.partner_F)]

    assert row("return_4") == [-1.0, 0.0, at("return_4")]
    assert row("rsi_14") == [-1.0, 100.0, at("rsi_14")]
    assert row("spread") == [1.0, 0.0, at("spread")]
    assert row("upper_wick") == [1.0, 0.0, at("lower_wick")]


def test_mistakes_in_the_config_are_named(make_random: MakeTable) -> None:
    with pytest.raises(UserError, match="no computed feature 'retrun_4'; nearest: return_4"):
        chosen_features(FeatureConfig(exclude=("retrun_4",)))
    with pytest.raises(UserError, match="'upper_wick' mirrors into 'lower_wick'"):
        chosen_features(FeatureConfig(exclude=("upper_wick",)))
    with pytest.raises(UserError, match="families names 'trend' twice"):
        chosen_features(FeatureConfig(families=("trend", "trend")))
    table = make_random(1, (60,))
    with pytest.raises(UserError, match="two features share one name"):
        compute_features(replace(table, extra={"return_4": np.zeros(60)}), ALL)


def test_a_value_that_is_not_finite_is_an_error_that_names_it(make_random: MakeTable) -> None:
    table = make_random(1, (60,))
    table.extra["canary"][7] = np.nan
    with pytest.raises(UserError, match="feature canary is not finite at bar 7"):
        compute_features(table, ALL)
    low_N = table.low_N.copy()
    low_N[3] = 0.0
    with pytest.raises(UserError, match="bar 3: low is not positive"):
        compute_features(replace(table, low_N=low_N), ALL)


def _same(one: FeatureTable, other: FeatureTable) -> None:
    for column, name in enumerate(one.names):
        np.testing.assert_allclose(
            one.values_NF[:, column], other.values_NF[:, column], rtol=1e-5, atol=1e-7, err_msg=name
        )


def _join(head: BarTable, tail: BarTable) -> BarTable:
    if len(tail) == 0:
        return head
    shift = {
        "session_N": tail.session_N - tail.session_N[0] + head.session_N[-1],
        "time_N": tail.time_N - tail.time_N[0] + head.time_N[-1] + 10**9,
    }
    tail = replace(tail, **shift)
    own: dict[str, Any] = {
        name: np.concatenate([column, columns(tail)[name]])
        for name, column in columns(head).items()
        if name not in head.extra
    }
    extra = {name: np.concatenate([column, tail.extra[name]]) for name, column in head.extra.items()}
    return replace(tail, **own, extra=extra)


def _mirrored(table: BarTable) -> BarTable:
    """Log prices reflected at the first open; sides, highs and lows, funding and signed columns follow."""
    reference = table.open_N[0] ** 2
    close_N = reference / table.close_N
    assert table.buy_volume_N is not None
    return replace(
        table,
        open_N=reference / table.open_N,
        high_N=reference / table.low_N,
        low_N=reference / table.high_N,
        close_N=close_N,
        spread_N=table.spread_N / table.close_N * close_N,
        funding_N=-table.funding_N,
        buy_volume_N=table.sell_volume_N,
        sell_volume_N=table.buy_volume_N,
        extra={name: -column for name, column in table.extra.items()},
    )
