"""The oracles: the programme against brute force, the filter against theory, their Sharpe through ``env_step``."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from trainer.env.actions import Direction, exposure
from trainer.env.config import EnvConfig
from trainer.env.observe import Normaliser
from trainer.env.state import EnvState, make_params
from trainer.errors import UserError
from trainer.evaluation.backtest import make_slots, paths, rollout, session_slots
from trainer.evaluation.metrics import BacktestMetrics, backtest_metrics
from trainer.evaluation.oracle import (
    HOLD,
    POSITIONS,
    Objective,
    Sees,
    autoregression_grid,
    filtered_alpha,
    oracle_actions,
    reachable,
    sign_actions,
    solve,
)
from trainer.market.bars_table import Floats, Ints
from trainer.market.calendar import bars_left, flat_bars
from trainer.market.instrument import load_instrument
from trainer.market.market import Market, MirrorView
from trainer.market.synthetic import SyntheticMarket, generate
from trainer.market.synthetic_config import PresetName, SyntheticConfig

INSTRUMENT = load_instrument("synthetic")
COMMISSION = INSTRUMENT.commission_bps * 1e-4
PLAIN = EnvConfig(kelly_floor=1.0, kelly_minimum=1.0)  # the cap is always all of max_position


def on_device(market: SyntheticMarket) -> Market:
    """The bars as tensors, with one constant feature: the actions are given."""
    table = market.table
    bars = len(table)
    return Market(
        time_N=torch.from_numpy(table.time_N),
        open_N=torch.from_numpy(table.open_N),
        high_N=torch.from_numpy(table.high_N),
        low_N=torch.from_numpy(table.low_N),
        close_N=torch.from_numpy(table.close_N),
        spread_N=torch.from_numpy(table.spread_N),
        funding_N=torch.from_numpy(table.funding_N),
        features_NF=torch.zeros(bars, 1),
        session_N=torch.from_numpy(table.session_N),
        bars_left_N=torch.from_numpy(bars_left(table.session_N)),
        flat_N=torch.from_numpy(flat_bars(table, allow_overnight=False, max_gap_hours=INSTRUMENT.max_gap_hours)),
        mirror=MirrorView(torch.ones(1), torch.zeros(1), torch.zeros(1, dtype=torch.int64)),
    )


def run(market: SyntheticMarket, config: EnvConfig, actions: dict[str, Ints]) -> dict[str, BacktestMetrics]:
    """Every strategy is a lane; every session a slot of the same rollout."""
    lanes = len(actions)
    reward_unit_L = torch.full((lanes,), 1000.0, dtype=torch.float64)
    params = make_params([config] * lanes, INSTRUMENT, reward_unit_L, torch.device("cpu"))
    table = market.table
    slots = session_slots(table.session_N, (0, len(table)))
    action_LN4 = torch.from_numpy(np.stack(list(actions.values())))
    lane_L1 = torch.arange(lanes)[:, None]

    def follow(_step: int, state: EnvState, _observe: object) -> torch.Tensor:
        return action_LN4[lane_L1, state.bar_LE]

    steps = slots[0][1] - slots[0][0] - 1
    empty = Normaliser(torch.zeros(lanes, 1), torch.ones(lanes, 1), torch.ones(lanes))
    made = rollout(
        params,
        on_device(market),
        empty,
        make_slots([slots] * lanes, len(slots), torch.device("cpu")),
        steps=steps,
        window=1,
        policy=follow,
    )
    evaluated = [
        backtest_metrics(path, sessions_per_year=INSTRUMENT.sessions_per_year, min_trades=0)
        for path in paths(params, table.session_N, made)
    ]
    return dict(zip(actions, evaluated, strict=True))


def oracles(config: SyntheticConfig, market: SyntheticMarket, objective: Objective) -> dict[str, Ints]:
    views: tuple[Sees, ...] = ("latent", "filtered")
    return {
        sees: oracle_actions(config, market, commission_rate=COMMISSION, sees=sees, objective=objective)
        for sees in views
    }


def idle(market: SyntheticMarket) -> Ints:
    return np.tile(HOLD, (len(market.table), 1))


@pytest.mark.parametrize("preset", ["easy", "hard"])
def test_latent_beats_filtered_beats_the_sign_rule_beats_flat(preset: PresetName) -> None:
    config = SyntheticConfig(preset=preset, sessions=400)
    market = generate(config)
    rules = {"sign": sign_actions(market), "flat": idle(market)}
    found = run(market, PLAIN, {**oracles(config, market, "sharpe"), **rules})
    sharpes = [found[name].sharpe for name in ("latent", "filtered", "sign", "flat")]
    assert sharpes == sorted(sharpes, reverse=True)
    assert found["filtered"].sharpe > 1.1 * found["sign"].sharpe > 0.0
    assert found["flat"].sharpe == 0.0


@pytest.mark.parametrize("preset", ["easy", "hard"])
def test_the_oracles_lead_under_the_kelly_cap_too(preset: PresetName) -> None:
    """The cap moves with each episode's round trips, which the programme does not model: a few per cent of slack."""
    config = SyntheticConfig(preset=preset, sessions=400)
    market = generate(config)
    found = run(market, EnvConfig(), {**oracles(config, market, "sharpe"), "sign": sign_actions(market)})
    assert found["latent"].sharpe > 0.97 * found["filtered"].sharpe
    assert found["filtered"].sharpe > 1.1 * found["sign"].sharpe


