"""Replay of a lane group: append a collect step, draw a batch, set priorities from losses.

Legend: L lanes, T ring length, E parallel episodes, B batch rows per lane, P portfolio features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.replay.nstep import n_step_window
from trainer.replay.priorities import (
    Priorities,
    annealed_beta,
    draw,
    empty_priorities,
    importance_weights,
    insert_,
    leaves,
    put_,
)
from trainer.replay.ring import Ring, Transition, empty_ring, read, rows, write_


@dataclass(frozen=True)
class ReplayParams:
    """Dynamic values of ReplayConfig, float64 ``[L]``."""

    per_alpha_L: Tensor
    per_epsilon_L: Tensor
    per_beta_start_L: Tensor
    per_beta_end_L: Tensor
    per_beta_steps_L: Tensor


@dataclass(frozen=True)
class Replay:
    """Stored transitions and their priorities."""

    ring: Ring
    priorities: Priorities


@dataclass(frozen=True)
class Batch:
    """Drawn transitions ``[L, B, ...]``.

    ``bar_LB``, ``next_bar_LB``, ``action_LB4``, ``index_LB`` int64; ``mirror_LB`` bool; the rest float32.
    ``return_LB`` is the discounted n-step return, ``discount_LB`` gamma**n_eff, 0 where the last state is terminal.
    """

    bar_LB: Tensor
    mirror_LB: Tensor
    portfolio_LBP: Tensor
    action_LB4: Tensor
    return_LB: Tensor
    discount_LB: Tensor
    next_bar_LB: Tensor
    next_portfolio_LBP: Tensor
    weight_LB: Tensor
    index_LB: Tensor


def empty_replay(lanes: int, length: int, episodes: int, portfolio: int, device: torch.device) -> Replay:
    """Replay without transitions; ``length`` is T (see ``config.ring_length``)."""
    return Replay(
        empty_ring(lanes, length, episodes, portfolio, device), empty_priorities(lanes, length * episodes, device)
    )


def append_(replay: Replay, transition: Transition) -> None:
    """Store one collect step of every lane at the running maximum priority, in place."""
    insert_(replay.priorities, replay.ring.cursor_L * replay.ring.episodes, replay.ring.episodes)
    write_(replay.ring, transition)


def sample(
    replay: Replay, params: ReplayParams, gamma_L: Tensor, seed_L: Tensor, step_L: Tensor, batch: int, n_step: int
) -> Batch:
    """Draw ``batch`` transitions of each lane at its learn step ``step_L`` (int64 ``[L]``)."""
    ring = replay.ring
    index_LB = draw(replay.priorities, ring.size_L, seed_L, step_L, batch)
    beta_L = annealed_beta(params.per_beta_start_L, params.per_beta_end_L, params.per_beta_steps_L, step_L)
    window = n_step_window(ring, index_LB, gamma_L, n_step)
    row_LB, last_LB = rows(ring, index_LB), rows(ring, window.last_LB)
    return Batch(
        bar_LB=read(ring.bar_LTE, row_LB).to(torch.int64),
        mirror_LB=read(ring.mirror_LTE, row_LB),
        portfolio_LBP=read(ring.portfolio_LTEP, row_LB),
        action_LB4=read(ring.action_LTE4, row_LB).to(torch.int64),
        return_LB=window.return_LB,
        discount_LB=window.discount_LB,
        next_bar_LB=read(ring.next_bar_LTE, last_LB).to(torch.int64),
        next_portfolio_LBP=read(ring.next_portfolio_LTEP, last_LB),
        weight_LB=importance_weights(replay.priorities, index_LB, ring.size_L, beta_L),
        index_LB=index_LB,
    )


def reprioritise_(replay: Replay, params: ReplayParams, index_LB: Tensor, loss_LB: Tensor) -> None:
    """Set the priorities of drawn items from their raw losses (the sum over branches of absolute values), in place."""
    put_(replay.priorities, index_LB, new_leaves(replay, params, loss_LB))


def new_leaves(replay: Replay, params: ReplayParams, loss_LB: Tensor) -> Tensor:
    """What :func:`reprioritise_` puts into the index for these losses, float32 ``[L, B]``."""
    return leaves(replay.priorities, loss_LB, params.per_alpha_L, params.per_epsilon_L)
