"""Replay ring: per transition the place in the market, not the observation.

Every lane has its own write cursor and fill count, since lanes join at different times. Slot ``t, e`` of a lane has the
flat index ``t * E + e``; consecutive steps of parallel episode ``e`` lie at consecutive ``t``.

Legend: L lanes, T ring length in collect steps, E parallel episodes, P portfolio features, N = T * E.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transition:
    """One collect step of a group.

    ``portfolio_LEP`` is what the agent saw at ``bar_LE``, ``next_portfolio_LEP`` at ``next_bar_LE``: the true following
    state, also where the episode was cut and something else comes next. ``terminated_LE``: no future (ruin).
    ``cut_LE``: the next slot of this episode does not continue this one (truncation, session end, reset).
    """

    bar_LE: Tensor
    next_bar_LE: Tensor
    mirror_LE: Tensor
    portfolio_LEP: Tensor
    next_portfolio_LEP: Tensor
    action_LE4: Tensor
    reward_LE: Tensor
    terminated_LE: Tensor
    cut_LE: Tensor


@dataclass(frozen=True)
class Ring:
    """Stored transitions ``[L, T, E, ...]``, the next slot to write and the number of filled steps, int64 ``[L]``."""

    bar_LTE: Tensor
    next_bar_LTE: Tensor
    mirror_LTE: Tensor
    portfolio_LTEP: Tensor
    next_portfolio_LTEP: Tensor
    action_LTE4: Tensor
    reward_LTE: Tensor
    terminated_LTE: Tensor
    cut_LTE: Tensor
    cursor_L: Tensor
    count_L: Tensor

    @property
    def length(self) -> int:
        """T."""
        return self.bar_LTE.shape[1]

    @property
    def episodes(self) -> int:
        """E."""
        return self.bar_LTE.shape[2]

    @property
    def size_L(self) -> Tensor:
        """Stored transitions, int64 ``[L]``."""
        return self.count_L * self.episodes


def empty_ring(lanes: int, length: int, episodes: int, portfolio: int, device: torch.device) -> Ring:
    """A ring without transitions."""

    def zeros(dtype: torch.dtype, *trailing: int) -> Tensor:
        return torch.zeros(lanes, length, episodes, *trailing, dtype=dtype, device=device)

    return Ring(
        bar_LTE=zeros(torch.int32),
        next_bar_LTE=zeros(torch.int32),
        mirror_LTE=zeros(torch.bool),
        portfolio_LTEP=zeros(torch.float32, portfolio),
        next_portfolio_LTEP=zeros(torch.float32, portfolio),
        action_LTE4=zeros(torch.uint8, 4),
        reward_LTE=zeros(torch.float32),
        terminated_LTE=zeros(torch.bool),
        cut_LTE=zeros(torch.bool),
        cursor_L=torch.zeros(lanes, dtype=torch.int64, device=device),
        count_L=torch.zeros(lanes, dtype=torch.int64, device=device),
    )


def bytes_per_transition(portfolio: int) -> int:
    """Device memory of one stored transition with P portfolio features."""
    meta = empty_ring(1, 1, 1, portfolio, torch.device("meta"))
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in (getattr(meta, f.name) for f in fields(meta) if not f.name.endswith("_L"))
    )


def write_(ring: Ring, transition: Transition) -> None:
    """Store one collect step of every lane at the lane's cursor and advance it, in place."""
    lanes = ring.cursor_L.shape[0]
    row_L = torch.arange(lanes, device=ring.cursor_L.device) * ring.length + ring.cursor_L
    for f in fields(transition):
        stored = getattr(ring, f.name.replace("_LE", "_LTE"))
        stored.flatten(0, 1).index_copy_(0, row_L, getattr(transition, f.name).to(stored.dtype))
    ring.cursor_L.add_(1).remainder_(ring.length)
    ring.count_L.add_(1).clamp_(max=ring.length)


def rows(ring: Ring, index_LB: Tensor) -> Tensor:
    """Rows of the slots ``index_LB`` (``t * E + e`` of each lane) among those of all lanes, for :func:`read`."""
    lanes = torch.arange(index_LB.shape[0], device=index_LB.device).unsqueeze(-1)
    return index_LB + lanes * (ring.length * ring.episodes)


def read(stored: Tensor, row_LB: Tensor) -> Tensor:
    """Gather these rows of a stored ``[L, T, E, ...]`` tensor: ``[L, B, ...]``."""
    gathered = stored.flatten(0, 2).index_select(0, row_LB.flatten())
    return gathered.view(*row_LB.shape, *stored.shape[3:])
