"""A lane computes the same bits at any group size, in any slot, beside any neighbour."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.agent import health, popart, support
from trainer.agent.distribution import moments
from trainer.agent.explore import collect
from trainer.agent.network import forward, layout
from trainer.lanes.ops import lane_norm
from trainer.lanes.tree import flatten

SIZES = (1, 2, 3, 8, 32)


def _step(scene: Any) -> dict[str, Tensor]:
    """Everything the agent computes in one step, by name, lanes on axis 0."""
    gradient, result = scene.gradient()
    logits = forward(scene.shape, layout(scene.shape).views(scene.online_LD), scene.obs)
    q, _ = moments(logits, scene.support.atoms_LA)
    moved = popart.observe(scene.popart, scene.batch.return_LB, scene.params)
    sigma = popart.sigma(moved, scene.params)
    lanes = len(q)
    named = {"gradient": gradient, "logits": logits, "q": q, "sigma": sigma, "priority": result.priority_LB}
    named |= {f"values.{k}": v for k, v in flatten(result.values).items()}
    named |= {"loss": result.loss_L, "c51": result.c51_L, "mse": result.mse_L, "clamped": result.clamped_high_L}
    named |= flatten(
        health.observe(
            scene.signals, result.values, result.loss_L, lane_norm(gradient), result.loss_L, sigma, scene.params
        )
    )
    named |= flatten(
        support.observe(
            scene.support,
            result.values.reach_low_L,
            result.values.reach_high_L,
            result.clamped_low_L,
            result.clamped_high_L,
            scene.params,
        )
    )
    steps_L = scene.signals.steps_L + 3
    named["action"] = collect(q, scene.obs.hold_only, scene.params, sigma, scene.seed_L[:lanes], steps_L)
    return named


def _with_seeds(scene: Any, index: list[int]) -> Any:
    part = scene.lanes(index)
    object.__setattr__(part, "seed_L", torch.tensor(index) + 900)
    return part


@pytest.mark.parametrize("temporal", ["flat", "attention"])
def test_a_lane_has_the_same_bits_at_any_group_size_and_slot(scene_of: Any, temporal: str) -> None:
    everyone = scene_of(lanes=32, rows=64, temporal=temporal, c51_alpha_max=0.7, support_period=1, hidden=24)
    whole = _step(_with_seeds(everyone, list(range(32))))
    for size in SIZES:
        for first in {0, 5, 32 - size} if size < 32 else {0}:
            index = [(first + 7 * i) % 32 for i in range(size)]
            part = _step(_with_seeds(everyone, index))
            for name, value in part.items():
                assert torch.equal(value, whole[name][index]), (name, size, first)


def test_a_nan_lane_changes_no_bit_of_its_neighbours(scene_of: Any) -> None:
    scene = scene_of(lanes=3, c51_alpha_max=0.7, support_period=1)
    clean = _step(_with_seeds(scene, [0, 1, 2]))
    broken = scene.online_LD.clone()
    broken[1] = torch.nan
    rewards = scene.batch.return_LB.clone()
    rewards[1] = torch.nan
    sick = replace(scene, online_LD=broken, batch=replace(scene.batch, return_LB=rewards))
    for name, value in _step(_with_seeds(sick, [0, 1, 2])).items():
        assert torch.equal(value[[0, 2]], clean[name][[0, 2]]), name
        if name == "gradient":
            assert torch.isnan(value[1]).any()
