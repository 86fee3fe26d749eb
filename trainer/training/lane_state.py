"""The state of a lane group: one record of tensors, axis 0 the lanes.

Everything a lane needs to continue bit for bit is in here, so joining, leaving, copying and checkpointing lanes are
selections on axis 0 and nothing else.

Legend: L lanes, D parameters of one lane, F features, V validation slots, S sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainer.agent import health, popart, support
from trainer.agent.health import Signals
from trainer.agent.network import NetworkShape, initialise
from trainer.agent.params import AgentParams
from trainer.agent.popart import PopArt
from trainer.agent.support import Support
from trainer.config import TrialConfig
from trainer.env.observe import PORTFOLIO_FEATURES, Normaliser, stack_normaliser
from trainer.env.state import EnvParams, EnvState, make_params, reset, reward_unit
from trainer.evaluation.backtest import Slots, make_slots, session_slots
from trainer.evaluation.policy import Policy
from trainer.lanes.optimizer import Adam, adam_state
from trainer.lanes.random import lane_seed
from trainer.lanes.tree import map_tensors, stack_dynamic
from trainer.market.bars_table import Ints
from trainer.market.folds import Fold, Range
from trainer.replay.config import ring_length
from trainer.replay.sample import Replay, ReplayParams, empty_replay
from trainer.training.config import ROW_BLOCK
from trainer.training.prepare import LEAST_EPISODE, Prepared


@dataclass(frozen=True)
class Counters:
    """What the random numbers of a lane are drawn from: its seed and how far it has come; int64 ``[L]``."""

    seed_L: Tensor
    epoch_L: Tensor
    collect_L: Tensor
    learn_L: Tensor


@dataclass(frozen=True)
class FoldData:
    """The lane's walk-forward split, and what was fitted on its train range."""

    train_first_L: Tensor  # int64, bars
    train_last_L: Tensor  # int64, inclusive
    session_first_L: Tensor  # int64, index into the market's session starts
    session_count_L: Tensor  # int64
    normaliser: Normaliser
    validation: Slots


@dataclass(frozen=True)
class Best:
    """Snapshot of the best epoch so far, kept for people; the score never looks at it."""

    policy: Policy
    sharpe_L: Tensor  # float64, -inf before the first validation
    epoch_L: Tensor


@dataclass(frozen=True)
class LaneState:
    """One lane group."""

    counters: Counters
    params_LD: Tensor
    target_LD: Tensor
    adam: Adam
    agent: AgentParams
    replay_params: ReplayParams
    env_params: EnvParams
    env: EnvState
    replay: Replay
    support: Support
    popart: PopArt
    signals: Signals
    fold: FoldData
    best: Best


def network_shape(config: TrialConfig, prepared: Prepared) -> NetworkShape:
    """Shape of the network for this market."""
    return NetworkShape.of(
        config.agent,
        features=len(prepared.features.specs),
        portfolio=len(PORTFOLIO_FEATURES),
        window=config.training.window,
        flow=prepared.features.order_flow,
    )


def slots_of(config: TrialConfig, session_N: Ints, bars: Range) -> list[Range]:
    """Where the evaluator runs in a range of bars: whole, or session by session where sessions are episodes."""
    if not config.env.session_episodes:
        return [bars]
    return [Range(*slot) for slot in session_slots(session_N, bars)]


def slot_width(slots_by_lane: Sequence[Sequence[Range]]) -> int:
    """Slots per lane, padded to whole row blocks."""
    most = max(len(slots) for slots in slots_by_lane)
    return -(-most // ROW_BLOCK) * ROW_BLOCK


def new_lanes(config: TrialConfig, prepared: Prepared, folds: Sequence[Fold], device: torch.device) -> LaneState:
    """Fresh lanes of one trial, one per fold: nothing is carried over from any other lane or fold."""
    shape = network_shape(config, prepared)
    configs = [config] * len(folds)
    seed_L = torch.tensor([lane_seed(config.seed, fold.index) for fold in folds], device=device)
    signals = health.fresh(len(folds), device)
    env_params = make_params(
        [c.env for c in configs], prepared.instrument, _reward_units(config, prepared, folds), device
    )
    env_params = replace(env_params, health_L=signals.health_L.clone())
    agent = stack_dynamic(AgentParams, [c.agent for c in configs], device)
    params_LD = initialise(shape, seed_L, device)
    all_slots = [slots_of(config, prepared.table.session_N, fold.validation) for fold in prepared.folds]
    slots = [all_slots[fold.index] for fold in folds]
    episodes = config.training.episodes
    first_support = support.cold(agent, config.agent.atoms)
    normaliser = stack_normaliser([prepared.scalings[fold.index] for fold in folds], device)

    def zeros(dtype: torch.dtype, *tail: int) -> Tensor:
        return torch.zeros(len(folds), *tail, dtype=dtype, device=device)

    return LaneState(
        counters=Counters(seed_L, zeros(torch.int64), zeros(torch.int64), zeros(torch.int64)),
        params_LD=params_LD,
        target_LD=params_LD.clone(),
        adam=adam_state(params_LD),
        agent=agent,
        replay_params=stack_dynamic(ReplayParams, [c.replay for c in configs], device),
        env_params=env_params,
        env=_ended_episodes(env_params, prepared, zeros(torch.int64, episodes)),
        replay=empty_replay(
            len(folds), ring_length(config.replay, episodes), episodes, len(PORTFOLIO_FEATURES), device
        ),
        support=first_support,
        popart=popart.fresh(len(folds), device),
        signals=signals,
        fold=_fold_data(prepared, folds, make_slots(slots, slot_width(all_slots), device), normaliser),
        best=Best(
            Policy(
                params_LD.clone(),
                first_support.atoms_LA.clone(),
                map_tensors(torch.clone, normaliser),
                zeros(torch.float64),
                env_params.reward_unit_L.clone(),
            ),
            zeros(torch.float64) - float("inf"),
            zeros(torch.int64),
        ),
    )


def policy_of(state: LaneState) -> Policy:
    """The agents as they are now, without copying."""
    return Policy(
        state.params_LD,
        state.support.atoms_LA,
        state.fold.normaliser,
        state.env_params.health_L,
        state.env_params.reward_unit_L,
    )


def _fold_data(prepared: Prepared, folds: Sequence[Fold], slots: Slots, normaliser: Normaliser) -> FoldData:
    first, count = [], []
    for fold in folds:
        start_S = prepared.session_start_S
        inside_S = (start_S >= fold.train.start) & (start_S + LEAST_EPISODE <= fold.train.end)
        indices = inside_S.nonzero()[0]
        first.append(int(indices[0]) if len(indices) else 0)
        count.append(len(indices))

    def column(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=slots.start_LV.device)

    return FoldData(
        train_first_L=column([fold.train.start for fold in folds]),
        train_last_L=column([fold.train.end - 1 for fold in folds]),
        session_first_L=column(first),
        session_count_L=column(count),
        normaliser=normaliser,
        validation=slots,
    )


def _reward_units(config: TrialConfig, prepared: Prepared, folds: Sequence[Fold]) -> Tensor:
    units = [reward_unit(config.env, prepared.instrument, prepared.bar_moves[fold.index]) for fold in folds]
    return torch.tensor(units, dtype=torch.float64)


def _ended_episodes(params: EnvParams, prepared: Prepared, zero_LE: Tensor) -> EnvState:
    """Episodes that are over, so that the first collect step starts real ones."""
    return reset(params, prepared.market, zero_LE, zero_LE, torch.zeros_like(zero_LE, dtype=torch.bool))
