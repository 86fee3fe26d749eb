"""Adaptive support (S18): the values that the atoms stand for, per lane, in raw reward units.

What: a support starts at configured bounds (cold) or at bounds read off observed rewards (warm) and only ever grows.
Every ``support_period`` learn steps each end is judged on its own: it moves out by ``support_growth`` (at most 10 %) if
both witnesses agree, averaged over the period:

- the value distributions reach within ``support_margin`` of the width of the end (their mean and ``support_spread``
  deviations; means alone would miss a distribution whose mass is piled up at both ends), and
- at least ``support_clamped`` of the target mass lies beyond the end, counted only where targets lead outwards
  (:func:`trainer.agent.td.outward_mass`).

Then both ends rest for ``support_cooldown`` steps while the network learns the new room. Widening cannot feed itself:
it lifts predictions and targets alike, and where that went past what the rewards support, gamma < 1 makes the targets
fall short of the predictions, which stops it. (Without that condition a lane whose best return was 80 widened to 156.)

What an expansion does to existing logits: nothing is rewritten. The atoms on the moved end's side of zero are
multiplied by the same factor, zero and the other side stay. So a network that predicts zero still does; a value made of
mass at positive atoms grows by that factor until it is learned back. A bound on that jump of Q is logged with each
event (``jump_L``, ``jump_total_L``, ``jumps_L``). Targets stay valid: the replay holds rewards, not distributions.

Legend: L lanes, A atoms, N rewards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.agent.params import AgentParams


@dataclass(frozen=True)
class Support:
    """Atoms and what is remembered between decisions; ``[L]`` float32 unless said otherwise."""

    atoms_LA: Tensor
    """Strictly increasing float32, zero inside."""
    steps_L: Tensor
    """Learn steps seen, int64."""
    rest_L: Tensor
    """Steps left without another expansion, int64."""
    reach_low_L: Tensor
    """Sums since the last decision, as are the next three."""
    reach_high_L: Tensor
    clamped_low_L: Tensor
    clamped_high_L: Tensor
    jumps_L: Tensor
    """Expansions so far, int64."""
    jump_L: Tensor
    """Bound on the jump of any action value that the last expansion caused, reward units."""
    jump_total_L: Tensor


def cold(params: AgentParams, atoms: int) -> Support:
    """Evenly spaced atoms from ``support_low`` to ``support_high``."""
    return _fresh(params.support_low_L, params.support_high_L, atoms)


def warm(params: AgentParams, atoms: int, reward_LN: Tensor) -> Support:
    """Evenly spaced symmetric atoms from the size of observed rewards ``[L, N]`` (train range only).

    The end is scale x quantile(|reward|) / sqrt(1 - gamma^2): the last factor turns the size of one reward into the
    size of a discounted sum of independent ones. At gamma = 1 the sum is over 1,000 bars. Never narrower than 1e-6.
    """
    size_LN = reward_LN.double().abs().sort(dim=-1).values
    rank_L = (params.support_warm_quantile_L * (size_LN.shape[1] - 1)).round().long()
    quantile_L = size_LN.gather(1, rank_L.unsqueeze(-1)).squeeze(-1)
    left_L = (1.0 - params.gamma_L * params.gamma_L).clamp(min=1e-3)
    high_L = (params.support_warm_scale_L * quantile_L / left_L.sqrt()).clamp(min=1e-6)
    return _fresh(-high_L, high_L, atoms)


def observe(
    support: Support,
    reach_low_L: Tensor,
    reach_high_L: Tensor,
    clamped_low_L: Tensor,
    clamped_high_L: Tensor,
    params: AgentParams,
) -> Support:
    """Account for one learn step and, at the end of a period, decide for each end whether it moves out.

    Args:
        reach_low_L, reach_high_L: how far the value distributions reach, reward units.
        clamped_low_L, clamped_high_L: share of the target mass beyond each end.
    """
    sums = (
        support.reach_low_L + reach_low_L,
        support.reach_high_L + reach_high_L,
        support.clamped_low_L + clamped_low_L,
        support.clamped_high_L + clamped_high_L,
    )
    steps_L = support.steps_L + 1
    period_L = params.support_period_L.long()
    due_L = steps_L % period_L == 0
    rest_L = (support.rest_L - 1).clamp(min=0)
    means = [total / period_L.float() for total in sums]

    low_L, high_L = support.atoms_LA[:, 0], support.atoms_LA[:, -1]
    near_L = params.support_margin_L.float() * (high_L - low_L)
    free_L = due_L & (rest_L == 0) & (params.support_growth_L > 0)
    wide = params.support_clamped_L.float()
    grow_low_L = free_L & (means[0] <= low_L + near_L) & (means[2] > 0) & (means[2] >= wide)
    grow_high_L = free_L & (means[1] >= high_L - near_L) & (means[3] > 0) & (means[3] >= wide)

    growth_L = params.support_growth_L.float()
    stretch_low_L = torch.where(grow_low_L, 1.0 + growth_L, 1.0).unsqueeze(-1)
    stretch_high_L = torch.where(grow_high_L, 1.0 + growth_L, 1.0).unsqueeze(-1)
    atoms_LA = support.atoms_LA * torch.where(support.atoms_LA < 0, stretch_low_L, stretch_high_L)
    grown_L = grow_low_L | grow_high_L
    moved_L = torch.maximum(low_L - atoms_LA[:, 0], atoms_LA[:, -1] - high_L)

    kept = [torch.where(due_L, 0.0, total) for total in sums]
    return Support(
        atoms_LA=atoms_LA,
        steps_L=steps_L,
        rest_L=torch.where(grown_L, params.support_cooldown_L.long(), rest_L),
        reach_low_L=kept[0],
        reach_high_L=kept[1],
        clamped_low_L=kept[2],
        clamped_high_L=kept[3],
        jumps_L=support.jumps_L + grown_L,
        jump_L=torch.where(grown_L, moved_L, support.jump_L),
        jump_total_L=support.jump_total_L + moved_L,
    )


def _fresh(low_L: Tensor, high_L: Tensor, atoms: int) -> Support:
    lanes, device = len(low_L), low_L.device
    share_A = torch.arange(atoms, dtype=torch.float64, device=device) / (atoms - 1)
    atoms_LA = low_L.unsqueeze(-1) * (1.0 - share_A) + high_L.unsqueeze(-1) * share_A
    count = torch.zeros(lanes, dtype=torch.int64, device=device)
    value = torch.zeros(lanes, dtype=torch.float32, device=device)
    return Support(
        atoms_LA=atoms_LA.float(),
        steps_L=count,
        rest_L=count.clone(),
        reach_low_L=value,
        reach_high_L=value.clone(),
        clamped_low_L=value.clone(),
        clamped_high_L=value.clone(),
        jumps_L=count.clone(),
        jump_L=value.clone(),
        jump_total_L=value.clone(),
    )
