"""The four action branches laid side by side, and choices within them.

Legend: L lanes, B rows (batch rows or parallel episodes), K = 13 actions of all branches concatenated
(direction 4 | magnitude 3 | order type 3 | urgency 3), G = 4 branches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.env.actions import BRANCHES, Direction

ACTIONS = sum(BRANCHES)
HOLD = int(Direction.HOLD)
DIRECTIONS = BRANCHES[0]


def greedy(q_LBK: Tensor, hold_only_LB: Tensor) -> Tensor:
    """Best action of each branch, int64 ``[L, B, G]``; the direction is hold where nothing else is allowed."""
    best = torch.stack([part.argmax(-1) for part in torch.split_with_sizes(q_LBK, BRANCHES, dim=-1)], dim=-1)
    return only_hold(best, hold_only_LB)


def mirrored(q_LBK: Tensor) -> Tensor:
    """Values of the mirrored actions: short and long change places."""
    short, hold, long, rest = torch.split_with_sizes(q_LBK, (1, 1, 1, ACTIONS - 3), dim=-1)
    return torch.cat((long, hold, short, rest), dim=-1)


def only_hold(action_LBG: Tensor, hold_only_LB: Tensor) -> Tensor:
    """Replace the direction by hold where ``hold_only_LB``."""
    direction_LB1 = torch.where(hold_only_LB.unsqueeze(-1), HOLD, action_LBG[..., :1])
    return torch.cat((direction_LB1, action_LBG[..., 1:]), dim=-1)


def chosen(value_LBKA: Tensor, action_LBG: Tensor) -> Tensor:
    """Rows of the chosen actions: ``[L, B, K, A]`` to ``[L, B, G, A]``."""
    lanes, rows, actions, atoms = value_LBKA.shape
    first_1G = torch.cat([action_LBG.new_full((1, 1), sum(BRANCHES[:branch])) for branch in range(len(BRANCHES))], 1)
    row_N1 = torch.arange(0, lanes * rows * actions, actions, device=action_LBG.device).unsqueeze(-1)
    index_NG = action_LBG.flatten(0, 1) + first_1G + row_N1
    return value_LBKA.reshape(-1, atoms).index_select(0, index_NG.flatten()).view(*action_LBG.shape, atoms)
