"""A lane computes the same bits at any group size, slot and beside any neighbour; no host values in the step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.trainer.env.builders import instrument, random_actions, random_market
from trainer.env.config import EnvConfig
from trainer.env.observe import Normaliser, observe, portfolio_features
from trainer.env.state import EnvParams, make_params, reset
from trainer.env.step import env_step
from trainer.lanes.tree import concat, flatten, map_tensors, take

EPISODES = 5
STEPS = 40


def lanes_of(count: int, device: str = "cpu") -> EnvParams:
    configs = [
        EnvConfig(max_position=1.0 + n / 3, drawdown_weight=0.1 * (n % 5), cost_scale=1 + n % 3, latency_bars=n % 2)
        for n in range(count)
    ]
    units = torch.arange(1, count + 1, dtype=torch.float64) * 7.3
    return make_params(configs, instrument(), units, torch.device(device))


def life(params: EnvParams, actions: Tensor, episodes: int = EPISODES) -> dict[str, Tensor]:
    """All tensors of the last state, the rewards and the last observation."""
    market = random_market(11)
    lanes = params.capital_L.shape[0]
    bars = torch.arange(episodes).expand(lanes, -1).contiguous()
    state = reset(params, market, bars, bars + 35, bars % 2 == 1)
    normaliser = Normaliser(torch.zeros(lanes, 3), torch.full((lanes, 3), 3.0), torch.full((lanes,), 5.0))
    rewards = []
    for action in actions:
        step = env_step(params, market, state, action)
        state = step.state
        rewards.append(step.reward_LE)
    seen = observe(market, normaliser, state.bar_LE, state.mirror_LE, portfolio_features(params, market, state), 6)
    return flatten(state) | {"reward": torch.stack(rewards, 1), "features": seen.features, "portfolio": seen.portfolio}


@pytest.mark.parametrize(("size", "slot"), [(1, 0), (2, 1), (3, 0), (8, 5), (32, 31)])
def test_a_lane_has_the_same_bits_at_any_size_and_slot(size: int, slot: int) -> None:
    everyone = lanes_of(32)
    actions = random_actions(1, STEPS, EPISODES)
    alone = life(take(everyone, torch.tensor([9])), actions)
    others = [n for n in range(32) if n != 9][: size - 1]
    order = torch.tensor([*others[:slot], 9, *others[slot:]])
    noise = random_actions(2, STEPS, EPISODES).expand(-1, size, -1, -1).clone()
    noise[:, slot] = actions[:, 0]
    together = life(take(everyone, order), noise)
    for name, value in alone.items():
        assert torch.equal(value[0], together[name][slot]), name


def test_a_nan_lane_touches_no_other() -> None:
    params = lanes_of(3)
    actions = random_actions(1, STEPS, EPISODES).expand(-1, 3, -1, -1)
    healthy = life(params, actions)
    sick = map_tensors(lambda tensor: tensor.clone(), params)
    sick.capital_L[1] = float("nan")
    sick.health_L[1] = float("nan")
    beside = life(sick, actions)
    assert beside["reward"][1].isnan().any()
    for name, value in healthy.items():
        assert torch.equal(value[0::2], beside[name][0::2]), name


def test_lanes_join_by_concatenation() -> None:
    params = lanes_of(4)
    parts = concat([take(params, torch.tensor([0, 1])), take(params, torch.tensor([2, 3]))])
    assert all(torch.equal(a, b) for a, b in zip(flatten(params).values(), flatten(parts).values(), strict=True))


def test_the_trainers_health_reaches_the_next_step() -> None:
    params = lanes_of(2)
    params.health_L.copy_(torch.tensor([0.0, 1.0]))
    same = replace(params, max_position_L=torch.ones(2, dtype=torch.float64))
    market = random_market(4)
    bars = torch.zeros(2, 1, dtype=torch.int64)
    state = reset(same, market, bars, bars + 9, bars == 1)
    cap = portfolio_features(same, market, state)[:, 0, 1]
    assert cap.tolist() == [0.25, 0.5]


@pytest.mark.cuda
def test_a_captured_step_replays_like_an_eager_one() -> None:
    device = torch.device("cuda")
    params, market = lanes_of(8, "cuda"), random_market(11).to(device)
    bars = torch.zeros(8, EPISODES, dtype=torch.int64, device=device)
    state = reset(params, market, bars, bars + 50, bars == 1)
    action = torch.zeros(8, EPISODES, 4, dtype=torch.int64, device=device)
    held = map_tensors(lambda tensor: tensor.clone(), state)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        env_step(params, market, held, action)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step = env_step(params, market, held, action)
        map_tensors(lambda old, new: old.copy_(new), held, step.state)
    for chosen in random_actions(1, STEPS, EPISODES).to(device).expand(-1, 8, -1, -1):
        action.copy_(chosen)
        graph.replay()
        state = env_step(params, market, state, chosen).state
    for name, value in flatten(state).items():
        assert torch.equal(value, flatten(held)[name]), name
