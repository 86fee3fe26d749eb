"""From action values to actions, when collecting and when evaluating (S28).

Collecting: Gaussian noise on each action's value (after the expectation, before the selection), Boltzmann selection in
each branch by the Gumbel-max trick (Gumbel 1954: argmax of Q + temperature x Gumbel), then epsilon-greedy with one
uniform draw over all 108 joint actions. Evaluating: greedy, without randomness. Which one is used is the caller's
choice of function, never a mode of the network; targets use :func:`trainer.agent.branches.greedy` too.

Noise and temperature are in units of sigma, so they mean the same at every size of reward.

Legend: L lanes, E parallel episodes, K = 13 actions of all branches, G = 4 branches.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.agent.branches import ACTIONS, greedy, only_hold
from trainer.agent.params import AgentParams
from trainer.env.actions import BRANCHES
from trainer.lanes.random import Stream, to_normal, to_uniform, words, words_of_normals

__all__ = ["collect", "epsilon", "greedy"]

_JOINT = math.prod(BRANCHES)
_ALIGN = 64
_LEAST = 2.0**-25


def collect(
    q_LEK: Tensor,
    hold_only_LE: Tensor,
    params: AgentParams,
    sigma_L: Tensor,
    seed_L: Tensor,
    step_L: Tensor,
) -> Tensor:
    """Exploring actions, int64 ``[L, E, G]``.

    Args:
        q_LEK: action values in reward units.
        seed_L: the lanes' seeds.
        step_L: collect steps each lane has taken, int64: the counter of the draws, so each step draws afresh.
    """
    episodes = q_LEK.shape[1]
    count = episodes * ACTIONS
    wanted = (
        (Stream.NOISE, words_of_normals(count)),
        (Stream.ACTION, -(-count // _ALIGN) * _ALIGN),
        (Stream.EXPLORE, 2 * episodes),
    )
    noise_LN, heat_LN, explore_LN = words(seed_L, step_L, wanted)
    noise_LEK = to_normal(noise_LN, count).view_as(q_LEK)
    gumbel_LEK = _gumbel(to_uniform(heat_LN))[:, :count].view_as(q_LEK)
    noise_scale = (params.noise_sigma_L * sigma_L).to(q_LEK.dtype).reshape(-1, 1, 1)
    heat = (params.temperature_L * sigma_L).to(q_LEK.dtype).reshape(-1, 1, 1)
    action_LEG = greedy(q_LEK + noise_scale * noise_LEK + heat * gumbel_LEK, hold_only_LE)

    draw_LE, which_LE = to_uniform(explore_LN).view(-1, 2, episodes).unbind(1)
    explores_LE = draw_LE < epsilon(step_L, params).to(draw_LE.dtype).unsqueeze(-1)
    random_LEG = only_hold(_split((which_LE * _JOINT).long()), hold_only_LE)
    return torch.where(explores_LE.unsqueeze(-1), random_LEG, action_LEG)


def epsilon(step_L: Tensor, params: AgentParams) -> Tensor:
    """Share of uniform actions ``[L]`` float64: linear from start to end over ``epsilon_decay`` collect steps."""
    done_L = (step_L.double() / params.epsilon_decay_L).clamp(max=1.0)
    return params.epsilon_start_L + (params.epsilon_end_L - params.epsilon_start_L) * done_L


def _gumbel(draw_LN: Tensor) -> Tensor:
    """Standard Gumbel draws from uniform ones; N is whole blocks of 64 per lane: logarithms without a vector tail."""
    return -(-draw_LN.clamp(min=_LEAST).log()).log()


def _split(joint_LE: Tensor) -> Tensor:
    """Actions of each branch from one number in [0, 108)."""
    parts = []
    for size in BRANCHES:
        parts.append(joint_LE % size)
        joint_LE = joint_LE // size
    return torch.stack(parts, dim=-1)
