"""The order of events in a bar, round trips, forced closes and the ends of an episode."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from tests.trainer.env.builders import (
    FLAT,
    FREE,
    HOLD,
    LIMIT,
    LONG,
    PATIENT,
    PEG,
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
from trainer.env.actions import ACTIONS, exposure, is_buy, is_sell, unflatten_action
from trainer.env.state import episode_end, reset
from trainer.env.step import env_step


def test_an_order_fills_in_the_next_bar_not_at_the_close_it_was_decided_on() -> None:
    market = market_of([100, 120, 120, 120], open=[100, 119, 120, 120])
    step = run(params_of(plain()), market, [act(LONG)])[0]
    assert float(step.info.price_LE) == 119.0
    assert float(step.reward_LE) == 1.0


def test_hold_keeps_the_position_though_the_cap_moves() -> None:
    params = params_of(plain(max_position=2.0))
    first = run(params, market_of([100.0] * 4), [act(LONG)])[0]
    params.health_L.fill_(0.0)
    second = run(params, market_of([100.0] * 4), [act(HOLD)], first.state)[0]
    assert float(second.state.position_LE) == 2.0
    third = run(params, market_of([100.0] * 4), [act(LONG)], first.state)[0]
    assert float(third.state.position_LE) == 1.0


@pytest.mark.parametrize(("magnitude", "left"), [(0, 0.75), (1, 0.5), (2, 0.0)])
@pytest.mark.parametrize(("direction", "sign"), [(LONG, 1), (SHORT, -1)])
def test_flat_closes_its_fraction(magnitude: int, left: float, direction: int, sign: int) -> None:
    steps = run(params_of(plain()), market_of([100.0] * 5), [act(direction), act(FLAT, magnitude)])
    assert float(steps[1].state.position_LE) == sign * left


@pytest.mark.parametrize(("magnitude", "share"), [(0, 0.25), (1, 0.5), (2, 1.0)])
@pytest.mark.parametrize(("direction", "sign"), [(LONG, 1), (SHORT, -1)])
def test_target_is_sign_times_magnitude(magnitude: int, share: float, direction: int, sign: int) -> None:
    """Every exposure can be reached from flat and from the other side."""
    params = params_of(plain(max_position=8.0))
    for before in (FLAT, LONG, SHORT):
        steps = run(params, market_of([100.0] * 5), [act(before), act(direction, magnitude)])
        assert float(steps[1].state.position_LE) == sign * share * 8.0


def test_a_flip_closes_then_opens() -> None:
    """Long at 100, flipped at 110: the close leg books +10, the new leg's entry is 110 and it earns from there."""
    market = market_of([100, 105, 108, 108], open=[100, 100, 110, 108])
    steps = run(params_of(plain()), market, [act(LONG), act(SHORT)])
    assert float(steps[0].state.entry_LE) == 100.0
    state = steps[1].state
    assert float(state.position_LE) == -1.0
    assert float(state.entry_LE) == 110.0
    assert (float(state.wins_LE), float(state.losses_LE), float(state.win_sum_LE)) == (1.0, 0.0, 10.0)
    assert float(state.trip_LE) == 2.0  # 110 - 108 on the new leg alone
    assert float(state.equity_LE) == 100_000 + 10 + 2


def test_costs_of_a_flip_are_split_between_its_legs() -> None:
    """Commission 1 % at 100: closing 1 contract books 1, opening 1 puts 1 on the new trip."""
    params = params_of(plain(), of=instrument(multiplier=1.0, commission_bps=100.0))
    steps = run(params, market_of([100.0] * 4), [act(LONG), act(SHORT)])
    assert float(steps[1].info.booked_LE) == pytest.approx(-2.0)  # in and out
    assert float(steps[1].state.trip_LE) == pytest.approx(-1.0)
    assert float(steps[1].info.cost_LE) == pytest.approx(2.0)


