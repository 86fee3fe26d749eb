"""A trained agent as it is exported: parameters, support, normaliser and the health its position caps were made with.

Legend: L lanes, V slots, D parameters of one lane, A atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.agent.branches import greedy
from trainer.agent.distribution import expectation
from trainer.agent.network import NetworkShape, forward, layout
from trainer.env.observe import Normaliser, Observation
from trainer.env.state import EnvState


@dataclass(frozen=True)
class Policy:
    """Everything an agent needs to act, one per lane."""

    params_LD: Tensor
    atoms_LA: Tensor
    normaliser: Normaliser
    health_L: Tensor  # float64, frozen at this value wherever the policy runs
    reward_unit_L: Tensor  # float64, money per 1 of reward on its train range; scales what the agent sees of its trade


def greedy_policy(shape: NetworkShape, policy: Policy) -> Callable[[int, EnvState, Callable[[], Observation]], Tensor]:
    """The best action of every branch, for :func:`trainer.evaluation.backtest.rollout`."""
    weights = layout(shape).views(policy.params_LD)

    def act(_step: int, _state: EnvState, observe: Callable[[], Observation]) -> Tensor:
        obs = observe()
        with torch.no_grad():
            q_LVK = expectation(forward(shape, weights, obs), policy.atoms_LA)
        return greedy(q_LVK, obs.hold_only)

    return act
