"""One collect step: every episode of every lane sees, acts, trades one bar and is stored; finished ones start anew.

In place on the lane state, without host values, so that it can be captured as one CUDA graph.

Legend: L lanes, E parallel episodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.agent import explore, popart
from trainer.agent.network import NetworkShape, Weights, action_values
from trainer.agent.popart import PopArt
from trainer.env.observe import observe, portfolio_features
from trainer.env.state import EnvState, episode_end, reset
from trainer.env.step import env_step
from trainer.evaluation.backtest import Policy as Acting
from trainer.evaluation.policy import Policy, greedy_policy
from trainer.lanes.random import Stream, to_integer, to_uniform, words
from trainer.lanes.tree import copy_, map_tensors
from trainer.market.market import Market
from trainer.replay.ring import Transition
from trainer.replay.sample import append_
from trainer.training.config import TrainingConfig
from trainer.training.lane_state import LaneState


@dataclass(frozen=True)
class Setting:
    """What all lanes of a group share."""

    training: TrainingConfig
    n_step: int
    session_episodes: bool
    symmetric: bool
    shape: NetworkShape
    market: Market
    session_start_S: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """What the network computes in while training; masters, losses and targets are float32."""
        return torch.bfloat16 if self.training.precision == "bf16" else torch.float32

    def policy(self, policy: Policy) -> Acting:
        """How trained agents act."""
        return greedy_policy(self.shape, policy, symmetric=self.symmetric)


@dataclass(frozen=True)
class Collected:
    """What one collect step stores and how it leaves the lanes."""

    transition: Transition
    popart: PopArt
    env: EnvState  # finished episodes started anew


def collect_step_(setting: Setting, state: LaneState, weights: Weights) -> None:
    """Advance all episodes by one bar."""
    store_(state, trade(setting, state, weights))


@torch.no_grad()
def trade(setting: Setting, state: LaneState, weights: Weights) -> Collected:
    """See, act and trade one bar; changes nothing."""
    market, env, counters = setting.market, state.env, state.counters
    portfolio_LEP = portfolio_features(state.env_params, market, env)
    obs = observe(market, state.fold.normaliser, env.bar_LE, env.mirror_LE, portfolio_LEP, setting.training.window)
    q_LEK = action_values(setting.shape, weights, obs, state.support.atoms_LA)
    sigma_L = popart.sigma(state.popart, state.agent)
    action_LE4 = explore.collect(q_LEK, obs.hold_only, state.agent, sigma_L, counters.seed_L, counters.collect_L)
    step = env_step(state.env_params, market, env, action_LE4)
    transition = Transition(
        bar_LE=env.bar_LE,
        next_bar_LE=step.state.bar_LE,
        mirror_LE=env.mirror_LE,
        portfolio_LEP=portfolio_LEP,
        next_portfolio_LEP=portfolio_features(state.env_params, market, step.state),
        action_LE4=action_LE4,
        reward_LE=step.reward_LE,
        terminated_LE=step.terminated_LE,
        cut_LE=step.state.done_LE | market.flat_N[step.state.bar_LE],
    )
    return Collected(
        transition, popart.observe(state.popart, step.reward_LE, state.agent), _restarted(setting, state, step.state)
    )


@torch.no_grad()
def store_(state: LaneState, made: Collected) -> None:
    """Write a collect step into the lane state."""
    append_(state.replay, made.transition)
    copy_(state.popart, made.popart)
    copy_(state.env, made.env)
    state.counters.collect_L.add_(1)


def _restarted(setting: Setting, state: LaneState, env: EnvState) -> EnvState:
    """``env`` with fresh episodes in place of those that are over."""
    fresh = new_episodes(setting, state)

    def pick(kept: Tensor, new: Tensor) -> Tensor:
        over = env.done_LE if kept.dim() == 2 else env.done_LE.unsqueeze(-1)
        return torch.where(over, new, kept)

    return map_tensors(pick, env, fresh)


def new_episodes(setting: Setting, state: LaneState) -> EnvState:
    """Episodes at random starts in each lane's train range; mirrored ones by the profile's rule."""
    fold, counters, episodes = state.fold, state.counters, setting.training.episodes
    start_LE, mirror_LE = words(
        counters.seed_L, counters.collect_L + 1, ((Stream.START, episodes), (Stream.MIRROR, episodes))
    )
    if setting.session_episodes:
        offset_LE = to_integer(start_LE, fold.session_count_L)
        bar_LE = setting.session_start_S[fold.session_first_L[:, None] + offset_LE]
    else:
        bar_LE = fold.train_first_L[:, None] + to_integer(start_LE, fold.train_last_L - fold.train_first_L)
    end_LE = episode_end(state.env_params, setting.market, bar_LE, fold.train_last_L)
    return reset(state.env_params, setting.market, bar_LE, end_LE, _mirrored(setting, state, mirror_LE))


def _mirrored(setting: Setting, state: LaneState, word_LE: Tensor) -> Tensor:
    if setting.training.mirror == "episode":
        return to_uniform(word_LE) < 0.5
    odd_L = (state.counters.epoch_L % 2 == 1) & (setting.training.mirror == "epoch")
    return odd_L[:, None].expand_as(word_LE).clone()
