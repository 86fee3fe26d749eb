"""How trained agents act: the best action, and without a preferred direction where asked."""

from __future__ import annotations

import torch

from trainer.agent.branches import mirrored
from trainer.agent.network import NetworkShape, layout
from trainer.env.observe import Normaliser, Observation
from trainer.env.state import EnvState
from trainer.evaluation.policy import Policy, greedy_policy
from trainer.lanes.random import Stream, normal

SHAPE = NetworkShape(
    features=3,
    portfolio=2,
    window=1,
    flow=(),
    hidden=16,
    blocks=1,
    atoms=8,
    bottleneck_dim=4,
    flow_dim=4,
    temporal="flat",
    attention_heads=1,
    attention_dim=1,
)
ROWS = 64
UNUSED: EnvState = None  # type: ignore[assignment]


def policy() -> Policy:
    """A random network over atoms from -1 to 1."""
    params = normal(torch.tensor([5]), Stream.INIT, 0, (layout(SHAPE).size,))
    still = Normaliser(torch.zeros(1, 3), torch.ones(1, 3), torch.ones(1))
    one = torch.ones(1, dtype=torch.float64)
    return Policy(params, torch.linspace(-1, 1, 8).expand(1, 8), still, one, one)


def view(sign: float, *, flipped: bool = False) -> Observation:
    """The same market seen plainly and mirrored: every column changes its sign."""
    sign = -sign if flipped else sign
    values = normal(torch.tensor([1]), Stream.NOISE, 0, (ROWS, 5)) * sign
    return Observation(values[:, :, None, :3], values[..., 3:], torch.zeros(1, ROWS, dtype=torch.bool))


def actions(sign: float, *, symmetric: bool) -> torch.Tensor:
    act = greedy_policy(SHAPE, policy(), symmetric=symmetric)
    return act(0, UNUSED, lambda *, flipped=False: view(sign, flipped=flipped))


def test_short_and_long_change_places_in_the_mirror() -> None:
    values = torch.arange(13.0).reshape(1, 1, 13)
    assert mirrored(values)[0, 0].tolist() == [2.0, 1.0, 0.0, *range(3, 13)]


def test_a_symmetric_agent_does_in_the_mirrored_market_the_mirrored_thing() -> None:
    swap = torch.tensor([2, 1, 0, 3])
    plain, turned = actions(1.0, symmetric=True), actions(-1.0, symmetric=True)
    assert torch.equal(turned[..., 0], swap[plain[..., 0]])
    assert torch.equal(turned[..., 1:], plain[..., 1:])
    assert plain[..., 0].unique().numel() > 1


def test_without_it_a_network_has_directions_of_its_own() -> None:
    swap = torch.tensor([2, 1, 0, 3])
    plain, turned = actions(1.0, symmetric=False), actions(-1.0, symmetric=False)
    assert not torch.equal(turned[..., 0], swap[plain[..., 0]])
