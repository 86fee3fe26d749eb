"""One learn step of every lane: draw, target, loss, gradient, clip, Adam, soft update, priorities, statistics.

In place on the lane state, without host values, so that it can be captured as one CUDA graph.

Legend: L lanes, B batch rows, D parameters of one lane.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.agent import health, popart, support
from trainer.agent.network import layout
from trainer.agent.params import AgentParams
from trainer.agent.td import TdLoss, td_loss
from trainer.env.observe import Observation, observe
from trainer.lanes.ops import lane_mean
from trainer.lanes.optimizer import adam_step_, clip_, soft_update_
from trainer.lanes.tree import copy_
from trainer.replay.priorities import put_
from trainer.replay.sample import Batch, new_leaves, sample
from trainer.training.collect import Setting
from trainer.training.lane_state import LaneState


@dataclass(frozen=True)
class Learned:
    """What one learn step saw: each lane's loss, and the drawn items with their new leaves in the priority index."""

    loss_L: Tensor
    index_LB: Tensor
    leaf_LB: Tensor


@dataclass(frozen=True)
class Narrow:
    """The online and the target parameters, ``[L, D]``, in the precision of the computation."""

    online_LD: Tensor
    target_LD: Tensor

    @staticmethod
    def of(setting: Setting, state: LaneState) -> Narrow:
        """Of the state as it is now: its own tensors where the computation has their precision."""
        return Narrow(state.params_LD.to(setting.dtype), state.target_LD.to(setting.dtype))


def learn_step_(setting: Setting, state: LaneState) -> Learned:
    """One gradient step; returns what it saw."""
    seen = improve_(setting, state, Narrow.of(setting, state))
    store_priorities_(state, seen)
    return seen


def store_priorities_(state: LaneState, seen: Learned) -> None:
    """Write the new priorities of a learn step's items."""
    put_(state.replay.priorities, seen.index_LB, seen.leaf_LB)


@dataclass(frozen=True)
class Drawn:
    """The transitions of a learn step with what was seen at both of their ends."""

    batch: Batch
    obs: Observation
    next_obs: Observation


def draw(setting: Setting, state: LaneState) -> Drawn:
    """What the coming learn step learns from; changes nothing."""
    training = setting.training
    batch = sample(
        state.replay,
        state.replay_params,
        state.agent.gamma_L,
        state.counters.seed_L,
        state.counters.learn_L,
        training.batch,
        setting.n_step,
    )
    normaliser, market, window = state.fold.normaliser, setting.market, training.window
    return Drawn(
        batch=batch,
        obs=observe(market, normaliser, batch.bar_LB, batch.mirror_LB, batch.portfolio_LBP, window),
        next_obs=observe(market, normaliser, batch.next_bar_LB, batch.mirror_LB, batch.next_portfolio_LBP, window),
    )


def gradient(setting: Setting, state: LaneState, narrow: Narrow, drawn: Drawn) -> tuple[TdLoss, Tensor]:
    """Loss of the drawn transitions and its gradient ``[L, D]`` in the precision of the computation, not clipped;
    changes nothing."""
    plan = layout(setting.shape)
    leaf_LD = narrow.online_LD.detach().requires_grad_()
    out = td_loss(
        setting.shape,
        plan.views(leaf_LD),
        plan.views(narrow.target_LD),
        drawn.obs,
        drawn.next_obs,
        drawn.batch,
        state.support,
        state.popart,
        state.signals,
        state.counters.epoch_L,
        state.agent,
    )
    (grad_LD,) = torch.autograd.grad(out.loss, leaf_LD)
    return out, grad_LD


def improve_(setting: Setting, state: LaneState, narrow: Narrow) -> Learned:
    """All of a learn step but the priorities, which are left as they were drawn from; ``narrow`` follows the state."""
    agent, counters = state.agent, state.counters
    drawn = draw(setting, state)
    out, grad_LD = gradient(setting, state, narrow, drawn)
    batch = drawn.batch
    with torch.no_grad():
        grad_LD = grad_LD.float()
        norm_L = clip_(grad_LD, agent.clip_norm_L)
        adam_step_(
            state.params_LD,
            grad_LD,
            state.adam,
            learning_rate(counters.learn_L, agent),
            agent.adam_beta1_L,
            agent.adam_beta2_L,
            agent.adam_epsilon_L,
        )
        soft_update_(state.target_LD, state.params_LD, agent.tau_L)
        if (
            narrow.online_LD.dtype != state.params_LD.dtype
        ):  # in the optimizer's own pass, while the masters are at hand
            copy_(narrow, Narrow.of(setting, state))
        values = out.values
        sigma_L = popart.sigma(state.popart, agent)
        reward_L = lane_mean(batch.return_LB)
        copy_(state.signals, health.observe(state.signals, values, out.loss_L, norm_L, reward_L, sigma_L, agent))
        copy_(
            state.support,
            support.observe(
                state.support, values.reach_low_L, values.reach_high_L, out.clamped_low_L, out.clamped_high_L, agent
            ),
        )
        counters.learn_L.add_(1)
        leaf_LB = new_leaves(state.replay, state.replay_params, out.priority_LB)
    return Learned(out.loss_L, batch.index_LB, leaf_LB)


def learning_rate(step_L: Tensor, agent: AgentParams) -> Tensor:
    """Adam's rate ``[L]`` float64 at a learn step: linear from ``lr`` to ``lr_end * lr`` over ``lr_decay`` steps."""
    done_L = (step_L.double() / agent.lr_decay_L).clamp(max=1.0)
    return agent.lr_L * (1.0 + (agent.lr_end_L - 1.0) * done_L)
