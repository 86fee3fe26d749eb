"""The peer of the GPU benchmarks learns what it says: projection, gradient alone and mapped over stacked modules."""

from __future__ import annotations

import torch

from benchmarks.gpu_plain import HIGH, LOW, Learner, Vmapped, loss_of, project
from trainer.agent.network import NetworkShape

CPU = torch.device("cpu")
SHAPE = NetworkShape(
    features=6,
    portfolio=3,
    window=1,
    flow=(4, 5),
    hidden=16,
    blocks=1,
    atoms=11,
    bottleneck_dim=4,
    flow_dim=4,
    temporal="flat",
    attention_heads=1,
    attention_dim=8,
)


def test_mass_between_two_atoms_is_shared_by_nearness_and_clamped_at_the_ends() -> None:
    probability_BGA = torch.tensor([[[0.5, 0.25, 0.25]]])
    made = project(probability_BGA, torch.tensor([[-3.0, 0.25, 1.0]]), atoms=3)  # atoms -1, 0, 1
    torch.testing.assert_close(made, torch.tensor([[[0.5, 0.25 * 0.75, 0.25 * 0.25 + 0.25]]]))


def test_stacked_modules_have_the_gradients_of_each_alone() -> None:
    torch.manual_seed(1)
    mapped = Vmapped(SHAPE, 3, 8, 64, CPU, compiled=False)
    drawn, _ = mapped.memory.draw(8)
    grads, _ = mapped.gradients(mapped.online, mapped.target, drawn)
    alone = Learner(SHAPE, 8, 64, CPU)
    atoms_A = torch.linspace(LOW, HIGH, SHAPE.atoms)
    for index in range(3):
        for network, weights in ((alone.online, mapped.online), (alone.target, mapped.target)):
            network.load_state_dict({name: value[index].detach() for name, value in weights.items()})
        alone.online.zero_grad()
        loss, _ = loss_of(alone.online, alone.target, tuple(part[index] for part in drawn), atoms_A)  # type: ignore[arg-type]
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(alone.parameters, 10.0)
        for name, parameter in alone.online.named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(grads[name][index], parameter.grad, atol=1e-6, rtol=1e-4)


def test_steps_lower_the_loss_of_what_is_in_the_replay() -> None:
    torch.manual_seed(1)
    for learner in (Learner(SHAPE, 32, 64, CPU), Vmapped(SHAPE, 2, 32, 64, CPU, compiled=False)):
        learner.memory.going.zero_()  # the targets are the rewards alone
        first = learner.memory.priority.clone()
        for _ in range(300):
            learner.step()
        early = learner.memory.priority.mean()
        for _ in range(300):
            learner.step()
        assert not torch.equal(first, learner.memory.priority)
        assert learner.memory.priority.mean() < early
