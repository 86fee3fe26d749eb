"""The four-branch action (S11): direction, magnitude, order type, urgency, and its flat index for discrete agents.

Legend: ``[..., 4]`` int64, one column per branch in the order of :data:`BRANCHES`.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

DIRECTION, MAGNITUDE, ORDER, URGENCY = range(4)
BRANCHES = (4, 3, 3, 3)
ACTIONS = 4 * 3 * 3 * 3


class Direction(IntEnum):
    SHORT = 0
    HOLD = 1
    LONG = 2
    FLAT = 3


class Order(IntEnum):
    MARKET = 0  # crosses half the spread at the next open, always fills
    LIMIT = 1  # at the touch
    PEG = 2  # at the mid


class Urgency(IntEnum):
    """What an unfilled passive order does at its bar's close."""

    PATIENT = 0  # cancels
    NORMAL = 1  # crosses half of what is left
    URGENT = 2  # crosses all of it


def flatten_action(action_4: Tensor) -> Tensor:
    """Index of an action in ``[0, 108)``, direction slowest."""
    direction, magnitude, order, urgency = action_4.unbind(-1)
    return ((direction * 3 + magnitude) * 3 + order) * 3 + urgency


def unflatten_action(index: Tensor) -> Tensor:
    """Inverse of :func:`flatten_action`."""
    return torch.stack((index // 27, index // 9 % 3, index // 3 % 3, index % 3), dim=-1)


def magnitude_share(magnitude: Tensor) -> Tensor:
    """Share of the cap as float64: 0.25, 0.5 or 1 for branch values 0, 1, 2 (arithmetic: no table on a device)."""
    return 0.25 * (magnitude + 1 + (magnitude == 2)).double()


def exposure(action_4: Tensor) -> Tensor:
    """Signed target as a share of the cap, direction times magnitude; 0 for hold and flat."""
    direction = action_4[..., DIRECTION]
    return direction_sign(direction) * magnitude_share(action_4[..., MAGNITUDE])


def direction_sign(direction: Tensor) -> Tensor:
    """-1 short, 0 hold, +1 long, 0 flat, as int64."""
    return is_buy(direction).long() - is_sell(direction).long()


def is_buy(direction: Tensor) -> Tensor:
    return direction == Direction.LONG


def is_sell(direction: Tensor) -> Tensor:
    return direction == Direction.SHORT


def is_hold(direction: Tensor) -> Tensor:
    return direction == Direction.HOLD


def is_flat(direction: Tensor) -> Tensor:
    return direction == Direction.FLAT