def test_the_profit_objective_earns_more_and_the_sharpe_objective_steadier() -> None:
    config = SyntheticConfig(preset="hard", sessions=400)
    market = generate(config)
    steady = run(market, PLAIN, oracles(config, market, "sharpe"))
    greedy = run(market, PLAIN, oracles(config, market, "profit"))
    for sees in ("latent", "filtered"):
        assert greedy[sees].profit > steady[sees].profit
        assert steady[sees].sharpe > greedy[sees].sharpe


@pytest.mark.parametrize("objective", ["profit", "sharpe"])
def test_without_signal_the_best_is_not_to_trade(objective: Objective) -> None:
    config = SyntheticConfig(preset="none", sessions=20)
    market = generate(config)
    for action_N4 in oracles(config, market, objective).values():
        assert np.array_equal(action_N4, idle(market))


def test_the_expected_value_is_what_the_environment_pays() -> None:
    """Without costs the greedy latent oracle always holds the alpha's sign: E = signal sqrt(2 / pi) v a bar."""
    config = SyntheticConfig(half_spread=0.0, sessions=2000, regime_ratio=1.0)
    market = generate(config)
    action_N4 = oracle_actions(config, market, commission_rate=0.0, sees="latent", objective="profit")
    trading_N = bars_left(market.table.session_N) > 0
    agrees_N = (action_N4[:, 0] == Direction.LONG) == (market.alpha_N > 0.0)
    moving_N = (action_N4[:, 0] != Direction.HOLD) & trading_N & (np.abs(market.alpha_N) > 0.1)
    assert np.all(agrees_N[moving_N])
    held_N = np.zeros(len(action_N4))
    position = 0.0
    for bar, target in enumerate(exposure(torch.from_numpy(action_N4)).tolist()):
        position = position if action_N4[bar, 0] == Direction.HOLD else target
        held_N[bar] = position if trading_N[bar] else 0.0
        position = position if trading_N[bar] else 0.0
    earned = 0.12 * np.mean((held_N * market.alpha_N)[trading_N])
    assert earned == pytest.approx(0.12 * np.sqrt(2.0 / np.pi), rel=0.03)


def test_actions_are_market_orders_and_hold_on_a_sessions_last_bar() -> None:
    config = SyntheticConfig(sessions=10)
    market = generate(config)
    last_N = bars_left(market.table.session_N) == 0
    for action_N4 in (*oracles(config, market, "sharpe").values(), sign_actions(market)):
        assert action_N4.shape == (1280, 4)
        assert np.all(action_N4[:, 2] == 0)
        assert np.all(action_N4[last_N] == HOLD)


def test_the_filtered_oracle_sees_nothing_of_what_comes_later() -> None:
    config = SyntheticConfig(sessions=6)
    whole, part = generate(config), generate(config.model_copy(update={"sessions": 4}))
    later = oracle_actions(config, whole, commission_rate=COMMISSION, sees="filtered")
    sooner = oracle_actions(config, part, commission_rate=COMMISSION, sees="filtered")
    assert np.array_equal(later[: 4 * 128], sooner)


def test_a_leaking_market_has_no_oracle() -> None:
    config = SyntheticConfig(sessions=2, leak=True)
    with pytest.raises(UserError, match="leak"):
        oracle_actions(config, generate(config), commission_rate=COMMISSION, sees="filtered")


@pytest.mark.parametrize(("signal", "flow_noise"), [(0.3, 1.5), (0.5, 20.0)], ids=["flows", "returns"])
def test_filter_error_is_the_riccati_equations_and_estimates_are_unbiased(signal: float, flow_noise: float) -> None:
    config = SyntheticConfig(signal=signal, flow_noise=flow_noise, phi=0.95, sessions=800)
    market = generate(config)
    mean_N, variance = filtered_alpha(config, market)
    error_N = (mean_N - market.alpha_N)[100:]
    assert np.mean(error_N**2) == pytest.approx(variance, rel=0.03)
    assert abs(np.mean(error_N * mean_N[100:])) < 0.01  # the error is orthogonal to the estimate
    assert np.mean(mean_N**2) == pytest.approx(1.0 - variance, rel=0.05)


