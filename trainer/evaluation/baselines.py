"""What a trained agent has to beat, on the same bars through the same environment.

Flat never trades. Buy-and-hold is long all of ``max_position`` from each slot's first bar. The random policy has the
agent's turnover and none of its information: the agent's own actions, played on other sessions (or, in one long range,
at another time).

Legend: L lanes, V slots, S steps, R random policies of all lanes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.env.actions import Direction, Order, Urgency
from trainer.env.state import EnvState
from trainer.evaluation.backtest import Policy, Rollout, Slots

FULL = 2  # of the magnitude branch


def buy_and_hold(slots: Slots) -> Policy:
    """Long at the first bar, then hold."""
    shape = (*slots.start_LV.shape, 4)
    columns = (Direction.LONG, FULL, Order.MARKET, Urgency.URGENT)
    action = torch.tensor([int(column) for column in columns], device=slots.start_LV.device).expand(shape)
    hold = action.clone()
    hold[..., 0] = int(Direction.HOLD)

    def act(step: int, _state: EnvState, _observe: object) -> Tensor:
        return action if step == 0 else hold

    return act


def displaced(run: Rollout, slots: Slots, turns: int) -> Policy:
    """``turns - 1`` random policies for each lane of ``run``, as lanes of one rollout: lane ``l * (turns - 1) + k - 1``
    plays what lane ``l`` did in the slot ``k / turns`` of all its slots further on.

    A lane of one slot plays its own actions, moved by that share of its length. ``slots`` are those of ``run``.
    """
    copies = turns - 1
    lane_R = torch.arange(slots.start_LV.shape[0], device=slots.start_LV.device).repeat_interleave(copies)
    turn_R = (torch.arange(len(lane_R), device=lane_R.device) % copies) + 1
    length_RV = (slots.end_LV - slots.start_LV)[lane_R]
    count_R1 = (length_RV > 0).sum(-1, keepdim=True)
    many_R1 = count_R1 > 1
    index_V = torch.arange(length_RV.shape[1], device=lane_R.device)
    shift_R1 = (count_R1 * turn_R[:, None] // turns).clamp(min=1)
    source_RV = torch.where(many_R1, (index_V + shift_R1) % count_R1.clamp(min=1), index_V)
    later_RV = torch.where(many_R1, 0, (length_RV * turn_R[:, None] // turns).clamp(min=1))

    def act(step: int, _state: EnvState, _observe: object) -> Tensor:
        when_RV = torch.where(many_R1, step, (step + later_RV) % length_RV.clamp(min=1))
        return run.action_SLV4[when_RV, lane_R[:, None], source_RV].long()

    return act
