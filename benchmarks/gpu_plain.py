"""The same learner as one would write it today in plain PyTorch: what one process per trial runs, and vmap over many.

A branching duelling C51 of the reference network's sizes, double-DQN targets, the usual projection, prioritised
sampling, ``torch.optim.Adam(fused=True)``, clipping, soft update. The replay holds random transitions: how long a step
takes does not depend on them. No host value enters a step. Matrix products may use TF32.

:class:`Learner` trains one such network; :class:`Vmapped` stacks as many as asked for and maps the gradient of one over
them (``torch.func``), with their replays stacked as well.

Legend: L networks, B batch rows, N transitions, K = 13 actions, G = 4 branches, A atoms.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from trainer.agent.network import NetworkShape

BRANCHES = (4, 3, 3, 3)
GAMMA, TAU, LR, CLIP, ALPHA, BETA = 0.95, 0.01, 3e-4, 10.0, 0.3, 0.6
LOW, HIGH = -1.0, 1.0


class Block(nn.Module):
    """Residual block with RMSNorm."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=1e-6)
        self.up, self.down = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return made


class Network(nn.Module):
    """Logits ``[B, K, A]`` of states ``[B, features + portfolio]``, market features first, then order flow."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.widths = [len(shape.market), len(shape.flow), shape.portfolio]
        self.bottleneck = nn.Linear(len(shape.market), shape.bottleneck_dim)
        self.flow = nn.Linear(len(shape.flow), shape.flow_dim)
        self.input = nn.Linear(shape.bottleneck_dim + shape.flow_dim + shape.portfolio, shape.hidden)
        self.blocks = nn.Sequential(*(Block(shape.hidden) for _ in range(shape.blocks)))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.value = nn.Linear(shape.hidden, shape.atoms)
        self.advantage = nn.Linear(shape.hidden, sum(BRANCHES) * shape.atoms)

    def forward(self, state: Tensor) -> Tensor:
        market, flow, portfolio = state.split(self.widths, dim=-1)
        x = torch.cat((self.bottleneck(market), self.flow(flow), portfolio), dim=-1)
        x = self.norm(self.blocks(torch.relu(self.input(x))))
        value = self.value(x).unsqueeze(-2)
        advantage = self.advantage(x).unflatten(-1, (sum(BRANCHES), -1))
        parts = [value + part - part.mean(-2, keepdim=True) for part in advantage.split(BRANCHES, dim=-2)]
        return torch.cat(parts, dim=-2)


def greedy(q_BK: Tensor) -> Tensor:
    """Best action of every branch, as a row of the logits, ``[B, G]``."""
    firsts = [sum(BRANCHES[:branch]) for branch in range(len(BRANCHES))]
    best = [part.argmax(-1) + first for part, first in zip(q_BK.split(BRANCHES, dim=-1), firsts, strict=True)]
    return torch.stack(best, dim=-1)


def chosen(logits_BKA: Tensor, row_BG: Tensor) -> Tensor:
    """Logits of one action per branch, ``[B, G, A]``."""
    return logits_BKA.gather(-2, row_BG.unsqueeze(-1).expand(*row_BG.shape, logits_BKA.shape[-1]))


def project(probability_BGA: Tensor, target_BA: Tensor, atoms: int) -> Tensor:
    """Distribution on evenly spaced atoms (Bellemare et al. 2017, algorithm 1)."""
    position_BA = (target_BA.clamp(LOW, HIGH) - LOW) / ((HIGH - LOW) / (atoms - 1))
    below_BA = position_BA.floor().clamp(max=atoms - 2)
    above_BGA = probability_BGA * (position_BA - below_BA).unsqueeze(-2)
    at_BGA = below_BA.long().unsqueeze(-2).expand(probability_BGA.shape)
    made = torch.zeros_like(probability_BGA).scatter_add(-1, at_BGA, probability_BGA - above_BGA)
    return made.scatter_add(-1, at_BGA + 1, above_BGA)


Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""state, next state, rows of the chosen actions, reward, 1 - done, importance weight."""


