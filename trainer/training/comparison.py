"""The agents of a trial beside what they have to beat: flat, buy-and-hold, random, untrained, the oracle if known."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

import torch

from trainer.config import TrialConfig
from trainer.evaluation.backtest import Policy, Rollout, paths, rollout
from trainer.evaluation.baselines import buy_and_hold, displaced
from trainer.evaluation.metrics import backtest_metrics
from trainer.evaluation.oracle import oracle_actions
from trainer.market.synthetic import generate
from trainer.training.group import LaneGroup
from trainer.training.lane_state import LaneState

RANDOM_RUNS = 16


@dataclass(frozen=True)
class Comparison:
    """Validation Sharpe of one fold's alternatives; flat is 0 by definition."""

    buy_and_hold: float
    random: float  # mean over displaced runs of the agent's own actions
    oracle: float | None  # best that sees what the agent sees; synthetic market only


def compare(group: LaneGroup, state: LaneState, config: TrialConfig) -> tuple[Comparison, ...]:
    """Backtest the alternatives on every lane's validation range."""
    agent = group.greedy_rollout(state)
    slots = state.fold.validation
    turns = [
        _sharpes(group, state, config, displaced(agent, slots, turn, RANDOM_RUNS + 1))
        for turn in range(1, RANDOM_RUNS + 1)
    ]
    held = _sharpes(group, state, config, buy_and_hold(slots))
    oracle = _oracle(group, state, config)
    return tuple(
        Comparison(held[lane], mean(turn[lane] for turn in turns), None if oracle is None else oracle[lane])
        for lane in range(len(held))
    )


def _oracle(group: LaneGroup, state: LaneState, config: TrialConfig) -> list[float] | None:
    if config.market.source != "synthetic":
        return None
    synthetic = config.market.synthetic
    actions = oracle_actions(
        synthetic,
        generate(synthetic),
        commission_rate=group.prepared.instrument.commission_bps * 1e-4,
        sees="filtered",
    )
    action_N4 = torch.from_numpy(actions).to(group.device)
    return _sharpes(group, state, config, lambda _step, env, _observe: action_N4[env.bar_LE])


def _sharpes(group: LaneGroup, state: LaneState, config: TrialConfig, policy: Policy) -> list[float]:
    return [
        backtest_metrics(
            path, sessions_per_year=group.prepared.instrument.sessions_per_year, min_trades=config.evaluation.min_trades
        ).sharpe
        for path in paths(state.env_params, group.prepared.table.session_N, _run(group, state, policy))
    ]


def _run(group: LaneGroup, state: LaneState, policy: Policy) -> Rollout:
    return rollout(
        state.env_params,
        group.prepared.market,
        state.fold.normaliser,
        state.fold.validation,
        group.validation_steps,
        group.setting.training.window,
        policy,
    )
