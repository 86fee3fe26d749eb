"""S4, S5, S6: margin cap, then Kelly cap, then execution."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.env.builders import (
    FREE,
    LONG,
    MARKET,
    SHORT,
    act,
    instrument,
    market_of,
    params_of,
    plain,
    run,
    start,
)
from trainer.env.caps import cap_share, kelly_share, margin_share, safety
from trainer.env.config import EnvConfig
from trainer.env.state import EnvState
from trainer.errors import UserError


def f64(value: float) -> Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


def record(wins: float, losses: float, win_sum: float, loss_sum: float) -> EnvState:
    state = start(params_of(plain()), market_of([100.0] * 3))
    return replace(state, wins_LE=f64(wins), losses_LE=f64(losses), win_sum_LE=f64(win_sum), loss_sum_LE=f64(loss_sum))


@pytest.mark.parametrize(
    ("trades", "expected"),
    [
        (0, 0.5),
        # 4 wins of 3, 1 loss of 1, prior 2 + 2 of 1: p = 6/9, b = (14/6) / (3/3), kelly = 2/3 - (1/3) / (7/3) = 11/21
        (5, 0.5 * 11 / 21 + 0.5 * 0.5),
        # 8 wins of 3, 2 losses of 1: p = 10/14, b = (26/10) / (4/4), kelly = 5/7 - (2/7) / 2.6 = 55/91
        (10, 55 / 91),
        (20, 16 / 24 + 2 / 24 - (6 / 24) / ((50 / 18) / (6 / 6))),
    ],
)
def test_kelly_share_matures_with_trades(trades: int, expected: float) -> None:
    wins, losses = 0.8 * trades, 0.2 * trades
    params = params_of(EnvConfig(kelly_floor=0.5, kelly_prior_trades=2.0))
    assert float(kelly_share(params, record(wins, losses, 3 * wins, losses))) == pytest.approx(expected, abs=1e-12)


def test_balanced_priors_alone_see_no_edge() -> None:
    params = params_of(EnvConfig(kelly_minimum=0.0, kelly_maturity_trades=1.0))
    assert float(kelly_share(params, record(5, 5, 100.0, 100.0))) == pytest.approx(0.0, abs=1e-15)


def test_a_losing_record_keeps_the_minimum_so_that_trading_can_go_on() -> None:
    params = params_of(EnvConfig(kelly_minimum=0.1))
    assert float(kelly_share(params, record(0, 50, 0.0, 500.0))) == pytest.approx(0.1)


def test_the_cold_start_floor_is_config() -> None:
    for floor in (0.25, 0.5):
        assert float(kelly_share(params_of(EnvConfig(kelly_floor=floor)), record(0, 0, 0, 0))) == floor


@given(*[st.floats(0, 1e6) for _ in range(4)])
def test_kelly_share_stays_between_minimum_and_one(wins: float, losses: float, win_sum: float, loss_sum: float) -> None:
    params = params_of(EnvConfig(kelly_minimum=0.1))
    share = float(kelly_share(params, record(wins, losses, win_sum, loss_sum)))
    assert 0.1 <= share <= 1.0


@pytest.mark.parametrize(("health", "expected"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_health_scales_the_cap(health: float, expected: float) -> None:
    params = params_of(plain(max_position=8.0))
    params.health_L.fill_(health)
    assert float(safety(params)) == expected
    assert float(run(params, market_of([100.0] * 3), [act(LONG)])[0].state.position_LE) == 8 * expected


def test_margin_cap_by_hand() -> None:
    """10,000 of equity at 5 % margin carries a notional of 200,000: 0.8 of an ES contract at 5,000."""
    params = params_of(plain(capital=10_000.0), of=instrument())
    assert float(margin_share(params, f64(10_000.0), f64(5_000.0))) == pytest.approx(0.8, abs=1e-15)
    assert float(margin_share(params, f64(0.0), f64(5_000.0))) == 0.0
    assert float(margin_share(params, f64(50_000.0), f64(5_000.0))) == 1.0
    assert float(margin_share(params, f64(50_000.0), f64(float("nan")))) == 0.0


@pytest.mark.parametrize("direction", [LONG, SHORT])
def test_over_leverage_is_refused(direction: int) -> None:
    params = params_of(plain(capital=10_000.0, max_position=5.0), of=instrument())
    step = run(params, market_of([5_000.0] * 3), [act(direction)])[0]
    assert float(step.state.position_LE.abs()) == pytest.approx(0.8, abs=1e-12)


def test_kelly_takes_its_share_of_what_margin_left() -> None:
    """Margin allows 0.8, Kelly half of that: 0.4. In the other order Kelly's 0.5 would pass the margin cap uncut."""
    params = params_of(plain(capital=10_000.0, kelly_floor=0.5, kelly_minimum=0.0), of=instrument())
    market = market_of([5_000.0] * 3)
    assert float(cap_share(params, start(params, market), f64(5_000.0))) == pytest.approx(0.4, abs=1e-15)
    step = run(params, market, [act(LONG, 2, MARKET)])[0]
    assert float(step.info.quantity_LE) == pytest.approx(0.4, abs=1e-15)


def test_caps_act_before_execution_so_costs_are_those_of_the_capped_order() -> None:
    params = params_of(plain(max_position=4.0, kelly_floor=0.5, kelly_minimum=0.0), of=FREE)
    step = run(params, market_of([100.0] * 3, spread=1.0), [act(LONG)])[0]
    assert float(step.info.cost_LE) == 2.0 * 0.5


def test_whole_lots_round_toward_zero() -> None:
    config = plain(whole_lots=True, max_position=7.0)
    for direction, sign in ((LONG, 1), (SHORT, -1)):
        positions = [
            float(run(params_of(config), market_of([100.0] * 3), [act(direction, magnitude)])[0].state.position_LE)
            for magnitude in (0, 1, 2)
        ]
        assert positions == [sign * 1.0, sign * 3.0, sign * 7.0]


def test_whole_lots_never_fill_half_a_lot() -> None:
    config = plain(whole_lots=True, max_position=3.0)
    step = run(params_of(config), market_of([100.0] * 3, spread=1.0), [act(LONG, 2, 2, 1)])[0]
    assert float(step.state.position_LE) == 1.0  # half of three, toward zero


def test_whole_lots_that_could_never_trade_are_refused() -> None:
    with pytest.raises(UserError, match=r"max_position 1 .* at least 2"):
        params_of(EnvConfig(whole_lots=True, max_position=1.0))


@pytest.mark.parametrize("episodes", [1, 3])
def test_equity_of_the_episode_moves_the_margin_cap(episodes: int) -> None:
    params = params_of(plain(capital=100.0, max_position=10.0), of=instrument(multiplier=1.0, margin_fraction=1.0))
    shares = margin_share(params, torch.full((1, episodes), 50.0, dtype=torch.float64), f64(10.0))
    assert shares.tolist() == [[0.5] * episodes]
