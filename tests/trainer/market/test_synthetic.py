"""The embedded market: what is planted is there, nothing else is."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.market.bars_table import BarTable, Floats, columns
from trainer.market.synthetic import SyntheticMarket, generate, regime_volatilities
from trainer.market.synthetic_config import PRESETS, PresetName, SyntheticConfig

EASY = SyntheticConfig(sessions=800)
FAIR = SyntheticConfig(preset="none", sessions=800)


def standard_moves(market: SyntheticMarket) -> Floats:
    """Open-to-close return of each bar over its volatility."""
    table = market.table
    return (table.close_N - table.open_N)[1:] / table.close_N[:-1] / market.volatility_N[1:]


def same_prices(one: BarTable, other: BarTable) -> bool:
    names = ("open_N", "high_N", "low_N", "close_N", "spread_N", "volume_N")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def test_the_same_config_gives_the_same_bits_and_another_seed_others() -> None:
    config = SyntheticConfig(sessions=3, seed=7)
    first, second = columns(generate(config).table), columns(generate(config).table)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    other = generate(SyntheticConfig(sessions=3, seed=8)).table
    assert not np.array_equal(first["close_N"], other.close_N)


def test_more_sessions_only_add_to_the_end() -> None:
    short, long = (columns(generate(SyntheticConfig(sessions=count)).table) for count in (3, 5))
    assert all(np.array_equal(short[name], long[name][: 3 * 128]) for name in short)


def test_presets_pin_the_planted_numbers_and_given_numbers_win() -> None:
    assert SyntheticConfig(preset="none").planted == PRESETS["none"]
    assert PRESETS["none"].signal == 0.0
    config = SyntheticConfig(preset="hard", signal=0.0, sessions=9)
    assert (config.planted.signal, config.planted.sessions) == (0.0, 9)
    assert config.planted.phi == PRESETS["hard"].phi
    assert SyntheticConfig(phi=0.5).half_life == pytest.approx(1.0)


def test_easy_costs_a_quarter_of_the_alpha_a_side() -> None:
    commission = 0.09e-4 / 10e-4  # 0.09 bps over a bar volatility of 10 bps
    cost = {name: (planted.half_spread + commission, planted.signal) for name, planted in PRESETS.items()}
    shares = {name: side / signal for name, (side, signal) in cost.items() if signal > 0.0}
    assert shares == pytest.approx({"easy": 0.25, "hard": 0.5, "barely": 0.7})


@pytest.mark.parametrize(
    ("field", "value"), [("signal", -0.1), ("phi", 1.0), ("flow_noise", 0.0), ("sessions", 0), ("tail_degrees", 2.0)]
)
def test_numbers_out_of_bounds_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValidationError, match=field):
        SyntheticConfig.model_validate({field: value})


def test_a_session_longer_than_a_day_is_refused() -> None:
    with pytest.raises(ValidationError, match="longer than a day"):
        SyntheticConfig(bars_per_session=1440, bar_seconds=61)


def test_sessions_are_weekdays_of_equal_bars_labelled_by_their_end() -> None:
    table = generate(SyntheticConfig(sessions=7, bars_per_session=10, bar_seconds=60)).table
    time_N = table.time_N.astype("datetime64[ns]")
    assert str(time_N[0]) == "2015-01-05T00:01:00.000000000"
    assert np.bincount(table.session_N).tolist() == [10] * 7
    assert np.is_busday(time_N.astype("datetime64[D]")).all()
    assert time_N[50] - time_N[49] == np.timedelta64(3 * 24 * 60 - 9, "m")  # Friday to Monday


def test_alpha_is_a_stationary_autoregression() -> None:
    alpha_N = generate(SyntheticConfig(sessions=4000)).alpha_N
    assert np.std(alpha_N) == pytest.approx(1.0, abs=0.02)
    for lag in (1, 10):
        assert np.corrcoef(alpha_N[lag:], alpha_N[:-lag])[0, 1] == pytest.approx(0.97**lag, abs=0.02)


def test_alpha_moves_the_next_bar_from_its_open_and_fades_by_phi() -> None:
    market = generate(SyntheticConfig(sessions=8000, phi=0.5))
    moves_N = standard_moves(market)
    slopes = [np.mean(market.alpha_N[: -lag or None] * moves_N[lag - 1 :]) for lag in (1, 2, 3)]
    assert slopes == pytest.approx([0.12, 0.06, 0.03], abs=0.005)  # standard error 0.001
    table = market.table
    gap_N = (table.open_N[1:] / table.close_N[:-1] - 1.0) / market.volatility_N[1:]
    within_N = np.diff(table.session_N) == 0
    assert abs(np.mean((market.alpha_N[:-1] * gap_N)[within_N])) < 0.001
    assert np.std(gap_N[within_N]) == pytest.approx(np.sqrt(0.02), abs=0.005)
    assert np.std(gap_N[~within_N]) == pytest.approx(4.0, abs=0.2)


def test_flow_columns_show_the_alpha_with_their_own_noise() -> None:
    market = generate(SyntheticConfig(sessions=800, flow_noise=2.0, flows=2))
    assert list(market.table.extra) == ["flow_1", "flow_2"]
    noise_2N = np.stack(list(market.table.extra.values())) - market.alpha_N
    assert np.std(noise_2N, axis=1) == pytest.approx([2.0, 2.0], rel=0.02)
    assert abs(np.corrcoef(noise_2N[0], noise_2N[1])[0, 1]) < 0.02


def test_without_signal_the_price_does_not_know_of_the_alpha_or_its_flows() -> None:
    changes: list[dict[str, float]] = [{}, {"phi": 0.3}, {"flow_noise": 4.0}, {"flows": 1}]
    markets = [generate(FAIR.model_copy(update=change)) for change in changes]
    for one, other in pairwise(markets):
        assert not np.array_equal(one.table.extra["flow_1"], other.table.extra["flow_1"])
        assert same_prices(one.table, other.table)
    assert not same_prices(markets[0].table, generate(EASY).table)


def known_at_close(market: SyntheticMarket) -> Floats:
    """Standardised columns that an agent could regress the next return on, ``[N, columns]``."""
    table = market.table
    moves_N = np.concatenate([np.zeros(1), standard_moves(market)])
    wick_N = (table.high_N + table.low_N - table.open_N - table.close_N) / table.close_N / market.volatility_N
    sided = [] if table.buy_volume_N is None else [table.buy_volume_N / table.volume_N]
    size_N = (table.high_N - table.low_N) / table.close_N
    known = [*table.extra.values(), moves_N, np.roll(moves_N, 1), wick_N, np.log(table.volume_N), size_N, *sided]
    known_NK = np.stack([*known, table.spread_N / table.close_N], axis=1)
    standard_NK: Floats = (known_NK - known_NK.mean(0)) / known_NK.std(0)
    return standard_NK


@pytest.mark.parametrize(("config", "predictable"), [(FAIR, False), (EASY, True)])
def test_next_return_is_predictable_exactly_with_a_signal(config: SyntheticConfig, predictable: bool) -> None:
    market = generate(config)
    next_N = standard_moves(market)
    z_K = known_at_close(market)[:-1].T @ next_N / np.sqrt(len(next_N))  # standard normal for a martingale
    assert bool(np.max(np.abs(z_K)) > 10.0) is predictable
    if not predictable:
        assert np.max(np.abs(z_K)) < 4.0
        assert abs(np.mean(next_N)) * np.sqrt(len(next_N)) < 4.0


@pytest.mark.parametrize("side", [1, -1])
def test_an_order_resting_in_the_bar_is_a_fair_bet_without_signal(side: int) -> None:
    """Filled where the bar first touches its level: by optional stopping the rest of the bar is worth nothing."""
    market = generate(FAIR)
    table = market.table
    level_N = table.open_N * (1.0 - side * 0.5 * market.volatility_N)
    filled_N = table.low_N <= level_N if side > 0 else table.high_N >= level_N
    profit_N = np.where(filled_N, side * (table.close_N - level_N), 0.0) / (table.open_N * market.volatility_N)
    assert 0.4 < np.mean(filled_N) < 0.8
    assert abs(np.mean(profit_N)) < 4.0 * np.std(profit_N) / np.sqrt(len(profit_N))


def test_volatility_has_two_regimes_and_the_configured_mean_square() -> None:
    calm, wild = regime_volatilities(EASY)
    assert wild == pytest.approx(2.0 * calm)
    assert np.sqrt((calm**2 + wild**2) / 2.0) == pytest.approx(10e-4)
    market = generate(SyntheticConfig(sessions=4000, regime_bars=50.0))
    assert np.mean(market.wild_N) == pytest.approx(0.5, abs=0.03)
    assert np.mean(np.diff(market.wild_N) != 0) == pytest.approx(1 / 50, rel=0.05)
    returns_N = (market.table.close_N - market.table.open_N) / market.table.open_N
    assert np.std(returns_N[market.wild_N == 1]) / np.std(returns_N[market.wild_N == 0]) == pytest.approx(2.0, abs=0.1)


def test_tails_are_fat_and_of_unit_variance() -> None:
    moves_N = standard_moves(generate(SyntheticConfig(preset="none", sessions=2000, open_gap=0.0)))
    assert np.std(moves_N) == pytest.approx(1.0, abs=0.02)
    assert np.mean(moves_N**4) > 5.0  # a normal's is 3
    thin_N = standard_moves(generate(SyntheticConfig(preset="none", sessions=2000, tail_degrees=1e6, open_gap=0.0)))
    assert np.mean(thin_N**4) == pytest.approx(3.0, abs=0.1)


def test_spread_follows_the_volatility() -> None:
    market = generate(SyntheticConfig(sessions=5, half_spread=0.05))
    np.testing.assert_allclose(market.table.spread_N, 0.1 * market.volatility_N * market.table.close_N, rtol=1e-12)
    assert np.all(generate(SyntheticConfig(sessions=5, half_spread=0.0)).table.spread_N == 0.0)


@pytest.mark.parametrize("preset", ["easy", "none"])
def test_the_leak_shows_the_next_return_and_is_off_by_default(preset: PresetName) -> None:
    leaking = generate(SyntheticConfig(preset=preset, sessions=50, leak=True))
    honest = generate(SyntheticConfig(preset=preset, sessions=50))
    moves_N = standard_moves(leaking)
    assert np.corrcoef(leaking.table.extra["flow_1"][:-1], moves_N)[0, 1] == pytest.approx(1.0)
    assert abs(np.corrcoef(honest.table.extra["flow_1"][:-1], moves_N)[0, 1]) < 0.2
    assert np.array_equal(leaking.table.extra["flow_2"], honest.table.extra["flow_2"])
    assert same_prices(leaking.table, honest.table)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    preset=st.sampled_from(sorted(PRESETS)),
    bars=st.integers(2, 40),
    tail=st.floats(2.1, 50.0),
    gap=st.floats(0.0, 0.9),
    volatility=st.floats(0.1, 100.0),
)
def test_every_market_is_a_valid_table(
    seed: int, preset: PresetName, bars: int, tail: float, gap: float, volatility: float
) -> None:
    config = SyntheticConfig(
        preset=preset,
        seed=seed,
        sessions=5,
        bars_per_session=bars,
        tail_degrees=tail,
        open_gap=gap,
        volatility=volatility,
    )
    table = generate(config).table
    table.validate("synthetic")
    assert table.buy_volume_N is not None
    assert table.sell_volume_N is not None
    assert np.all((table.buy_volume_N >= 0.0) & (table.sell_volume_N >= 0.0))
    assert np.array_equal(table.buy_volume_N + table.sell_volume_N, table.volume_N)
