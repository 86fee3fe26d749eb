"""Double-DQN distributional targets and the loss of one learn step.

For each branch on its own (Tavakoli et al. 2018): the ONLINE network's expectations choose the next action, the TARGET
network's distribution of that action is shifted by the reward and discounted (van Hasselt et al. 2016, eq. 4;
Bellemare et al. 2017, algorithm 1). In next states that allow only hold, the direction branch holds.

The loss is the sum over lanes of each lane's mean over its rows, so gradients of lanes never mix and their scale does
not depend on the batch size (S23).

Legend: L lanes, B rows, G = 4 branches, A atoms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainer.agent import popart as popart_
from trainer.agent.branches import chosen, greedy
from trainer.agent.distribution import ValueStatistics, pooled_reach, statistics
from trainer.agent.health import Signals
from trainer.agent.losses import ValueLoss, blend, c51_share, smooth, smoothing_share, value_loss
from trainer.agent.network import (
    NetworkShape,
    Observation,
    Weights,
    action_moments,
    chosen_logits,
    forward,
    head_product,
    with_head,
)
from trainer.agent.params import AgentParams
from trainer.agent.popart import PopArt
from trainer.agent.projection import Overflow, bellman, overflow, project
from trainer.agent.support import Support
from trainer.lanes.ops import lane_mean


class Batch(Protocol):
    """The part of a replay batch that the loss reads."""

    @property
    def action_LB4(self) -> Tensor: ...
    @property
    def return_LB(self) -> Tensor:
        """n-step return, discounted, reward units."""
        ...

    @property
    def discount_LB(self) -> Tensor:
        """gamma^n of the steps really taken; 0 where terminated."""
        ...

    @property
    def weight_LB(self) -> Tensor:
        """Importance weight of the draw."""
        ...


@dataclass(frozen=True)
class Targets:
    """Target distributions, and what was seen on the way; no gradient."""

    probability_LBGA: Tensor
    """On the lane's support; mass 1."""
    overflow: Overflow
    values: ValueStatistics
    """Of the online network in the next states."""


@dataclass(frozen=True)
class TdLoss:
    """Result of :func:`td_loss`; only ``loss`` carries a gradient."""

    loss: Tensor
    """Sum over lanes, 0-d."""
    loss_L: Tensor
    c51_L: Tensor
    mse_L: Tensor
    priority_LB: Tensor
    clamped_low_L: Tensor
    """Mean target mass below the support, if the targets lead outwards there (:func:`outward_mass`), else 0."""
    clamped_high_L: Tensor
    values: ValueStatistics


def td_targets(
    shape: NetworkShape,
    online: Weights,
    target: Weights,
    next_obs: Observation,
    batch: Batch,
    support: Support,
    params: AgentParams,
) -> Targets:
    """Target distribution of each branch for the transitions of ``batch``."""
    with torch.no_grad():
        q_LBK, deviation_LBK = action_moments(shape, online, next_obs, support.atoms_LA)
        next_logits_LBGA = chosen_logits(shape, target, next_obs, greedy(q_LBK, next_obs.hold_only))
        probability_LBGA, beyond = _projected(next_logits_LBGA, batch, support.atoms_LA)
        return Targets(probability_LBGA, beyond, statistics(q_LBK, deviation_LBK, params.support_spread_L))


def td_loss(
    shape: NetworkShape,
    online: Weights,
    target: Weights,
    obs: Observation,
    next_obs: Observation,
    batch: Batch,
    support: Support,
    popart: PopArt,
    signals: Signals,
    epoch_L: Tensor,
    params: AgentParams,
) -> TdLoss:
    """Loss of one learn step of every lane.

    Args:
        online: weights with gradient; target: the slow copy, another buffer.
        obs, next_obs: observations of the batch's first and last states.
        signals: its health decides the label smoothing.
        epoch_L: epochs each lane has finished, which decide the blend.
    """
    online = with_head(online)
    targets = td_targets(shape, online, target, next_obs, batch, support, params)
    alpha_L, sigma_L = c51_share(epoch_L, params), popart_.sigma(popart, params)
    parts = _losses(shape, online, obs, batch, targets, support.atoms_LA, alpha_L, sigma_L, signals, params)
    clamped_low_L, clamped_high_L = outward_mass(parts.predicted, targets.overflow, params)
    loss_L = lane_mean(batch.weight_LB.float() * parts.loss_LB)
    return TdLoss(
        loss=loss_L.sum(),
        loss_L=loss_L.detach(),
        c51_L=parts.c51_L,
        mse_L=parts.mse_L,
        priority_LB=parts.priority_LB,
        clamped_low_L=clamped_low_L,
        clamped_high_L=clamped_high_L,
        values=targets.values,
    )


def _projected(logits_LBGA: Tensor, batch: Batch, atoms_LA: Tensor) -> tuple[Tensor, Overflow]:
    return_LB, discount_LB = batch.return_LB.float(), batch.discount_LB.float()
    if logits_LBGA.is_cuda:
        from trainer.kernels.projection import project_logits

        projected_LBGA, beyond = project_logits(logits_LBGA, return_LB, discount_LB, atoms_LA)
        return projected_LBGA, Overflow(*beyond.unbind(-1))
    probability_LBGA = torch.softmax(logits_LBGA.float(), dim=-1)
    target_LBA = bellman(return_LB, discount_LB, atoms_LA)
    return project(probability_LBGA, target_LBA, atoms_LA), overflow(probability_LBGA, target_LBA, atoms_LA)


def _losses(
    shape: NetworkShape,
    online: Weights,
    obs: Observation,
    batch: Batch,
    targets: Targets,
    atoms_LA: Tensor,
    alpha_L: Tensor,
    sigma_L: Tensor,
    signals: Signals,
    params: AgentParams,
) -> ValueLoss:
    target_LBGA = targets.probability_LBGA
    if target_LBGA.is_cuda:
        from trainer.kernels.loss import chosen_losses

        product_LBN, bias_LN = head_product(shape, online, obs)
        share_L = smoothing_share(signals.health_L, params)
        entropy, error, *predicted = chosen_losses(
            product_LBN, bias_LN, batch.action_LB4, target_LBGA, share_L, atoms_LA
        )
        return blend(entropy, error, (predicted[0], predicted[1]), alpha_L, sigma_L)
    logits_LBGA = chosen(forward(shape, online, obs), batch.action_LB4)
    smoothed_LBGA = smooth(target_LBGA, signals.health_L, params)
    return value_loss(logits_LBGA, target_LBGA, smoothed_LBGA, atoms_LA, alpha_L, sigma_L)


def outward_mass(predicted: tuple[Tensor, Tensor], target: Overflow, params: AgentParams) -> tuple[Tensor, Tensor]:
    """Target mass beyond the low and the high end, ``[L]`` each, counted where targets lead outwards.

    They do where the unclamped targets of the batch reach further than the predictions of the same transitions, both
    thrown together (mean and ``support_spread`` deviations, from the moments of each distribution). Clamping alone is
    no such sign: a support that was widened too far keeps mass at its end, and single large rewards clamp some of it,
    while the targets already pull inwards.
    """
    with torch.no_grad():
        low_L, high_L = pooled_reach(*predicted, params.support_spread_L)
        target_low_L, target_high_L = pooled_reach(target.mean_LBG, target.square_LBG, params.support_spread_L)
        return (
            torch.where(target_low_L < low_L, lane_mean(target.below_LBG), 0.0),
            torch.where(target_high_L > high_L, lane_mean(target.above_LBG), 0.0),
        )
