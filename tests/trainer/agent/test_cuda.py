"""The agent on an NVIDIA GPU: captured as a graph, bit-identical in any slot and beside a NaN lane."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.agent.branches import ACTIONS
from trainer.agent.explore import collect
from trainer.lanes.tree import map_tensors

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def _on_gpu(scene: Any) -> Any:
    moved = {}
    for field in fields(scene):
        value = getattr(scene, field.name)
        movable = isinstance(value, Tensor) or (is_dataclass(value) and field.name != "shape")
        moved[field.name] = map_tensors(lambda tensor: tensor.cuda(), value) if movable else value
    return type(scene)(**moved)


@pytest.mark.parametrize("temporal", ["flat", "attention"])
def test_loss_and_gradient_can_be_captured_and_replayed(scene_of: Any, temporal: str) -> None:
    scene = _on_gpu(scene_of(lanes=4, temporal=temporal))
    leaf_LD = scene.online_LD.clone().requires_grad_()

    def step() -> Tensor:
        gradient: Tensor = torch.autograd.grad(scene.loss(online_LD=leaf_LD).loss, leaf_LD)[0]
        return gradient

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for _ in range(3):
            eager = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, eager)
    assert torch.equal(step(), eager)


def test_a_captured_collect_step_draws_fresh_numbers_at_each_replay(params_of: Any) -> None:
    params = map_tensors(lambda tensor: tensor.cuda(), params_of(noise_sigma=1.0, epsilon_start=0.3))
    q = torch.zeros(1, 64, ACTIONS, device="cuda")
    hold_only = torch.zeros(1, 64, dtype=torch.bool, device="cuda")
    sigma, seed, step = torch.ones(1, device="cuda"), torch.tensor([5], device="cuda"), torch.tensor([0], device="cuda")
    collect(q, hold_only, params, sigma, seed, step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action = collect(q, hold_only, params, sigma, seed, step)
        step.add_(1)
    seen = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        seen.append(action.clone())
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_a_lane_keeps_its_bits_in_another_slot_and_beside_nan(scene_of: Any) -> None:
    scene = scene_of(lanes=4)
    whole, _ = _on_gpu(scene).gradient()
    turned, _ = _on_gpu(scene.lanes([2, 3, 0, 1])).gradient()
    assert torch.equal(whole[[2, 3, 0, 1]], turned)
    broken = scene.online_LD.clone()
    broken[1] = torch.nan
    sick, _ = _on_gpu(scene).gradient(online_LD=broken.cuda())
    assert torch.equal(sick[[0, 2, 3]], whole[[0, 2, 3]])


def test_the_gpu_agrees_with_the_cpu(scene_of: Any) -> None:
    scene = scene_of(lanes=2, c51_alpha_max=0.5)
    slow, a = scene.gradient()
    fast, b = _on_gpu(scene).gradient()
    torch.testing.assert_close(fast.cpu(), slow, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(b.priority_LB.cpu(), a.priority_LB, atol=1e-4, rtol=1e-3)
