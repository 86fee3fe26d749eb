"""PopArt: statistics, warm-up, floor, and outputs that do not move."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.agent import popart as popart_
from trainer.agent.distribution import expectation
from trainer.agent.network import forward, layout


def test_the_first_statistics_are_those_of_all_rewards_seen(params_of: Any) -> None:
    params = params_of(popart_rate=0.01)
    rewards = torch.tensor([[1.0, 3.0], [2.0, 8.0], [-4.0, 0.5]])
    popart = popart_.fresh(1, torch.device("cpu"))
    for pair in rewards:
        popart = popart_.observe(popart, pair.unsqueeze(0), params)
    assert float(popart.mean_L) == pytest.approx(float(rewards.mean()))
    assert float(popart.variance_L) == pytest.approx(float(rewards.var(unbiased=False)))
    assert float(popart_.sigma(popart, params)) == pytest.approx(float(rewards.std(unbiased=False)))


def test_later_statistics_follow_a_drift_at_the_given_rate(params_of: Any) -> None:
    params = params_of(popart_rate=0.5)
    popart = popart_.fresh(1, torch.device("cpu"))
    for value in (0.0, 0.0, 8.0):
        popart = popart_.observe(popart, torch.full((1, 4), value), params)
    assert float(popart.mean_L) == 4.0
    assert float(popart.variance_L) == 16.0


def test_sigma_is_one_until_the_warm_up_is_over(params_of: Any) -> None:
    params = params_of(popart_warmup=2)
    popart = popart_.fresh(1, torch.device("cpu"))
    seen = [float(popart_.sigma(popart, params))]
    for _ in range(2):
        popart = popart_.observe(popart, torch.tensor([[-3.0, 3.0]]), params)
        seen.append(float(popart_.sigma(popart, params)))
    assert seen == [1.0, 1.0, 3.0]


def test_the_variance_has_a_floor(params_of: Any) -> None:
    params = params_of(popart_floor=1e-8)
    popart = popart_.observe(popart_.fresh(1, torch.device("cpu")), torch.full((1, 4), 0.7), params)
    assert float(popart_.sigma(popart, params)) == pytest.approx(1e-4)


def test_outputs_of_both_networks_are_unchanged_when_statistics_move(scene_of: Any) -> None:
    """Raw values come from logits and a raw support; sigma enters the loss only. Denormalised = normalised x sigma."""
    scene = scene_of(c51_alpha_max=0.5)
    moved = popart_.observe(scene.popart, torch.tensor([[-50.0, 50.0], [-2.0, 9.0]]), scene.params)
    assert not torch.equal(popart_.sigma(scene.popart, scene.params), popart_.sigma(moved, scene.params))
    for flat_LD in (scene.online_LD, scene.target_LD):
        logits = forward(scene.shape, layout(scene.shape).views(flat_LD), scene.obs)
        raw = expectation(logits, scene.support.atoms_LA).double()
        for popart in (scene.popart, moved):
            scale = popart_.sigma(popart, scene.params).reshape(-1, 1, 1)
            normalised = expectation(logits, (scene.support.atoms_LA / scale[:, 0]).float()).double()
            torch.testing.assert_close(normalised * scale, raw, atol=1e-5, rtol=1e-5)
    assert torch.equal(scene.loss().values.gap_L, scene.loss(popart=moved).values.gap_L)
    assert not torch.equal(scene.loss().loss_L, scene.loss(popart=moved).loss_L)


def test_a_lane_starts_clean_whatever_its_neighbours_saw(params_of: Any) -> None:
    fresh = popart_.fresh(3, torch.device("cpu"))
    assert fresh.updates_L.tolist() == [0, 0, 0]
    assert popart_.sigma(fresh, params_of(lanes=3)).tolist() == [1.0, 1.0, 1.0]
    seen = popart_.observe(fresh, torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [1.0, 2.0]]), params_of(lanes=3))
    assert torch.equal(seen.variance_L[0], seen.variance_L[2])
    assert torch.isfinite(seen.variance_L[[0, 2]]).all()
