"""Every kernel against its eager twin."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from trainer.agent.branches import ACTIONS, chosen
from trainer.agent.losses import value_loss
from trainer.agent.projection import bellman, overflow, project
from trainer.env.actions import BRANCHES

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if interpreted else [pytest.mark.cuda]
DEVICE = "cpu" if interpreted else "cuda"
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

    width = -(-ACTIONS * count // 8) * 8
    flat = draw(lanes, rows, width).to(dtype).requires_grad_()
    action = actions(lanes, rows)
    target = torch.softmax(draw(lanes, rows, 4, count, seed=3), dim=-1)
    atoms, share = uneven_atoms(lanes, count), torch.linspace(0.0, 0.3, lanes).to(DEVICE)
    alpha, sigma = torch.full((lanes,), 0.7, device=DEVICE), torch.full((lanes,), 1.3, device=DEVICE)
    weight = draw(lanes, rows, seed=4).abs()

    exact = flat.detach().double().requires_grad_()
    logits = chosen(exact[..., : ACTIONS * count].reshape(lanes, rows, ACTIONS, count), action)
    log_probability = torch.log_softmax(logits, dim=-1)
    smoothed = (1 - share).view(-1, 1, 1, 1) * target + share.view(-1, 1, 1, 1) / count
    cross = -(smoothed * log_probability).sum(-1)
    off = ((log_probability.exp() - target) * atoms[:, None, None]).sum(-1)
    loss = ((0.7 * cross + 0.3 * 0.5 * (off / 1.3) ** 2).sum(-1) * weight).sum()
    (expected,) = torch.autograd.grad(loss, exact)

    entropy, error, mean, _square = chosen_losses(flat, action, target, share, atoms)
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