def loss_of(online: Any, target: Any, batch: Batch, atoms_A: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of one batch, and each row's own loss; ``online`` and ``target`` are functions of states."""
    state, after, row_BG, reward_B, going_B, weight_B = batch
    with torch.no_grad():
        best_BG = greedy((online(after).softmax(-1) * atoms_A).sum(-1))
        probability_BGA = chosen(target(after), best_BG).softmax(-1)
        wanted_BA = reward_B.unsqueeze(-1) + GAMMA * going_B.unsqueeze(-1) * atoms_A
        goal_BGA = project(probability_BGA, wanted_BA, len(atoms_A))
    loss_B = -(goal_BGA * chosen(online(state), row_BG).log_softmax(-1)).sum((-1, -2))
    return (weight_B * loss_B).mean(), loss_B.detach()


class Memory:
    """Prioritised replay of L networks, ``[L, N, ...]``, full of random transitions."""

    def __init__(self, networks: int, size: int, width: int, device: torch.device) -> None:
        def normal(*shape: int) -> Tensor:
            return torch.randn(networks, size, *shape, device=device)

        self.state, self.after, self.reward = normal(width), normal(width), 0.1 * normal()
        firsts = torch.tensor([sum(BRANCHES[:branch]) for branch in range(len(BRANCHES))], device=device)
        sizes = torch.tensor(BRANCHES, device=device)
        self.rows = firsts + (torch.rand(networks, size, len(BRANCHES), device=device) * sizes).long()
        self.going = (torch.rand(networks, size, device=device) < 0.99).float()
        self.priority = torch.ones(networks, size, device=device)
        self.lanes = torch.arange(networks, device=device).unsqueeze(-1)

    def draw(self, batch: int) -> tuple[Batch, Tensor]:
        """Stratified draws in proportion to the priorities, and their places ``[L, B]``."""
        total_LN = self.priority.cumsum(-1)
        networks, size = self.priority.shape
        strata = torch.arange(batch, device=self.priority.device)
        drawn_LB = (strata + torch.rand(networks, batch, device=self.priority.device)) / batch
        index_LB = torch.searchsorted(total_LN, drawn_LB * total_LN[:, -1:]).clamp_(max=size - 1)
        at = (self.lanes, index_LB)
        weight_LB = (size * self.priority[at] / total_LN[:, -1:]) ** -BETA
        weight_LB = weight_LB / weight_LB.amax(-1, keepdim=True)
        return (self.state[at], self.after[at], self.rows[at], self.reward[at], self.going[at], weight_LB), index_LB

    def update(self, index_LB: Tensor, loss_LB: Tensor) -> None:
        """Priorities of what was drawn."""
        self.priority[self.lanes, index_LB] = (loss_LB + 1e-3) ** ALPHA


class Learner:
    """One network."""

    def __init__(self, shape: NetworkShape, batch: int, size: int, device: torch.device) -> None:
        self.online = Network(shape).to(device)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.parameters = list(self.online.parameters())
        self.slow = list(self.target.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=LR, eps=1e-5, fused=True)
        self.memory = Memory(1, size, shape.features + shape.portfolio, device)
        self.batch, self.atoms_A = batch, torch.linspace(LOW, HIGH, shape.atoms, device=device)

    def step(self) -> None:
        """One learn step."""
        drawn, index_1B = self.memory.draw(self.batch)
        batch: Any = tuple(part[0] for part in drawn)
        loss, loss_B = loss_of(self.online, self.target, batch, self.atoms_A)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.parameters, CLIP, foreach=True)
        self.optimizer.step()
        torch._foreach_lerp_(self.slow, self.parameters, TAU)
        self.memory.update(index_1B, loss_B.unsqueeze(0))


class Vmapped:
    """L networks at once: the gradient of one, mapped over stacked parameters and batches."""

    def __init__(
        self, shape: NetworkShape, networks: int, batch: int, size: int, device: torch.device, *, compiled: bool
    ) -> None:
        models = [Network(shape).to(device) for _ in range(networks)]
        stacked, _ = stack_module_state(models)
        self.online = {name: value.detach().clone().requires_grad_() for name, value in stacked.items()}
        self.target = {name: value.detach().clone() for name, value in self.online.items()}
        self.optimizer = torch.optim.Adam(list(self.online.values()), lr=LR, eps=1e-5, fused=True)
        self.memory = Memory(networks, size, shape.features + shape.portfolio, device)
        self.batch, atoms_A = batch, torch.linspace(LOW, HIGH, shape.atoms, device=device)
        base = copy.deepcopy(models[0]).to("meta")

        def one(online: dict[str, Tensor], target: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
            def act(weights: dict[str, Tensor]) -> Any:
                return lambda state: functional_call(base, weights, (state,))

            return loss_of(act(online), act(target), batch, atoms_A)

        mapped: Any = vmap(grad_and_value(one, has_aux=True))

        def clipped(online: Any, target: Any, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
            grads, (_, loss_LB) = mapped(online, target, batch)
            norm_L = torch.stack([grad.flatten(1).square().sum(-1) for grad in grads.values()]).sum(0).sqrt()
            scale_L = (CLIP / (norm_L + 1e-6)).clamp(max=1.0)
            return {name: grad * scale_L.view(-1, *[1] * (grad.dim() - 1)) for name, grad in grads.items()}, loss_LB

        self.gradients: Any = torch.compile(clipped) if compiled else clipped

    def step(self) -> None:
        """One learn step of every network."""
        drawn, index_LB = self.memory.draw(self.batch)
        detached = {name: value.detach() for name, value in self.online.items()}
        grads, loss_LB = self.gradients(detached, self.target, drawn)
        for name, value in self.online.items():
            value.grad = grads[name]
        self.optimizer.step()
        torch._foreach_lerp_(list(self.target.values()), list(detached.values()), TAU)
        self.memory.update(index_LB, loss_LB)