def test_filter_by_hand() -> None:
    """One flow of noise 1, no signal: means 1/2 x_0, then prediction 0.5 m with variance 0.25 / 2 + 0.75 = 0.875."""
    config = SyntheticConfig(signal=0.0, flows=1, flow_noise=1.0, phi=0.5, sessions=1, bars_per_session=2)
    market = generate(config)
    first, second = market.table.extra["flow_1"]
    mean_N, variance = filtered_alpha(config, market)
    gain = 0.875 / 1.875
    assert mean_N == pytest.approx([first / 2.0, first / 4.0 + gain * (second - first / 4.0)])
    assert variance == pytest.approx(0.875 * (1.0 - gain))


def test_returns_add_to_what_the_flows_tell() -> None:
    config = SyntheticConfig(signal=0.5, flow_noise=5.0, sessions=50)
    deaf = config.model_copy(update={"signal": 0.0})
    assert filtered_alpha(config, generate(config))[1] < 0.8 * filtered_alpha(deaf, generate(deaf))[1]


def test_programme_equals_brute_force_over_all_policies() -> None:
    """Two states, two positions, three decisions: every one of the 2^12 deterministic policies, valued exactly."""
    transition_SS = np.array([[0.8, 0.2], [0.4, 0.6]])
    gain_SP = np.array([[0.0, 1.0], [0.0, -0.7]])
    cost_S = np.array([0.3, 0.5])
    positions_P = np.array([0.0, 1.0])
    policy, value_SP = solve(transition_SS, gain_SP, cost_S, positions_P, np.ones((2, 2), dtype=bool), bars=3)

    def value_of(choices: Ints) -> Floats:
        value: Floats = -cost_S[:, None] * positions_P
        for left in range(1, 4):
            ahead = gain_SP + transition_SS @ value
            rows = [
                [ahead[s, choices[left - 1, s, p]] - cost_S[s] * abs(choices[left - 1, s, p] - p) for p in range(2)]
                for s in range(2)
            ]
            value = np.array(rows)
        return value

    values = [value_of(np.array(flat).reshape(3, 2, 2)) for flat in product(range(2), repeat=12)]
    np.testing.assert_allclose(value_SP, np.max(values, axis=0), rtol=1e-12)
    np.testing.assert_allclose(value_of(policy[1:]), value_SP, rtol=1e-12)


def test_a_cost_above_any_gain_forbids_the_trade() -> None:
    gain_SP = np.array([[0.0, 1.0]])
    for cost, wanted in ((0.99, 1), (1.01, 0)):  # two bars earn 2, in and out cost twice
        policy, value_SP = solve(
            np.ones((1, 1)), gain_SP, np.array([cost]), np.array([0.0, 1.0]), np.ones((2, 2), dtype=bool), bars=2
        )
        assert policy[2, 0, 0] == wanted
        assert value_SP[0, 0] == pytest.approx(max(2.0 - 2.0 * cost, 0.0))


def test_where_nothing_is_gained_nothing_is_traded_though_it_be_free() -> None:
    config = SyntheticConfig(preset="none", half_spread=0.0, sessions=3)
    market = generate(config)
    assert np.array_equal(
        oracle_actions(config, market, commission_rate=0.0, sees="latent", objective="profit"), idle(market)
    )


def test_reachable_positions_are_those_of_one_action() -> None:
    reach_PP, action_PP2 = reachable()
    index = {position: place for place, position in enumerate(POSITIONS)}
    assert [float(p) for p in POSITIONS[reach_PP[index[1.0]]]] == [-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0]
    assert [float(p) for p in POSITIONS[reach_PP[index[0.0]]]] == [-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0]
    assert reach_PP.diagonal().all()
    assert action_PP2[index[0.5], index[0.5]].tolist() == [Direction.HOLD, 0]
    assert action_PP2[index[1.0], index[0.75]].tolist() == [Direction.FLAT, 0]
    assert action_PP2[index[-1.0], index[0.25]].tolist() == [Direction.LONG, 0]


@pytest.mark.parametrize(("phi", "deviation"), [(0.0, 1.0), (0.9, 0.5), (0.97, 1.0), (0.995, 1.0)])
def test_the_grid_is_a_chain_with_the_autoregressions_moments(phi: float, deviation: float) -> None:
    grid_Z, transition_ZZ = autoregression_grid(phi, deviation)
    np.testing.assert_allclose(transition_ZZ.sum(axis=1), 1.0, rtol=1e-12)
    middle = np.abs(grid_Z) < 2.0 * deviation
    mean_Z = transition_ZZ @ grid_Z
    np.testing.assert_allclose(mean_Z[middle], phi * grid_Z[middle], atol=1e-3 * deviation)
    variance_Z = transition_ZZ @ grid_Z**2 - mean_Z**2
    np.testing.assert_allclose(variance_Z[middle], (1.0 - phi**2) * deviation**2, rtol=0.02)
