"""The agents of a trial beside what they have to beat: flat, buy-and-hold, random, untrained, the oracle if known."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

from trainer.config import TrialConfig
from trainer.evaluation.backtest import Policy, paths, rollout
from trainer.evaluation.baselines import buy_and_hold, displaced
from trainer.evaluation.metrics import backtest_metrics
from trainer.evaluation.oracle import oracle_actions
from trainer.lanes.tree import take
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
    slots = state.fold.validation
    held = _sharpes(group, state, config, buy_and_hold(slots))
    random = displaced(group.greedy_rollout(state), slots, RANDOM_RUNS + 1)
    copies = torch.arange(len(held), device=group.device).repeat_interleave(RANDOM_RUNS)
    random_R = _sharpes(group, state, config, random, copies)
    oracle = _oracle(group, state, config)
    return tuple(
        Comparison(
            held[lane],
            mean(random_R[lane * RANDOM_RUNS : (lane + 1) * RANDOM_RUNS]),
            None if oracle is None else oracle[lane],
        )
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


def _sharpes(
    group: LaneGroup, state: LaneState, config: TrialConfig, policy: Policy, lanes: Tensor | None = None
) -> list[float]:
    """Validation Sharpe of each lane, or of each of the chosen ``lanes``, which may repeat."""
    params, fold = state.env_params, state.fold
    if lanes is not None:
        params, fold = take(params, lanes), take(fold, lanes)
    run = rollout(
        params,
        group.prepared.market,
        fold.normaliser,
        fold.validation,
        group.validation_steps,
        group.setting.training.window,
        policy,
    )
    year = group.prepared.instrument.sessions_per_year
    return [
        backtest_metrics(path, sessions_per_year=year, min_trades=config.evaluation.min_trades).sharpe
        for path in paths(params, group.prepared.table.session_N, run)
    ]
