"""S3: costs in money, worked by hand."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.env.builders import (
    FLAT,
    FREE,
    HOLD,
    LIMIT,
    LONG,
    MARKET,
    NORMAL,
    PATIENT,
    PEG,
    SHORT,
    URGENT,
    act,
    instrument,
    market_of,
    params_of,
    plain,
    run,
)
from trainer.env.step import Step


def equity(steps: list[Step]) -> float:
    return float(steps[-1].state.equity_LE)


def test_es_market_round_trip_costs_17_dollars() -> None:
    params = params_of(plain(), of=instrument())
    steps = run(params, market_of([5000.0] * 4, spread=0.25), [act(LONG), act(FLAT)])
    assert equity(steps) == pytest.approx(100_000 - 17.0, abs=1e-3)  # fills are half a spread off 5,000
    cost = float(steps[0].info.cost_LE + steps[1].info.cost_LE)
    assert cost == pytest.approx(12.50 + 4.50, abs=1e-3)
    exact = 0.25 * 50 + (5000.125 + 4999.875) * 50 * 0.09e-4
    assert cost == pytest.approx(exact, abs=1e-12)


def test_multiplier_counts_once() -> None:
    params = params_of(plain(), of=instrument(commission_bps=0.0))
    steps = run(params, market_of([5000.0, 5000.0, 5010.0]), [act(LONG), act(HOLD)])
    assert equity(steps) == 100_000 + 10 * 50


def test_fee_is_paid_not_earned() -> None:
    """A flat price and a fee of 0.5 % a side lose 0.9975 % in and out; 0.9950 % where the stake shrinks by the fee."""
    fee = instrument(multiplier=1.0, commission_bps=50.0, margin_fraction=1.0)
    params = params_of(plain(capital=1_000.0, max_position=10.0), of=fee)
    steps = run(params, market_of([100.0] * 4), [act(LONG), act(FLAT)])
    assert equity(steps) == 1_000 - 5 - 5
    stake = 1_000 / (1 + 0.005)  # notional that a stake of 1,000 buys, fee included
    params = params_of(plain(capital=1_000.0, max_position=stake / 100), of=fee)
    steps = run(params, market_of([100.0] * 4), [act(LONG), act(FLAT)])
    assert equity(steps) / 1_000 - 1 == pytest.approx(0.995 / 1.005 - 1, abs=1e-12)  # -0.9950 %
    assert round(100 * (equity(steps) / 1_000 - 1), 4) == -0.9950


def test_a_resize_pays_on_the_change_only() -> None:
    params = params_of(plain(max_position=4.0), of=instrument(multiplier=1.0, commission_bps=100.0))
    steps = run(params, market_of([100.0] * 6), [act(LONG, 1), act(LONG, 2), act(LONG, 2), act(LONG, 1)])
    assert [float(step.info.cost_LE) for step in steps] == pytest.approx([2.0, 2.0, 0.0, 2.0], abs=1e-12)


@pytest.mark.parametrize(("scale", "cost"), [(0.0, 0.0), (1.0, 0.125 + 0.5), (2.0, 0.25 + 1.0), (3.0, 0.375 + 1.5)])
def test_cost_scale_multiplies_commission_and_crossed_spread(scale: float, cost: float) -> None:
    fee = instrument(multiplier=1.0, commission_bps=50.0)
    steps = run(params_of(plain(cost_scale=scale), of=fee), market_of([100.0] * 3, spread=0.25), [act(LONG)])
    assert float(steps[0].info.cost_LE) == pytest.approx(cost, rel=0.01)
    assert equity(steps) == pytest.approx(100_000 - cost, abs=0.01)


@pytest.mark.parametrize(
    ("order", "urgency", "low", "filled", "price", "crossed"),
    [
        (MARKET, PATIENT, 100.0, 1.0, 101.0 + 0.5, 0.5),  # next open plus half the spread
        (LIMIT, PATIENT, 99.25, 1.0, 99.5, 0.0),  # a tick through the bid: filled at the bid
        (LIMIT, PATIENT, 99.5, 0.0, 104.0, 0.0),  # only touched: cancelled
        (LIMIT, NORMAL, 99.5, 0.5, 104.0 + 0.5, 0.5),  # half crosses at the close
        (LIMIT, URGENT, 99.5, 1.0, 104.0 + 0.5, 0.5),  # all of it
        (PEG, PATIENT, 99.75, 1.0, 100.0, 0.0),  # a tick through the mid
        (PEG, PATIENT, 100.0, 0.0, 104.0, 0.0),
        (PEG, NORMAL, 100.0, 0.5, 104.5, 0.5),
        (PEG, URGENT, 99.0, 1.0, 100.0, 0.0),  # urgency only matters where the rest did not fill
    ],
)
def test_order_type_and_urgency_change_fill_and_cost(
    order: int, urgency: int, low: float, filled: float, price: float, crossed: float
) -> None:
    market = market_of([100, 104, 104], open=[100, 101, 104], high=[100, 104, 104], low=[100, low, 104], spread=1.0)
    step = run(params_of(plain()), market, [act(LONG, 2, order, urgency)])[0]
    assert float(step.info.quantity_LE) == filled
    assert float(step.info.price_LE) == price
    assert float(step.info.cost_LE) == filled * crossed
    assert float(step.state.equity_LE) == 100_000 + filled * (104 - price)


@pytest.mark.parametrize(("order", "high", "price"), [(LIMIT, 100.75, 100.5), (PEG, 100.25, 100.0)])
def test_passive_sells_mirror_passive_buys(order: int, high: float, price: float) -> None:
    market = market_of([100, 96, 96], open=[100, 99, 96], high=[100, high, 96], low=[100, 96, 96], spread=1.0)
    step = run(params_of(plain()), market, [act(SHORT, 2, order)])[0]
    assert float(step.info.quantity_LE) == -1.0
    assert float(step.info.price_LE) == price
    assert float(step.state.equity_LE) == 100_000 + price - 96


def test_a_passive_order_the_open_gaps_through_gets_its_own_price_not_a_better_one() -> None:
    market = market_of([100, 95, 95], open=[100, 94, 95], high=[100, 96, 95], low=[100, 93, 95], spread=1.0)
    step = run(params_of(plain()), market, [act(LONG, 2, LIMIT)])[0]
    assert float(step.info.price_LE) == 99.5


def test_higher_costs_never_make_a_passive_fill_earn_more() -> None:
    market = market_of([100, 98, 98], low=[100, 90, 98], spread=1.0)
    prices = [
        float(run(params_of(plain(cost_scale=scale)), market, [act(LONG, 2, LIMIT)])[0].info.price_LE)
        for scale in (0.0, 1.0, 3.0)
    ]
    assert prices == [100.0, 99.5, 99.5]


def test_funding_accrues_every_bar_on_notional_and_changes_sign_with_the_position() -> None:
    """A long pays, a short earns; nothing is overwritten or lost when the side changes."""
    market = market_of([100.0] * 6, funding=[0.0, 0.01, 0.02, 0.01, 0.01, 0.01])
    steps = run(params_of(plain(max_position=2.0)), market, [act(LONG), act(HOLD), act(SHORT), act(FLAT)])
    assert [float(step.info.funding_LE) for step in steps] == pytest.approx([2.0, 4.0, -2.0, 0.0])
    assert equity(steps) == pytest.approx(100_000 - 4.0)


def test_position_without_contracts_costs_nothing_at_a_nan_price() -> None:
    nan = float("nan")
    market = market_of(
        [100, nan, 100, 100, 110, 110], open=[100, nan, nan, 100, 100, 110], spread=[0.5, nan, 0.5, 0.5, 0.5, 0.5]
    )
    for first in (act(HOLD), act(LONG), act(SHORT, 2, LIMIT, URGENT), act(FLAT)):
        steps = run(params_of(plain(), of=FREE), market, [first, act(HOLD), act(LONG), act(HOLD)])
        assert float(steps[0].state.equity_LE) == 100_000
        assert float(steps[0].reward_LE) == 0.0
        assert float(steps[0].state.position_LE) == 0.0
        assert torch.isfinite(steps[-1].state.equity_LE).all()
    assert equity(steps) == 100_000 + 110 - 100.25  # bought at the first open that exists


def test_no_order_fills_without_a_price() -> None:
    """A missing open is not silently replaced by the close."""
    market = market_of([100, 105, 105], open=[100, float("nan"), 105])
    assert float(run(params_of(plain()), market, [act(LONG)])[0].info.quantity_LE) == 0.0
