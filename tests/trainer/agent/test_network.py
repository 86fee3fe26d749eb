"""The network against a brute-force float64 oracle, its masks and its initialisation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.agent.config import AgentConfig
from trainer.agent.network import NetworkShape, forward, initialise, layout, trunk
from trainer.env.actions import BRANCHES
from trainer.errors import UserError


def _logits(scene: Any) -> Tensor:
    return forward(scene.shape, layout(scene.shape).views(scene.online_LD), scene.obs)


def _oracle_trunk(shape: NetworkShape, named: dict[str, Tensor], features: Tensor, portfolio: Tensor) -> Tensor:
    """One lane, one row, float64, written as the formulas read."""

    def norm(x: Tensor, gain: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean() + 1e-6) * gain

    def affine(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight[:-1] + weight[-1]

    bars = []
    for bar in features:
        market = bar[list(shape.market)] @ named["bottleneck"]
        flow = bar[list(shape.flow)] @ named["flow"]
        bars.append(torch.cat((market, flow)) + named["bar_bias"])
    if shape.temporal == "flat":
        joined = torch.cat(bars)
    else:
        heads, dim = shape.attention_heads, shape.attention_dim
        context = []
        for head in range(heads):
            part = slice(head * dim, (head + 1) * dim)
            query = bars[-1] @ named["attention.query"][:, part]
            scores = (
                torch.stack([query @ (bar @ named["attention.key"][:, part]) / math.sqrt(dim) for bar in bars])
                + named["attention.age"][head]
            )
            present = torch.tensor([bool((bar != 0).any()) for bar in features[:-1]] + [True])
            share = torch.softmax(torch.where(present, scores, -math.inf), dim=0)
            context.append(
                sum(s * (bar @ named["attention.value"][:, part]) for s, bar in zip(share, bars, strict=True))
            )
        joined = torch.cat((bars[-1], *context))
    hidden = torch.relu(affine(torch.cat((joined, portfolio)), named["input"]))
    for block in range(shape.blocks):
        inner = torch.relu(affine(norm(hidden, named[f"block{block}.gain"]), named[f"block{block}.up"]))
        hidden = hidden + affine(inner, named[f"block{block}.down"])
    return norm(hidden, named["head.gain"])


@pytest.mark.parametrize("temporal", ["flat", "attention"])
def test_duelling_centres_over_the_actions_of_each_branch_not_over_atoms(scene_of: Any, temporal: str) -> None:
    scene = scene_of(temporal=temporal, blocks=2, attention_heads=2, attention_dim=3)
    bias = torch.linspace(-0.3, 0.3, scene.online_LD.shape[1])  # so that no bias is zero
    scene = scene.lanes([0, 1])
    online = scene.online_LD + bias
    logits = forward(scene.shape, layout(scene.shape).views(online), scene.obs)
    for lane, row in ((0, 0), (1, 17)):
        named = {name: view[lane].double() for name, view in layout(scene.shape).views(online).items()}
        hidden = _oracle_trunk(
            scene.shape, named, scene.obs.features[lane, row].double(), scene.obs.portfolio[lane, row].double()
        )
        value = hidden @ named["head.value"][:-1] + named["head.value"][-1]
        start = 0
        for size in BRANCHES:
            advantage = torch.stack(
                [
                    hidden @ named["head.advantage"][:-1, k] + named["head.advantage"][-1, k]
                    for k in range(start, start + size)
                ]
            )
            expected = value + advantage - advantage.mean(dim=0)
            torch.testing.assert_close(logits[lane, row, start : start + size].double(), expected, atol=2e-5, rtol=1e-4)
            start += size


def test_every_branch_averages_to_the_one_shared_value(scene_of: Any) -> None:
    logits = _logits(scene_of())
    means = [part.mean(dim=2) for part in torch.split_with_sizes(logits, BRANCHES, dim=2)]
    for other in means[1:]:
        torch.testing.assert_close(other, means[0], atol=1e-5, rtol=0)


def test_the_padded_head_width_is_a_multiple_of_eight_and_is_cut_off(scene_of: Any) -> None:
    for atoms in (7, 8, 52):
        assert _logits(scene_of(atoms=atoms)).shape == (2, 64, 13, atoms)


def test_attention_ignores_the_rows_before_a_session_start(scene_of: Any) -> None:
    """With the early rows masked, the window is as good as a shorter one; the last bar always counts."""
    scene = scene_of(temporal="attention", window=4)
    features = scene.obs.features.clone()
    features[:, :, :2] = 0.0
    weights = layout(scene.shape).views(scene.online_LD)
    masked = type(scene.obs)(features, scene.obs.portfolio, scene.obs.hold_only)
    short_shape = NetworkShape(**{**scene.shape.__dict__, "window": 2})
    short = type(scene.obs)(features[:, :, 2:].contiguous(), scene.obs.portfolio, scene.obs.hold_only)
    short_weights = {**weights, "attention.age": weights["attention.age"][..., 2:]}
    torch.testing.assert_close(trunk(scene.shape, weights, masked), trunk(short_shape, short_weights, short))
    features[:, :, :] = 0.0
    assert torch.isfinite(trunk(scene.shape, weights, masked)).all()


def test_market_and_flow_features_do_not_mix_before_the_trunk(scene_of: Any) -> None:
    scene = scene_of()
    weights = dict(layout(scene.shape).views(scene.online_LD))
    weights["flow"] = torch.zeros_like(weights["flow"])
    features = scene.obs.features.clone()
    features[..., list(scene.shape.flow)] += 100.0
    changed = type(scene.obs)(features, scene.obs.portfolio, scene.obs.hold_only)
    assert torch.equal(forward(scene.shape, weights, scene.obs), forward(scene.shape, weights, changed))


def test_a_market_without_flow_or_with_flow_alone_is_fine() -> None:
    for flow in ((), (0, 1, 2)):
        shape = NetworkShape.of(AgentConfig(hidden=16), features=3, portfolio=2, window=1, flow=flow)
        assert initialise(shape, torch.arange(2), torch.device("cpu")).shape == (2, layout(shape).size)


def test_a_flow_position_that_is_no_feature_is_refused() -> None:
    with pytest.raises(UserError, match=r"0\.\.2"):
        NetworkShape.of(AgentConfig(), features=3, portfolio=2, window=1, flow=(3,))


def test_initial_parameters_depend_on_the_own_seed_alone() -> None:
    shape = NetworkShape.of(AgentConfig(), features=9, portfolio=5, window=2, flow=(1,))
    many = initialise(shape, torch.tensor([7, 8, 9, 7]), torch.device("cpu"))
    assert torch.equal(many[2:3], initialise(shape, torch.tensor([9]), torch.device("cpu")))
    assert torch.equal(many[0], many[3])
    assert not torch.equal(many[0], many[1])


def test_initial_weights_have_variance_one_over_inputs_and_biases_are_zero() -> None:
    shape = NetworkShape.of(AgentConfig(hidden=64, blocks=1), features=9, portfolio=5, window=2)
    views = layout(shape).views(initialise(shape, torch.arange(8), torch.device("cpu")))
    up = views["block0.up"]
    assert up[:, -1].abs().max() == 0.0
    assert float(up[:, :-1].var() * 64) == pytest.approx(1.0, rel=0.05)
    assert float(views["head.gain"].min()) == 1.0
