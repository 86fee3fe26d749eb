"""What a trained agent has to beat, on the same bars through the same environment.

Flat never trades. Buy-and-hold is long all of ``max_position`` from each slot's first bar. The random policy has exactly
the agent's turnover habits and none of its information: the agent's own actions, played on other sessions (or, in one long
range, at another time).

Legend: L lanes, V slots, S steps.
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


def displaced(run: Rollout, slots: Slots, turn: int, turns: int) -> Policy:
    """The actions of ``run``, each slot playing those of the one ``turn / turns`` of all slots further on.

    A lane of one slot plays its own actions, moved by that share of its length.
    """
    length_LV = slots.end_LV - slots.start_LV
    count_L = (length_LV > 0).sum(-1)
    index_V = torch.arange(slots.start_LV.shape[1], device=count_L.device)
    shift_L = (count_L * turn // turns).clamp(min=1)
    source_LV = (index_V + shift_L[:, None]) % count_L.clamp(min=1)[:, None]
    source_LV = torch.where((count_L > 1)[:, None], source_LV, index_V)
    later_LV = torch.where((count_L > 1)[:, None], 0, (length_LV * turn // turns).clamp(min=1))

    def act(step: int, _state: EnvState, _observe: object) -> Tensor:
        when_LV = (step + later_LV) % length_LV.clamp(min=1)
        when_LV = torch.where(later_LV > 0, when_LV, step)
        lane_L1 = torch.arange(source_LV.shape[0], device=source_LV.device)[:, None]
        return run.action_SLV4[when_LV, lane_L1, source_LV].long()

    return act