def test_adding_averages_the_entry_and_reducing_keeps_it() -> None:
    market = market_of([100, 100, 120, 130, 130, 130], open=[100, 100, 120, 130, 130, 130])
    steps = run(params_of(plain()), market, [act(LONG, 1), act(LONG, 2), act(LONG, 0), act(FLAT)])
    assert [float(step.state.entry_LE) for step in steps] == [100.0, 110.0, 110.0, 0.0]
    assert [float(step.info.closed_LE) for step in steps] == [0, 0, 0, 1]
    assert float(steps[3].info.booked_LE) == pytest.approx(0.5 * 20 + 1.0 * 10)  # one round trip, not three


def test_round_trips_count_net_of_costs() -> None:
    params = params_of(plain(), of=instrument(multiplier=1.0, commission_bps=100.0))
    steps = run(params, market_of([100, 100, 101, 101, 101]), [act(LONG), act(HOLD), act(FLAT)])
    assert (float(steps[2].state.wins_LE), float(steps[2].state.losses_LE)) == (0.0, 1.0)
    assert float(steps[2].state.loss_sum_LE) == pytest.approx(1.0 + 1.01 - 1.0)


def test_sessions_end_flat_at_the_close_less_half_the_spread() -> None:
    market = market_of([100, 100, 104, 150, 150], spread=1.0, sessions=[0, 0, 0, 1, 1], flat=[2, 4])
    steps = run(params_of(plain()), market, [act(LONG), act(HOLD), act(LONG), act(HOLD)])
    assert float(steps[1].state.position_LE) == 0.0
    assert float(steps[1].state.equity_LE) == 100_000 + (104 - 0.5) - (100 + 0.5)
    assert float(steps[1].info.closed_LE) == 1.0
    assert float(steps[1].info.turnover_LE) == 1.0


def test_no_order_crosses_a_gap_and_no_gap_is_booked() -> None:
    """On a bar that must end flat every action is ignored, so the jump to the next session, or to the next contract
    of a roll, pays nothing; the new prices only count for positions opened after it."""
    market = market_of([100, 100, 150, 150], sessions=[0, 0, 1, 1], flat=[1, 3], open=[100, 100, 150, 150])
    for direction in (SHORT, LONG, FLAT):
        steps = run(params_of(plain()), market, [act(HOLD), act(direction), act(LONG)])
        assert float(steps[1].info.quantity_LE) == 0.0
        assert float(steps[1].state.equity_LE) == 100_000


def test_a_roll_inside_a_session_closes_at_the_old_contract() -> None:
    market = market_of([100, 100, 101, 131, 131], open=[100, 100, 101, 131, 131], flat=[2])
    steps = run(params_of(plain()), market, [act(LONG), act(HOLD), act(HOLD)])
    assert float(steps[2].state.equity_LE) == 100_000 + 1


def test_overnight_positions_earn_the_gap_where_the_market_allows_them() -> None:
    market = market_of([100, 100, 150, 150], sessions=[0, 0, 1, 1], open=[100, 100, 150, 150])
    steps = run(params_of(plain()), market, [act(LONG), act(HOLD)])
    assert float(steps[1].state.equity_LE) == 100_000 + 50


def test_orders_of_a_bar_that_must_end_flat_count_one_or_two_round_trips() -> None:
    market = market_of([100, 100, 104, 104, 104], flat=[2], open=[100, 100, 102, 104, 104])
    step = run(params_of(plain()), market, [act(LONG), act(SHORT)])[1]
    assert float(step.info.closed_LE) == 2.0
    assert (float(step.state.wins_LE), float(step.state.losses_LE)) == (1.0, 1.0)
    assert (float(step.state.win_sum_LE), float(step.state.loss_sum_LE)) == (2.0, 2.0)
    assert float(step.info.turnover_LE) == 3.0


def test_ruin_terminates_and_closes() -> None:
    config = plain(capital=1_000.0, max_position=10.0, ruin_fraction=0.5)
    steps = run(params_of(config), market_of([100, 100, 51, 50, 80, 80]), [act(LONG), act(HOLD), act(HOLD), act(LONG)])
    assert [bool(step.terminated_LE) for step in steps] == [False, False, True, False]
    assert not any(bool(step.truncated_LE) for step in steps)
    assert float(steps[2].state.position_LE) == 0.0
    assert float(steps[3].state.equity_LE) == 500.0  # over: the rebound is not lived


