"""Backtests summed up on the device are those summed up on the host, to rounding."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.training.conftest import CPU, tiny
from trainer.env.actions import ACTIONS as JOINT
from trainer.env.actions import unflatten_action
from trainer.env.state import EnvState
from trainer.evaluation.backtest import Rollout, paths, rollout
from trainer.evaluation.lane_summary import lane_summaries
from trainer.evaluation.metrics import summarise
from trainer.lanes.tree import map_tensors, take
from trainer.training.group import LaneGroup
from trainer.training.prepare import prepare


def traded(**changes: object) -> tuple[LaneGroup, Rollout]:
    """Validation of three lanes whose agents act at random."""
    config = tiny(**changes)
    group = LaneGroup(config, prepare(config, CPU), CPU)
    group.admit("a", config)
    state, generator = group.state, torch.Generator().manual_seed(3)

    def act(_step: int, env: EnvState, _see: object) -> Tensor:
        joint = torch.randint(JOINT, env.bar_LE.shape, generator=generator)
        return unflatten_action(joint)

    market, slots = group.prepared.market, state.fold.validation
    return group, rollout(state.env_params, market, state.fold.normaliser, slots, group.validation_steps, 1, act)


def both(group: LaneGroup, run: Rollout) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    session_N = group.prepared.table.session_N
    params = group.state.env_params
    ours = lane_summaries(run, params.capital_L, torch.from_numpy(session_N))
    return [
        (asdict(one), asdict(summarise(path))) for one, path in zip(ours, paths(params, session_N, run), strict=True)
    ]


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, value in other.items():
        if isinstance(value, (bool, int)):
            assert one[name] == value, name
        else:
            assert one[name] == pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize("session_episodes", [True, False])
def test_every_number_agrees_with_the_hosts(session_episodes: bool) -> None:
    group, run = traded(**{"env.session_episodes": session_episodes})
    for one, other in both(group, run):
        assert other["sessions"] > 2
        assert other["max_drawdown"] > 0.0
        assert other["wins"] + other["losses"] > 5
        assert_same(one, other)


def changed(run: Rollout, change: float, at: int = 3) -> Rollout:
    """The first lane's profit of one live step, changed."""
    change_SLV = run.change_SLV.clone()
    step, slot = (int(found) for found in run.live_SLV[:, 0].nonzero()[at])
    change_SLV[step, 0, slot] = change
    return replace(run, change_SLV=change_SLV)


@pytest.mark.parametrize("change", [math.nan, math.inf, -1e9, 1e9])
def test_ruin_windfall_and_what_is_no_number_agree_too(change: float) -> None:
    group, run = traded()
    for one, other in both(group, changed(run, change)):
        if not other["finite"]:
            shown = (
                "finite",
                "profit",
                "max_drawdown",
                "max_drawdown_share",
                "session_mean",
                "bars",
                "wins",
                "notional",
            )
            one, other = ({name: each[name] for name in shown} for each in (one, other))
        assert_same(one, other)


def test_an_equity_that_does_not_move_has_no_variance() -> None:
    group, run = traded()
    still = replace(run, change_SLV=torch.zeros_like(run.change_SLV))
    for one, other in both(group, still):
        assert not one["sessions_vary"]
        assert_same(one, other)


def test_what_finished_slots_hold_does_not_count() -> None:
    group, run = traded()
    rubbish = map_tensors(torch.clone, run)
    dead_SLV = ~run.live_SLV
    assert dead_SLV.any()
    rubbish.change_SLV[dead_SLV] = math.nan
    rubbish.held_SLV[dead_SLV] = 5.0
    rubbish.notional_SLV[dead_SLV] = math.inf
    for one, other in both(group, rubbish):
        assert_same(one, other)


def test_a_lane_has_the_same_bits_alone_and_beside_one_that_is_no_number() -> None:
    group, run = traded()
    capital_L, session_N = group.state.env_params.capital_L, torch.from_numpy(group.prepared.table.session_N)
    together = lane_summaries(changed(run, math.nan), capital_L, session_N)
    for lane in range(1, len(together)):
        row = torch.tensor([lane])
        steps = {f.name: getattr(run, f.name)[:, row] for f in fields(run) if f.name != "final"}
        one = Rollout(**steps, final=take(run.final, row))
        assert lane_summaries(one, capital_L[row], session_N) == [together[lane]]
