"""Double-DQN targets against a loop oracle, gradient scale, and what must not enter priorities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.agent.network import forward, layout
from trainer.agent.td import td_targets
from trainer.env.actions import BRANCHES


def _targets(scene: Any, **changes: Any) -> Any:
    scene = replace(scene, **changes)
    plan = layout(scene.shape)
    return td_targets(
        scene.shape,
        plan.views(scene.online_LD),
        plan.views(scene.target_LD),
        scene.next_obs,
        scene.batch,
        scene.support,
        scene.params,
    )


def _oracle(scene: Any, lane: int, row: int, *, chooser: Tensor, valuer: Tensor) -> Tensor:
    """Target distributions [G, A] in float64: ``chooser`` picks the actions, ``valuer`` gives their values."""
    plan = layout(scene.shape)
    probability = [
        torch.softmax(forward(scene.shape, plan.views(flat), scene.next_obs)[lane, row].double(), dim=-1)
        for flat in (chooser, valuer)
    ]
    atoms = scene.support.atoms_LA[lane].double()
    result = []
    start = 0
    for branch, size in enumerate(BRANCHES):
        best = int((probability[0][start : start + size] @ atoms).argmax())
        if branch == 0 and bool(scene.next_obs.hold_only[lane, row]):
            best = 1
        mass = torch.zeros(len(atoms), dtype=torch.float64)
        for p, z in zip(probability[1][start + best], atoms, strict=True):
            x = scene.batch.return_LB[lane, row].double() + scene.batch.discount_LB[lane, row].double() * z
            x = x.clamp(atoms[0], atoms[-1])
            upper = int(torch.searchsorted(atoms, x).clamp(1, len(atoms) - 1))
            share = (x - atoms[upper - 1]) / (atoms[upper] - atoms[upper - 1])
            mass[upper - 1] += p * (1 - share)
            mass[upper] += p * share
        result.append(mass)
        start += size
    return torch.stack(result)


def test_actions_come_from_the_online_network_and_values_from_the_target_network(scene_of: Any) -> None:
    scene = scene_of()
    probability = _targets(scene).probability_LBGA
    differs = 0
    for lane in range(2):
        for row in range(16):
            right = _oracle(scene, lane, row, chooser=scene.online_LD, valuer=scene.target_LD)
            swapped = _oracle(scene, lane, row, chooser=scene.target_LD, valuer=scene.online_LD)
            torch.testing.assert_close(probability[lane, row].double(), right, atol=1e-5, rtol=0)
            differs += int((right - swapped).abs().max() > 1e-3)
    assert differs > 20


def test_target_mass_is_one_at_terminals_clamped_ends_and_everywhere(scene_of: Any) -> None:
    scene = scene_of()
    rewards = scene.batch.return_LB.clone()
    rewards[:, :8] = torch.tensor([-1e6, 1e6, -1.0, 1.0, 0.0, -5.0, 5.0, 1e-8])
    mass = _targets(scene, batch=replace(scene.batch, return_LB=rewards)).probability_LBGA.double().sum(-1)
    torch.testing.assert_close(mass, torch.ones_like(mass), atol=1e-6, rtol=0)


def test_a_terminal_transition_is_worth_its_reward_whatever_the_next_state(scene_of: Any) -> None:
    scene = scene_of()
    batch = replace(
        scene.batch, discount_LB=torch.zeros_like(scene.batch.discount_LB), return_LB=torch.full((2, 64), 0.25)
    )
    probability = _targets(scene, batch=batch).probability_LBGA
    mean = (probability * scene.support.atoms_LA.reshape(2, 1, 1, -1)).sum(-1)
    torch.testing.assert_close(mean, torch.full_like(mean, 0.25))
    assert int((probability > 1e-6).sum(-1).max()) <= 2


def test_the_bootstrap_uses_the_stored_discount_not_gamma(scene_of: Any) -> None:
    """gamma^n of the steps really taken; a truncated episode carries a discount and so bootstraps."""
    scene = scene_of(gamma=0.5)
    a = _targets(scene).probability_LBGA
    b = _targets(scene_of(gamma=0.99)).probability_LBGA
    assert torch.equal(a, b)
    shorter = replace(scene.batch, discount_LB=scene.batch.discount_LB * scene.batch.discount_LB)
    assert not torch.equal(_targets(scene, batch=shorter).probability_LBGA, a)


def test_next_states_that_allow_only_hold_are_valued_at_hold(scene_of: Any) -> None:
    scene = scene_of()
    forced = replace(scene.next_obs, hold_only=torch.ones_like(scene.next_obs.hold_only))
    free = replace(scene.next_obs, hold_only=torch.zeros_like(scene.next_obs.hold_only))
    held, best = _targets(scene, next_obs=forced).probability_LBGA, _targets(scene, next_obs=free).probability_LBGA
    assert torch.equal(held[:, :, 1:], best[:, :, 1:])
    assert not torch.equal(held[:, :, 0], best[:, :, 0])


def test_the_gradient_reaches_the_online_network_alone(scene_of: Any) -> None:
    scene = scene_of()
    online = scene.online_LD.clone().requires_grad_()
    target = scene.target_LD.clone().requires_grad_()
    scene.loss(online_LD=online, target_LD=target).loss.backward()
    assert online.grad is not None
    assert target.grad is None


def test_the_gradient_is_that_of_finite_differences(scene_of: Any) -> None:
    """Along one direction, at terminals: elsewhere the target's argmax would jump with the online network."""
    scene = scene_of(lanes=1, c51_alpha_max=0.5)
    scene = replace(scene, batch=replace(scene.batch, discount_LB=torch.zeros_like(scene.batch.discount_LB)))
    double = {"online_LD": scene.online_LD.double(), "target_LD": scene.target_LD.double()}
    gradient, _ = scene.gradient(**double)
    direction = torch.arange(gradient.shape[1], dtype=torch.float64).mul(1.7).sin().unsqueeze(0)
    step = 2e-4
    up = scene.loss(online_LD=double["online_LD"] + step * direction, target_LD=double["target_LD"]).loss
    down = scene.loss(online_LD=double["online_LD"] - step * direction, target_LD=double["target_LD"]).loss
    torch.testing.assert_close(
        (gradient * direction).sum().float(), ((up - down) / (2 * step)).float(), rtol=2e-2, atol=1e-3
    )