def test_a_gap_through_ruin_loses_all_there_was_and_no_more() -> None:
    """Leverage 10, a gap of 50 %: the account is at zero, not at minus four times itself, and not alive."""
    config = plain(capital=1_000.0, max_position=100.0, ruin_fraction=0.0)
    params = params_of(config, of=instrument(multiplier=1.0, commission_bps=0.0, margin_fraction=0.1))
    steps = run(params, market_of([100, 100, 50, 200, 200]), [act(LONG), act(HOLD), act(HOLD)])
    assert float(steps[0].state.position_LE) == 100.0
    assert float(steps[1].state.equity_LE) == 0.0
    assert bool(steps[1].terminated_LE)
    assert float(steps[1].reward_LE) == -1_000.0
    assert float(steps[2].state.equity_LE) == 0.0


def test_end_of_data_terminates_and_a_cut_truncates() -> None:
    params, market = params_of(plain()), market_of([100.0] * 6)
    ends = run(params, market, [act(LONG)] + [act(HOLD)] * 4)
    assert [bool(step.terminated_LE) for step in ends] == [False] * 4 + [True]
    assert not any(bool(step.truncated_LE) for step in ends)
    assert float(ends[-1].state.position_LE) == 0.0
    cut = run(params, market, [act(LONG)] + [act(HOLD)] * 2, start(params, market, end=3))
    assert [bool(step.truncated_LE) for step in cut] == [False, False, True]
    assert not any(bool(step.terminated_LE) for step in cut)
    assert float(cut[-1].state.position_LE) == 1.0  # life goes on after a cut


def test_with_session_episodes_a_session_ends_for_good() -> None:
    market = market_of([100.0] * 6, sessions=[0, 0, 0, 1, 1, 1])
    for asked, terminated in ((True, True), (False, False)):
        params = params_of(plain(session_episodes=asked))
        step = run(params, market, [act(LONG), act(HOLD)])[1]
        assert bool(step.terminated_LE) is terminated
        assert bool(step.state.position_LE == 0.0) is terminated


def test_a_finished_episode_pays_nothing_and_stays() -> None:
    """The last reward is not paid again."""
    params = params_of(plain(holding_cost_rate=0.1, drawdown_weight=1.0))
    market = market_of([100, 100, 90, 90, 90], funding=0.01)
    steps = run(params, market, [act(LONG), act(HOLD), act(LONG), act(SHORT)], start(params, market, end=2))
    assert bool(steps[1].truncated_LE)
    for step in steps[2:]:
        assert float(step.reward_LE) == 0.0
        assert not bool(step.truncated_LE | step.terminated_LE)
        assert int(step.state.bar_LE) == 2
        assert torch.equal(step.state.equity_LE, steps[1].state.equity_LE)


def test_reset_keeps_nothing() -> None:
    params, market = params_of(plain(max_position=2.0)), random_market(3)
    used = run(params, market, list(random_actions(3, 30)))[-1].state
    fresh = reset(params, market, torch.tensor([[5]]), torch.tensor([[9]]), torch.tensor([[False]]))
    again = reset(params, market, torch.tensor([[5]]), torch.tensor([[9]]), torch.tensor([[False]]))
    assert float(fresh.position_LE) == 0.0
    assert float(fresh.equity_LE) == 100_000
    assert float(fresh.wins_LE + fresh.losses_LE + fresh.trip_LE + fresh.entry_LE + fresh.side_LE) == 0.0
    assert float(used.wins_LE + used.losses_LE) > 0.0
    for field in fields(fresh):
        assert torch.equal(getattr(fresh, field.name), getattr(again, field.name))
    pointers = [getattr(fresh, field.name).data_ptr() for field in fields(fresh)]
    assert len(set(pointers)) == len(pointers)  # lanes are overwritten in place: no field shares memory


