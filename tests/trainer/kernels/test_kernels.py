"""Every kernel against its eager twin."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from trainer.agent.branches import ACTIONS, chosen
from trainer.agent.distribution import expectation, moments
from trainer.agent.losses import value_loss
from trainer.agent.network import (
    NetworkShape,
    _eager_chosen,
    _fused_chosen,
    _fused_moments,
    duelling,
    forward,
    initialise,
    layout,
)
from trainer.agent.projection import bellman, overflow, project
from trainer.env.actions import BRANCHES
from trainer.lanes.random import words
from trainer.replay.priorities import empty_priorities, insert_, put_

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if interpreted else [pytest.mark.cuda]
DEVICE = "cpu" if interpreted else "cuda"
HALF = torch.float32 if interpreted else torch.bfloat16  # the interpreter's products know no bfloat16
SHAPES = (
    [(2, 64, 52), (1, 64, 12), (3, 128, 51)] if interpreted else [(3, 128, 52), (1, 64, 12), (5, 512, 51), (2, 64, 200)]
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def actions(lanes: int, rows: int) -> Tensor:
    drawn = [(draw(lanes, rows, seed=b).abs() * 7).long() % size for b, size in enumerate(BRANCHES)]
    return torch.stack(drawn, dim=-1)


def uneven_atoms(lanes: int, count: int) -> Tensor:
    atoms = torch.linspace(-1.0, 2.0, count).expand(lanes, -1).clone()
    atoms[:, count // 2 :] *= 1.5
    return (atoms * torch.arange(1, lanes + 1).unsqueeze(-1)).to(DEVICE)


@pytest.mark.parametrize(("lanes", "rows", "count"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_projection_of_logits(lanes: int, rows: int, count: int, dtype: torch.dtype) -> None:
    from trainer.kernels.projection import project_logits

    logits = (draw(lanes, rows, 4, count) * 3).to(dtype)
    returns, discount = draw(lanes, rows, seed=1) * 2, draw(lanes, rows, seed=2).abs().clamp(max=1.0)
    discount[:, :3] = 0.0  # terminal
    atoms = uneven_atoms(lanes, count)
    returns[:, 0] = atoms[:, 1]  # exactly on an atom
    probability = torch.softmax(logits.double(), dim=-1)
    position = bellman(returns.double(), discount.double(), atoms.double())
    projected, beyond = project_logits(logits, returns, discount, atoms)
    twin = overflow(probability, position, atoms.double())
    torch.testing.assert_close(projected, project(probability, position, atoms.double()).float(), atol=2e-6, rtol=1e-4)
    for column, name in enumerate(("below_LBG", "above_LBG", "mean_LBG", "square_LBG")):
        torch.testing.assert_close(beyond[..., column], getattr(twin, name).float(), atol=1e-5, rtol=1e-4)


def test_a_reward_that_is_no_number_spoils_its_own_rows_only() -> None:
    from trainer.kernels.projection import project_logits

    logits, atoms = draw(2, 64, 4, 52), uneven_atoms(2, 52)
    returns, discount = draw(2, 64, seed=1), torch.ones(2, 64, device=DEVICE)
    clean, _ = project_logits(logits, returns, discount, atoms)
    returns[1, 5] = float("nan")
    sick, _ = project_logits(logits, returns, discount, atoms)
    assert sick[1, 5].isnan().all()
    assert torch.equal(sick[0], clean[0])
    assert torch.equal(sick[1, 6:], clean[1, 6:])


@pytest.mark.parametrize(("lanes", "rows", "count"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_of_chosen_actions_and_their_gradient(lanes: int, rows: int, count: int, dtype: torch.dtype) -> None:
    from trainer.kernels.loss import chosen_losses

    pitch = -(-count // 8) * 8
    flat, bias = draw(lanes, rows, ACTIONS * pitch).to(dtype).requires_grad_(), draw(lanes, ACTIONS * pitch, seed=9)
    action, bias = actions(lanes, rows), bias.to(dtype)
    target = torch.softmax(draw(lanes, rows, 4, count, seed=3), dim=-1)
    atoms, share = uneven_atoms(lanes, count), torch.linspace(0.0, 0.3, lanes).to(DEVICE)
    alpha, sigma = torch.full((lanes,), 0.7, device=DEVICE), torch.full((lanes,), 1.3, device=DEVICE)
    weight = draw(lanes, rows, seed=4).abs()

    exact = flat.detach().double().requires_grad_()
    summed = exact + bias.double().unsqueeze(1)
    logits = chosen(summed.view(lanes, rows, ACTIONS, pitch)[..., :count], action)
    log_probability = torch.log_softmax(logits, dim=-1)
    smoothed = (1 - share).view(-1, 1, 1, 1) * target + share.view(-1, 1, 1, 1) / count
    cross = -(smoothed * log_probability).sum(-1)
    off = ((log_probability.exp() - target) * atoms[:, None, None]).sum(-1)
    loss = ((0.7 * cross + 0.3 * 0.5 * (off / 1.3) ** 2).sum(-1) * weight).sum()
    (expected,) = torch.autograd.grad(loss, exact)

    entropy, error, mean, _square = chosen_losses(flat, bias, action, target, share, atoms)
    torch.testing.assert_close(entropy.double(), cross, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(error.double(), off, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(
        mean, (log_probability.exp() * atoms[:, None, None]).sum(-1).float(), atol=2e-5, rtol=1e-4
    )
    ours = ((0.7 * entropy + 0.3 * 0.5 * (error / 1.3) ** 2).sum(-1) * weight).sum()
    (grad,) = torch.autograd.grad(ours, flat)
    loose = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(grad.double(), expected, atol=loose, rtol=loose)
    twin = value_loss(logits.float(), target, smoothed, atoms, alpha, sigma)
    torch.testing.assert_close(
        (0.7 * entropy + 0.3 * 0.5 * (error / 1.3) ** 2).sum(-1), twin.loss_LB, atol=1e-4, rtol=1e-4
    )


def shape_of(hidden: int, blocks: int, atoms: int, portfolio: int = 7) -> NetworkShape:
    return NetworkShape(
        features=12, portfolio=portfolio, window=1, flow=(), hidden=hidden, blocks=blocks, atoms=atoms,
        bottleneck_dim=9, flow_dim=4, temporal="flat", attention_heads=1, attention_dim=8,
    )  # fmt: skip


@dataclass(frozen=True)
class Seen:
    features: Tensor
    portfolio: Tensor
    hold_only: Tensor


HEADS = (
    [(2, 64, 64, 1, 12), (1, 128, 64, 2, 21)]
    if interpreted
    else [(3, 128, 64, 2, 52), (2, 64, 128, 1, 51), (5, 512, 256, 2, 52), (1, 64, 256, 3, 101), (2, 192, 256, 0, 12)]
)


def network(lanes: int, rows: int, hidden: int, blocks: int, atoms: int) -> tuple[NetworkShape, Tensor, Seen, Tensor]:
    shape = shape_of(hidden, blocks, atoms, portfolio=150 if lanes == 1 else 7)  # more inputs than a tile takes at once
    flat = initialise(shape, torch.arange(lanes) + 1, torch.device("cpu")).to(DEVICE)
    flat = flat + 0.05 * draw(*flat.shape, seed=5)  # biases and gains of no special value
    obs = Seen(
        draw(lanes, rows, 1, shape.features, seed=6),
        draw(lanes, rows, shape.portfolio, seed=7),
        torch.zeros(lanes, rows, dtype=torch.bool, device=DEVICE),
    )
    return shape, flat, obs, uneven_atoms(lanes, atoms)


def error(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("lanes", "rows", "hidden", "blocks", "atoms"), HEADS)
def test_values_of_all_actions(lanes: int, rows: int, hidden: int, blocks: int, atoms: int) -> None:
    shape, flat, obs, atoms_LA = network(lanes, rows, hidden, blocks, atoms)
    weights = layout(shape).views(flat.to(HALF))
    exact = expectation(forward(shape, layout(shape).views(flat.double()), obs), atoms_LA)
    twin = expectation(forward(shape, weights, obs), atoms_LA)
    ours, square = _fused_moments(shape, weights, obs, atoms_LA)
    assert error(ours, exact) < max(1.5 * error(twin, exact), 5e-3)
    deviation = (square - ours * ours).clamp(min=0.0).sqrt()
    assert error(deviation, moments(forward(shape, weights, obs), atoms_LA)[1].double()) < 1e-2


@pytest.mark.parametrize(("lanes", "rows", "hidden", "blocks", "atoms"), HEADS)
def test_chosen_logits(lanes: int, rows: int, hidden: int, blocks: int, atoms: int) -> None:
    """Beside float64: no further away than the eager twin of the same precision."""
    shape, flat, obs, _ = network(lanes, rows, hidden, blocks, atoms)
    action, weights = actions(lanes, rows), layout(shape).views(flat.to(HALF))
    exact = _eager_chosen(shape, layout(shape).views(flat.double()), obs, action)
    twin, ours = (made(shape, weights, obs, action) for made in (_eager_chosen, _fused_chosen))
    assert error(ours, exact) < max(1.5 * error(twin, exact), 5e-3)


def test_rows_and_lanes_of_the_heads_do_not_touch_each_other() -> None:
    shape, flat, obs, _ = network(3, 128, 64, 2, 12)
    action, weights = actions(3, 128), layout(shape).views(flat.to(HALF))
    clean = _fused_chosen(shape, weights, obs, action)
    obs.portfolio[1, 70] = float("nan")
    sick = _fused_chosen(shape, weights, obs, action)
    assert sick[1, 70].isnan().all()
    sick[1, 70] = clean[1, 70]
    assert torch.equal(sick, clean)


@pytest.mark.parametrize(("lanes", "rows", "atoms"), [(2, 65, 12), (3, 257, 52), (1, 129, 51)])
def test_duelling_streams_are_combined_and_their_gradient_taken_apart(lanes: int, rows: int, atoms: int) -> None:
    from trainer.kernels.duelling import combine

    hidden = rows - 1
    both = draw(lanes, rows * 14 * atoms + hidden + 64)  # all of them lie in one buffer, as in the network's
    weights = {
        "head.value": both[:, : rows * atoms].view(lanes, rows, atoms).requires_grad_(),
        "head.advantage": both[:, rows * atoms : rows * 14 * atoms].view(lanes, rows, ACTIONS, atoms).requires_grad_(),
        "head.gain": both[:, rows * 14 * atoms : rows * 14 * atoms + hidden].requires_grad_(),
    }
    exact = {name: weight.detach().cpu().double().requires_grad_() for name, weight in weights.items()}
    made, expected = combine(*weights.values()), duelling(exact)
    made, expected = (each.unflatten(2, (ACTIONS, -1)) for each in (made, expected))
    torch.testing.assert_close(made[..., :atoms].double().cpu(), expected[..., :atoms], atol=1e-6, rtol=1e-6)
    assert not made[..., atoms:].any()
    pull = draw(*made.shape[:3], atoms, seed=1)
    ours = torch.autograd.grad((made[..., :atoms] * pull).sum(), list(weights.values()))
    theirs = torch.autograd.grad((expected[..., :atoms] * pull.double().cpu()).sum(), list(exact.values()))
    for grad, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(grad.double().cpu(), other, atol=1e-4, rtol=1e-5)


def test_random_words_have_the_bits_of_the_cpu() -> None:
    from trainer.kernels.philox import philox_words

    seed_L = torch.tensor([1, 2**62 + 12345, 7])
    step_L = torch.tensor([0, 5, 2**40 + 3])
    for wanted in ([(0, 3)], [(3, 512), (4, 1024), (5, 640)], [(1, 4), (2, 4), (6, 8), (7, 1000)]):
        blocks = [-(-count // 4) for _, count in wanted]
        made = philox_words(seed_L.to(DEVICE), step_L.to(DEVICE), [stream for stream, _ in wanted], blocks).cpu()
        parts = made.split([4 * block for block in blocks], dim=1)
        for part, expected, (_, count) in zip(parts, words(seed_L, step_L, wanted), wanted, strict=True):
            assert torch.equal(part[:, :count], expected)


@pytest.mark.parametrize(("lanes", "capacity", "batch"), [(2, 300, 40), (3, 70_000, 257), (1, 4096, 1500)])
def test_draws_and_new_priorities_are_those_of_the_cpu(lanes: int, capacity: int, batch: int) -> None:
    from trainer.kernels import priorities as kernels

    cpu = empty_priorities(lanes, capacity, torch.device("cpu"))
    insert_(cpu, torch.zeros(lanes, dtype=torch.int64), capacity - 7)
    ours = [tensor.to(DEVICE, copy=True) for tensor in (cpu.leaf_LN, cpu.block_LM, cpu.top_LC, cpu.maximum_L)]
    leaf, block, top, maximum = ours
    generator = torch.Generator().manual_seed(1)
    size = torch.full((lanes,), capacity - 7)
    for _ in range(3):
        index = (torch.rand(lanes, batch, generator=generator) ** 3 * (capacity - 7)).long()  # some of them twice
        value = torch.rand(lanes, batch, generator=generator) ** 4 * 50
        value[:, ::5] = 0.0
        put_(cpu, index, value)
        kernels.put_(leaf, maximum, index.to(DEVICE), value.to(DEVICE))
        kernels.sum_up_(leaf, block, top, (index // 64).to(DEVICE))
        assert torch.equal(leaf.cpu(), cpu.leaf_LN)
        assert torch.equal(maximum.cpu(), cpu.maximum_L)
        torch.testing.assert_close(block.cpu(), cpu.block_LM, rtol=1e-14, atol=0.0)
        torch.testing.assert_close(top.cpu(), cpu.top_LC, rtol=1e-14, atol=0.0)
        fraction = (torch.rand(lanes, batch, generator=generator, dtype=torch.float64) + torch.arange(batch)) / batch
        found = kernels.find(fraction.to(DEVICE), top, block, leaf, size.to(DEVICE)).cpu()
        point = fraction * cpu.top_LC.sum(-1, keepdim=True)
        upto = cpu.leaf_LN.double().cumsum(-1)
        expected = torch.searchsorted(upto, point, right=True)
        near = (upto.gather(1, found) - point).abs() / point < 1e-9  # on a boundary rounding decides
        assert ((found == expected) | near).all()
        assert (found == expected).double().mean() > 0.99
        assert (cpu.leaf_LN.gather(1, found) > 0).all()


def test_an_empty_lane_gives_its_first_leaf() -> None:
    from trainer.kernels import priorities as kernels

    empty = empty_priorities(2, 300, torch.device(DEVICE))
    size = torch.tensor([0, 1], device=DEVICE)
    fraction = torch.full((2, 5), 0.5, dtype=torch.float64, device=DEVICE)
    found = kernels.find(fraction, empty.top_LC, empty.block_LM, empty.leaf_LN, size)
    assert not found.any()
