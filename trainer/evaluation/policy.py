"""A trained agent as it is exported: parameters, support, normaliser and the health its position caps were made with.

Legend: L lanes, V slots, D parameters of one lane, A atoms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.agent import branches
from trainer.agent.branches import greedy
from trainer.agent.distribution import expectation
from trainer.agent.network import NetworkShape, forward, layout, with_head
from trainer.env.observe import Normaliser, See, side_by_side
from trainer.env.state import EnvState
from trainer.evaluation.backtest import Policy as Acting


@dataclass(frozen=True)
class Policy:
    """Everything an agent needs to act, one per lane."""

    params_LD: Tensor
    atoms_LA: Tensor
    normaliser: Normaliser
    health_L: Tensor  # float64, frozen at this value wherever the policy runs
    reward_unit_L: Tensor  # float64, money per 1 of reward on its train range; scales what the agent sees of its trade


def greedy_policy(shape: NetworkShape, policy: Policy, *, symmetric: bool) -> Acting:
    """The best action of every branch, for :func:`trainer.evaluation.backtest.rollout`.

    ``symmetric``: by the mean of the values in the market and in its mirror image (S12), where short and long change
    places. A market without a preferred direction has equal values in both, so what a network holds for one direction
    by chance cancels; where drift is to be earned, it would be lost.
    """
    with torch.no_grad():
        weights = with_head(layout(shape).views(policy.params_LD))

    def act(_step: int, _state: EnvState, see: See) -> Tensor:
        obs = see()
        shown = side_by_side(obs, see(flipped=True)) if symmetric else obs
        with torch.no_grad():
            q_LVK = expectation(forward(shape, weights, shown), policy.atoms_LA)
        if symmetric:
            q_LVK, other_LVK = q_LVK.chunk(2, dim=1)
            q_LVK = 0.5 * (q_LVK + branches.mirrored(other_LVK))
        return greedy(q_LVK, obs.hold_only)

    return act
