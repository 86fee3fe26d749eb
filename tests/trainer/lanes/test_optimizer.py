"""Adam against torch's own, clipping and soft update per lane, and lanes that do not touch each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trainer.lanes.optimizer import Adam, adam_state, adam_step_, clip_, soft_update_

D = 192


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gradients(lanes: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(lanes, D, generator=generator) * torch.logspace(-3, 2, D)


def test_first_step_moves_every_parameter_by_the_rate_against_its_gradient() -> None:
    params = torch.zeros(1, 64)
    grad = torch.full((1, 64), 0.25)
    grad[0, 32:] = -4.0
    adam_step_(params, grad, adam_state(params), column(0.1), column(0.9), column(0.999), column(1e-12))
    expected = torch.full((1, 64), -0.1)
    expected[0, 32:] = 0.1
    torch.testing.assert_close(params, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("decay", [None, 0.02])
def test_each_lane_follows_torch_with_its_own_numbers(decay: float | None) -> None:
    lr, beta1, beta2, eps = [1e-3, 3e-2], [0.9, 0.8], [0.999, 0.95], [1e-8, 1e-4]
    ours = torch.linspace(-1, 1, 2 * D).reshape(2, D).clone()
    theirs = [ours[lane].clone().requires_grad_() for lane in range(2)]
    kind = torch.optim.Adam if decay is None else torch.optim.AdamW
    optimizers = [
        kind([p], lr=lr[i], betas=(beta1[i], beta2[i]), eps=eps[i], weight_decay=0.0 if decay is None else decay)
        for i, p in enumerate(theirs)
    ]
    state = adam_state(ours)
    decay_L = None if decay is None else column(decay, decay)
    for step in range(50):
        grad = gradients(2, step)
        for lane, optimizer in enumerate(optimizers):
            theirs[lane].grad = grad[lane].clone()
            optimizer.step()
        adam_step_(ours, grad, state, column(*lr), column(*beta1), column(*beta2), column(*eps), decay_L)
    torch.testing.assert_close(ours, torch.stack([p.detach() for p in theirs]), rtol=2e-5, atol=2e-6)


def test_a_lane_that_joins_late_gets_the_bias_correction_of_its_own_first_step() -> None:
    params = torch.zeros(2, 64)
    state = adam_state(params)
    numbers = (column(0.1, 0.1), column(0.9, 0.9), column(0.999, 0.999), column(1e-12, 1e-12))
    for _ in range(5):
        adam_step_(params, torch.ones(2, 64), state, *numbers)
    for tensor in (params, state.moment1_LD, state.moment2_LD):
        tensor[1] = 0
    for power in (state.beta1_power_L, state.beta2_power_L):
        power[1] = 1
    adam_step_(params, torch.full((2, 64), 7.0), state, *numbers)
    torch.testing.assert_close(params[1], torch.full((64,), -0.1), rtol=1e-6, atol=0)


def test_a_spike_clips_its_own_lane_alone() -> None:
    grad = torch.full((3, 64), 0.5)
    grad[1] *= 1e6
    before = grad.clone()
    norms = clip_(grad, column(10.0, 10.0, 10.0))
    assert norms.tolist() == [4.0, 4e6, 4.0]
    assert torch.equal(grad[[0, 2]], before[[0, 2]])
    torch.testing.assert_close(grad[1].norm(), torch.tensor(10.0))


def test_clipping_takes_a_maximum_per_lane_and_passes_normal_gradients_untouched() -> None:
    grad = torch.full((2, 64), 0.5)
    clip_(grad, column(2.0, 100.0))
    torch.testing.assert_close(grad[0], torch.full((64,), 0.25))
    assert torch.equal(grad[1], torch.full((64,), 0.5))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_broken_gradient_leaves_the_bits_of_other_lanes_alone(poison: float) -> None:
    results = []
    for broken in (False, True):
        params, target = torch.ones(3, D), torch.zeros(3, D)
        state = adam_state(params)
        for step in range(3):
            grad = gradients(3, step)
            if broken:
                grad[1, 5] = poison
            clip_(grad, column(1.0, 1.0, 1.0))
            adam_step_(params, grad, state, *(column(*[x] * 3) for x in (1e-3, 0.9, 0.999, 1e-8)))
            soft_update_(target, params, column(0.1, 0.1, 0.1))
        results.append(torch.stack((params, target)))
    assert torch.equal(results[0][:, [0, 2]], results[1][:, [0, 2]])
    assert results[1][:, 1].isnan().any()


def test_soft_update_mixes_by_tau_and_copies_exactly_at_one() -> None:
    params, target = torch.full((3, 64), 0.3), torch.full((3, 64), 1.0e8)
    soft_update_(target, params, column(0.0, 0.5, 1.0))
    assert target[:, 0].tolist() == [1.0e8, 5.0e7, params[2, 0].item()]


@pytest.mark.parametrize("lanes", [1, 2, 3, 8, 32])
def test_a_lane_trains_to_the_same_bits_at_any_group_size_and_slot_beside_nan(lanes: int) -> None:
    def train(size: int, slot: int) -> Tensor:
        params, target = torch.full((size, D), float("nan")), torch.full((size, D), float("nan"))
        params[slot], target[slot] = torch.linspace(-1, 1, D), 0.0
        state = adam_state(params)
        for step in range(4):
            grad = torch.full((size, D), float("nan"))
            grad[slot] = gradients(1, step)[0]
            norms = clip_(grad, column(*[3.0] * size))
            adam_step_(params, grad, state, *(column(*[x] * size) for x in (1e-3, 0.9, 0.999, 1e-8, 1e-2)))
            soft_update_(target, params, column(*[0.05] * size))
        return torch.cat((params[slot], target[slot], state.moment2_LD[slot], norms[slot, None]))

    for slot in {0, lanes // 2, lanes - 1}:
        assert torch.equal(train(lanes, slot), train(1, 0))


@pytest.mark.cuda
def test_a_captured_step_equals_the_eager_one() -> None:
    numbers = [column(x, x).cuda() for x in (1e-3, 0.9, 0.999, 1e-8)]
    eager, captured = torch.ones(2, D, device="cuda"), torch.ones(2, D, device="cuda")
    eager_state, state, grad = adam_state(eager), adam_state(captured), gradients(2, 0).cuda()

    def step_(params: Tensor, own: Adam) -> None:
        own_grad = grad.clone()
        clip_(own_grad, numbers[0] * 1000)
        adam_step_(params, own_grad, own, *numbers)

    scratch = torch.ones_like(captured)
    step_(scratch, adam_state(scratch))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step_(captured, state)
    for _ in range(3):
        graph.replay()
        step_(eager, eager_state)
    assert torch.equal(eager, captured)