def test_a_batch_of_58_tiled_282_times_gives_the_same_gradient(scene_of: Any) -> None:
    scene = scene_of(lanes=1, rows=58, window=1)
    gradient, _ = scene.gradient()

    def tile(record: Any) -> Any:
        return type(record)(**{k: torch.cat([v] * 282, dim=1) for k, v in record.__dict__.items()})

    tiled, _ = scene.gradient(obs=tile(scene.obs), next_obs=tile(scene.next_obs), batch=tile(scene.batch))
    assert float((tiled - gradient).norm() / gradient.norm()) < 1e-5


def test_the_importance_weight_scales_the_loss_and_not_the_priority(scene_of: Any) -> None:
    scene = scene_of()
    heavy = replace(scene.batch, weight_LB=scene.batch.weight_LB * 2)
    plain, weighted = scene.loss(), scene.loss(batch=heavy)
    assert torch.equal(plain.priority_LB, weighted.priority_LB)
    torch.testing.assert_close(weighted.loss_L, plain.loss_L * 2)


def test_the_loss_is_the_sum_over_lanes_of_each_lanes_mean(scene_of: Any) -> None:
    scene = scene_of()
    result = scene.loss()
    torch.testing.assert_close(result.loss.detach(), result.loss_L.sum())
    torch.testing.assert_close(result.loss_L, (scene.batch.weight_LB * result.priority_LB).mean(-1))


def test_only_the_chosen_actions_and_the_shared_value_are_pulled(scene_of: Any) -> None:
    """Advantages of other branches' unchosen actions move through their branch mean alone."""
    scene = scene_of(lanes=1)
    action = torch.zeros_like(scene.batch.action_LB4)
    gradient, _ = scene.gradient(batch=replace(scene.batch, action_LB4=action))
    advantage = layout(scene.shape).views(gradient)["head.advantage"]
    torch.testing.assert_close(advantage[:, :, 1], advantage[:, :, 2])
    torch.testing.assert_close(advantage[:, :, 0], -3.0 * advantage[:, :, 1], atol=1e-6, rtol=1e-4)


def _pinned(scene: Any, side: int, outward: float) -> Any:
    """Both networks certain of the end atom, side x 1, in every state; discount 0.97: 0.03 outward keeps it there."""
    plan = layout(scene.shape)
    flat = torch.zeros_like(scene.online_LD)
    plan.views(flat)["head.value"][:, -1, -1 if side > 0 else 0] = 50.0
    everywhere = torch.full_like(scene.batch.return_LB, side * outward)
    everywhere[:, 0] += side  # one large reward clamps mass whatever the others do
    batch = replace(scene.batch, return_LB=everywhere, discount_LB=torch.full_like(everywhere, 0.97))
    result = scene.loss(online_LD=flat, target_LD=flat, batch=batch)
    return (result.clamped_low_L, result.clamped_high_L)[::-side]


@pytest.mark.parametrize("side", [1, -1])
def test_clamped_mass_asks_for_room_only_where_targets_lead_outwards(scene_of: Any, side: int) -> None:
    """A support that is too wide keeps mass at its end; widening it again would feed on itself."""
    scene = scene_of(support_spread=0.0)
    at_end, at_other_end = _pinned(scene, side, 0.05)
    assert at_end.tolist() == [1.0, 1.0]
    assert at_other_end.tolist() == [0.0, 0.0]
    assert _pinned(scene, side, -0.05)[0].tolist() == [0.0, 0.0]


def test_a_wide_return_asks_for_room_on_both_sides_though_its_mean_is_zero(scene_of: Any) -> None:
    """Mass piled up at both ends: the mean says nothing, the deviation does."""
    scene = scene_of(lanes=1)
    flat = torch.zeros_like(scene.online_LD)
    value = layout(scene.shape).views(flat)["head.value"]
    value[:, -1, 0] = value[:, -1, -1] = 50.0
    sign = torch.where(torch.arange(64) % 2 == 0, 1.0, -1.0).expand(1, 64)
    batch = replace(scene.batch, return_LB=sign.contiguous(), discount_LB=torch.full((1, 64), 0.97))
    result = scene.loss(online_LD=flat, target_LD=flat, batch=batch)
    torch.testing.assert_close(result.clamped_high_L, torch.tensor([0.25]))
    torch.testing.assert_close(result.clamped_low_L, torch.tensor([0.25]))
