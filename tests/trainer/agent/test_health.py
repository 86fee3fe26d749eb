"""Health is near 0 for a collapsed net, near 1 for a trained one, and finite always."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.agent import health as health_
from trainer.agent.config import AgentConfig
from trainer.agent.distribution import ValueStatistics
from trainer.agent.network import layout
from trainer.agent.params import AgentParams
from trainer.lanes.ops import lane_norm
from trainer.lanes.optimizer import adam_state, adam_step_
from trainer.lanes.tree import stack_dynamic


def _health(params: Any, gap: float, gradient: float, diversity: float, sigma: float = 1.0) -> float:
    gap_L, gradient_L, diversity_L, sigma_L = torch.tensor(
        [[gap], [gradient], [diversity], [sigma]], dtype=torch.float64
    )
    return float(health_.health(gap_L, gradient_L, diversity_L, sigma_L, params))


def test_health_by_hand(params_of: Any) -> None:
    params = params_of(health_gap=0.1, health_diversity=0.5, health_gradient_low=0.01, health_gradient_high=10.0)
    assert _health(params, 1.0, 1.0, 1.0) == 1.0
    assert _health(params, 0.05, 1.0, 1.0) == 0.5
    assert _health(params, 1.0, 0.005, 0.5) == 0.75  # gradient half alive
    assert _health(params, 1.0, 20.0, 0.25) == 0.5  # gradient twice too large, half the diversity
    assert _health(params, 0.0, 1.0, 1.0) == 0.0
    assert _health(params, 0.1, 1.0, 1.0, sigma=4.0) == 0.25


@settings(max_examples=100, deadline=None)
@given(*[st.one_of(st.floats(0), st.just(float("nan")), st.just(float("inf")))] * 3)
def test_health_is_always_between_zero_and_one(gap: float, gradient: float, diversity: float) -> None:
    params = stack_dynamic(AgentParams, [AgentConfig()], torch.device("cpu"))
    assert 0.0 <= _health(params, gap, gradient, diversity) <= 1.0


def test_what_is_not_finite_counts_as_zero(params_of: Any) -> None:
    assert _health(params_of(), float("nan"), 1.0, 1.0) == 0.0
    assert _health(params_of(), 1.0, float("nan"), 1.0) == 0.0


def _values(gap: list[float]) -> ValueStatistics:
    gap_L = torch.tensor(gap)
    others = dict.fromkeys(("branch_gap_L", "mean_L", "diversity_L", "reach_low_L", "reach_high_L"), gap_L)
    return ValueStatistics(gap_L=gap_L, variance_L=gap_L * 2, **others)


def test_signals_start_as_plain_means_and_then_fade(params_of: Any) -> None:
    params = params_of(health_rate=0.5)
    signals = health_.fresh(1, torch.device("cpu"))
    one = torch.ones(1)
    for gap in (4.0, 2.0, 7.0):
        signals = health_.observe(signals, _values([gap]), one * gap, one * gap, one * -gap, one.double(), params)
    assert float(signals.q_gap_L) == 5.0  # 4, then (4 + 2) / 2 = 3, then (3 + 7) / 2
    assert float(signals.q_variance_L) == 10.0
    assert float(signals.reward_L) == -5.0
    assert float(signals.loss_L) == 5.0
    assert float(signals.gradient_slow_L) == pytest.approx(13 / 3)
    assert float(signals.stability_L) == pytest.approx(13 / 15)
    assert signals.steps_L.tolist() == [3]


def test_a_collapsed_net_is_near_zero(scene_of: Any) -> None:
    """All advantages zero: every action looks the same in every state."""
    scene = scene_of(lanes=2)
    online = scene.online_LD.clone()
    layout(scene.shape).views(online)["head.advantage"].zero_()
    signals = scene.signals
    for _ in range(5):
        gradient, result = scene.gradient(online_LD=online)
        norm = lane_norm(gradient)
        signals = health_.observe(
            signals, result.values, result.loss_L, norm, scene.batch.return_LB.mean(-1), torch.ones(2), scene.params
        )
    assert float(signals.health_L.max()) < 0.05


def test_a_trained_net_is_near_one(scene_of: Any) -> None:
    """A bandit whose best direction is told by one feature: long where it is positive, short where it is not."""
    scene = scene_of(lanes=1, rows=256)
    up = (scene.obs.features[:, :, -1, 0] > 0).long()
    better = torch.where(
        scene.batch.action_LB4[..., 0] == 2, 1.0, torch.where(scene.batch.action_LB4[..., 0] == 0, -1.0, 0.0)
    )
    batch = type(scene.batch)(
        action_LB4=scene.batch.action_LB4,
        return_LB=0.5 * better * (2 * up - 1),
        discount_LB=torch.zeros_like(scene.batch.discount_LB),
        weight_LB=torch.ones_like(scene.batch.weight_LB),
    )
    online = scene.online_LD.clone()
    state = adam_state(online)
    lr = torch.tensor([3e-3]).double()
    signals, params = scene.signals, scene.params
    for _ in range(200):
        gradient, result = scene.gradient(online_LD=online, batch=batch)
        signals = health_.observe(
            signals, result.values, result.loss_L, lane_norm(gradient), batch.return_LB.mean(-1), torch.ones(1), params
        )
        adam_step_(online, gradient, state, lr, params.adam_beta1_L, params.adam_beta2_L, params.adam_epsilon_L)
    assert float(signals.q_gap_L) > 0.1
    assert float(signals.health_L) > 0.95