def test_one_bar_of_latency_fills_one_bar_later() -> None:
    market = market_of([100, 101, 103, 106, 106], open=[100, 100, 102, 104, 106])
    steps = run(params_of(plain(latency_bars=1)), market, [act(LONG), act(HOLD), act(HOLD)])
    assert [float(step.info.quantity_LE) for step in steps] == [0.0, 1.0, 0.0]
    assert float(steps[1].info.price_LE) == 102.0


def test_a_late_order_does_not_outlive_its_session() -> None:
    market = market_of([100.0] * 6, sessions=[0, 0, 0, 1, 1, 1], flat=[2, 5])
    steps = run(params_of(plain(latency_bars=1)), market, [act(HOLD), act(LONG), act(LONG), act(HOLD)])
    assert [float(step.info.quantity_LE) for step in steps] == [0.0] * 4


def test_patient_orders_that_do_not_fill_are_gone() -> None:
    market = market_of([100, 101, 95, 95], open=[100, 101, 101, 95], low=[100, 101, 95, 95], spread=1.0)
    steps = run(params_of(plain()), market, [act(LONG, 2, LIMIT, PATIENT), act(HOLD)])
    assert [float(step.info.quantity_LE) for step in steps] == [0.0, 0.0]


def test_a_normal_flip_half_filled_is_one_leg_half_way() -> None:
    """From +1 to -1 with half of the order filled: flat, one round trip."""
    market = market_of([100, 100, 99, 99], open=[100, 100, 100, 99], high=[100, 100, 100, 99])
    step = run(params_of(plain()), market, [act(LONG), act(SHORT, 2, PEG, 1)])[1]
    assert float(step.state.position_LE) == 0.0
    assert float(step.info.closed_LE) == 1.0
    assert float(step.state.entry_LE) == 0.0


def test_episodes_end_at_the_cut_the_range_or_the_session() -> None:
    market = market_of([100.0] * 12, sessions=[0] * 4 + [1] * 8)
    bars = torch.tensor([[0, 2, 5]])
    last = torch.tensor([8])
    cut = episode_end(params_of(plain(episode_bars=5)), market, bars, last)
    assert cut.tolist() == [[5, 7, 8]]
    session = episode_end(params_of(plain(episode_bars=5, session_episodes=True)), market, bars, last)
    assert session.tolist() == [[3, 3, 8]]


def test_money_is_float64_and_records_keep_their_shapes() -> None:
    params, market = params_of(plain(), of=FREE), random_market(1)
    state = start(params, market)
    step = env_step(params, market, state, act(LONG))
    for field in fields(state):
        before, after = getattr(state, field.name), getattr(step.state, field.name)
        assert before.shape == after.shape
        assert before.dtype == after.dtype
    assert step.reward_LE.dtype == torch.float64


def test_all_108_actions_execute_as_they_are_named() -> None:
    """From flat, in a market that trades through every price: buys buy, sells sell, the rest does nothing."""
    params = params_of(plain(max_position=8.0))
    market = market_of([100.0] * 3, high=[100, 110, 100], low=[100, 90, 100], spread=1.0)
    action = unflatten_action(torch.arange(ACTIONS))[None]
    bars = torch.zeros(1, ACTIONS, dtype=torch.int64)
    step = env_step(params, market, reset(params, market, bars, bars + 2, bars == 1), action)
    assert torch.equal(step.info.quantity_LE, 8.0 * exposure(action))
    assert torch.equal(step.info.quantity_LE > 0, is_buy(action[..., 0]))
    assert torch.equal(step.info.quantity_LE < 0, is_sell(action[..., 0]))
    assert step.info.quantity_LE.unique().tolist() == [-8.0, -4.0, -2.0, 0.0, 2.0, 4.0, 8.0]


def test_rounding_dust_is_no_order() -> None:
    """Half of what is missing fills each bar; the pursuit ends where less than 1e-9 of the position is missing."""
    steps = run(params_of(plain()), market_of([100.0] * 42, spread=1.0), [act(LONG, 2, PEG, 1)] * 40)
    assert [float(step.info.quantity_LE) for step in steps[:3]] == [0.5, 0.25, 0.125]
    assert [float(step.info.quantity_LE) for step in steps[-5:]] == [0.0] * 5
