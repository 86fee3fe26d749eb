"""S1, S8, S9: every term by hand; the terms sum to the reward; rewards reconcile with equity."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.env.builders import (
    FLAT,
    FREE,
    HOLD,
    LONG,
    SHORT,
    act,
    instrument,
    market_of,
    params_of,
    plain,
    random_actions,
    random_market,
    run,
    start,
)
from trainer.env.config import EnvConfig
from trainer.env.state import reward_unit


def test_profit_is_counted_in_reward_units() -> None:
    steps = run(params_of(plain(), unit=4.0), market_of([100, 100, 110, 110]), [act(LONG), act(HOLD)])
    assert [float(step.reward_LE) for step in steps] == [0.0, 2.5]


def test_short_profit_counts() -> None:
    steps = run(params_of(plain()), market_of([100, 100, 90, 90]), [act(SHORT), act(HOLD)])
    assert float(steps[1].reward_LE) == 10.0


def test_a_held_position_earns_from_close_to_fill_to_close() -> None:
    market = market_of([100, 100, 103, 103], open=[100, 100, 101, 103])
    steps = run(params_of(plain()), market, [act(LONG), act(SHORT)])
    assert float(steps[1].reward_LE) == (101 - 100) - (103 - 101)


@pytest.mark.parametrize(("weight", "expected"), [(0.0, 0.0), (1.0, -0.5), (3.0, -1.5)])
def test_transaction_term_is_weighted_cost(weight: float, expected: float) -> None:
    config = plain(transaction_cost_weight=weight)
    step = run(params_of(config), market_of([100.0] * 3, spread=1.0), [act(LONG)])[0]
    assert float(step.info.terms.profit_LE) == 0.0
    assert float(step.info.terms.transaction_LE) == expected
    assert float(step.info.change_LE) == -0.5  # the weight changes the lesson, not the money


def test_drawdown_term_grows_to_its_full_weight_and_no_further() -> None:
    """Peak 1,000. At 950 half of the full drawdown of 10 %; at 850 more than all of it."""
    config = plain(capital=1_000.0, drawdown_weight=0.2, drawdown_full=0.1, max_position=10.0)
    steps = run(params_of(config), market_of([100, 100, 95, 85, 85]), [act(LONG), act(HOLD), act(HOLD)])
    terms = [float(step.info.terms.drawdown_LE) for step in steps]
    assert terms == pytest.approx([0.0, -0.1, -0.2])


def test_drawdown_is_measured_from_the_highest_equity() -> None:
    config = plain(capital=1_000.0, drawdown_weight=1.0, drawdown_full=1.0, max_position=10.0)
    steps = run(params_of(config), market_of([100, 100, 150, 120, 120]), [act(LONG), act(HOLD), act(HOLD)])
    assert float(steps[-1].info.terms.drawdown_LE) == pytest.approx(-(1500 - 1200) / 1500)


@pytest.mark.parametrize(("bars", "intensity"), [(1, 7 / 8), (4, 0.5), (8, 0.0), (9, 0.0)])
def test_a_flip_costs_less_the_older_the_direction(bars: int, intensity: float) -> None:
    config = plain(churn_penalty_scale=0.4, churn_threshold_bars=8)
    actions = [act(LONG)] + [act(HOLD)] * (bars - 1) + [act(SHORT)]
    steps = run(params_of(config), market_of([100.0] * 14), actions)
    assert [float(step.info.terms.churn_LE) for step in steps[:-1]] == [0.0] * bars
    assert float(steps[-1].info.terms.churn_LE) == pytest.approx(-0.4 * intensity)
    assert float(steps[-1].state.position_LE) == -1.0  # paid for, never forbidden


def test_a_flip_through_flat_is_still_a_flip() -> None:
    config = plain(churn_penalty_scale=1.0, churn_threshold_bars=4)
    steps = run(params_of(config), market_of([100.0] * 6), [act(LONG), act(FLAT), act(SHORT)])
    assert [float(step.info.terms.churn_LE) for step in steps] == [0.0, 0.0, -0.5]


def test_closing_resizing_and_reentering_are_not_flips() -> None:
    config = plain(churn_penalty_scale=1.0, churn_threshold_bars=9)
    actions = [act(LONG), act(LONG, 0), act(FLAT), act(LONG), act(FLAT, 1)]
    steps = run(params_of(config), market_of([100.0] * 9), actions)
    assert sum(float(step.info.terms.churn_LE) for step in steps) == 0.0


def test_holding_costs_its_rate_on_the_share_held() -> None:
    config = plain(holding_cost_rate=1e-4, max_position=4.0)
    actions = [act(LONG), act(SHORT, 1), act(FLAT), act(HOLD)]
    steps = run(params_of(config), market_of([100.0] * 6), actions)
    assert [float(step.info.terms.holding_LE) for step in steps] == pytest.approx([-1e-4, -0.5e-4, 0.0, 0.0])


def test_reward_unit_is_the_typical_move_of_the_full_position() -> None:
    config = EnvConfig(reward_unit_bars=16.0, max_position=2.0)
    assert reward_unit(config, instrument(), 1.5) == 1.5 * 4 * 50 * 2


WEIGHTS = EnvConfig(drawdown_weight=0.3, churn_penalty_scale=0.2, holding_cost_rate=1e-3, transaction_cost_weight=1.5)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_terms_sum_to_the_reward(seed: int) -> None:
    market, actions = random_market(seed), random_actions(seed, 59)
    for step in run(params_of(WEIGHTS, unit=20.0), market, list(actions)):
        terms = step.info.terms
        parts = terms.profit_LE + terms.transaction_LE + terms.drawdown_LE + terms.churn_LE + terms.holding_LE
        assert torch.equal(parts, step.reward_LE)
        assert (terms.drawdown_LE <= 0).all()
        assert (terms.churn_LE <= 0).all()
        assert (terms.holding_LE <= 0).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), mirror=st.booleans(), late=st.integers(0, 1), lots=st.booleans())
def test_rewards_reconcile_with_equity(seed: int, mirror: bool, late: int, lots: bool) -> None:
    """Over random prices and every kind of order the rewards sum to the change of equity, to 1e-9 of a money unit."""
    fees = instrument(multiplier=5.0, commission_bps=1.0, tick=0.25)
    config = plain(max_position=3.0, latency_bars=late, whole_lots=lots)
    params = params_of(config, of=fees, unit=8.0)
    market, actions = random_market(seed), random_actions(seed + 1, 59)
    state = start(params, market, mirror=mirror)
    steps = run(params, market, list(actions), state)
    paid = sum(float(step.reward_LE) for step in steps) * 8.0
    assert paid == pytest.approx(float(steps[-1].state.equity_LE) - 100_000.0, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_equity_agrees_with_a_cash_ledger(seed: int) -> None:
    """A second bookkeeping: buy and sell with cash at the fill prices, mark what is held at the close."""
    params = params_of(plain(max_position=3.0), of=FREE)
    market, actions = random_market(seed, funding=False), random_actions(seed + 1, 59)
    cash, position = 100_000.0, 0.0
    for t, step in enumerate(run(params, market, list(actions))):
        quantity = float(step.info.quantity_LE)
        cash -= quantity * float(step.info.price_LE)
        position += quantity
        close = float(market.close_N[t + 1])
        if bool(market.flat_N[t + 1]):
            half = float(market.spread_N[t + 1]) / 2
            cash += position * close - abs(position) * half
            position = 0.0
        assert float(step.state.position_LE) == pytest.approx(position, abs=1e-12)
        assert float(step.state.equity_LE) == pytest.approx(cash + position * close, abs=1e-8)


def test_the_reward_of_ruin_is_the_loss() -> None:
    config = plain(capital=1_000.0, max_position=10.0, ruin_fraction=0.2)
    step = run(params_of(config), market_of([100, 100, 15, 15]), [act(LONG), act(HOLD)])[1]
    assert bool(step.terminated_LE)
    assert float(step.reward_LE) == -850.0
