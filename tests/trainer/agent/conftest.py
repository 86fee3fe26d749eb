"""Small agents for tests: parameters from keyword arguments, random observations and batches of fixed seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.agent import health, popart, support
from trainer.agent.config import AgentConfig
from trainer.agent.network import NetworkShape, initialise, layout
from trainer.agent.params import AgentParams
from trainer.agent.td import TdLoss, td_loss
from trainer.env.actions import BRANCHES
from trainer.lanes.random import Stream, normal, randint, uniform
from trainer.lanes.tree import stack_dynamic, take

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Observation:
    features: Tensor
    portfolio: Tensor
    hold_only: Tensor


@dataclass(frozen=True)
class Batch:
    action_LB4: Tensor
    return_LB: Tensor
    discount_LB: Tensor
    weight_LB: Tensor


@dataclass(frozen=True)
class Scene:
    """Everything one learn step of a lane group needs."""

    shape: NetworkShape
    params: AgentParams
    online_LD: Tensor
    target_LD: Tensor
    obs: Observation
    next_obs: Observation
    batch: Batch
    support: support.Support
    popart: popart.PopArt
    signals: health.Signals
    epoch_L: Tensor

    def lanes(self, index: list[int]) -> Scene:
        """The scene of these lanes alone, in this order."""
        at = torch.tensor(index)
        parts = {
            name: take(getattr(self, name), at)
            for name in ("params", "obs", "next_obs", "batch", "support", "popart", "signals")
        }
        tensors = {name: getattr(self, name).index_select(0, at) for name in ("online_LD", "target_LD", "epoch_L")}
        return replace(self, **parts, **tensors)

    def loss(self, **changes: Any) -> TdLoss:
        scene = replace(self, **changes)
        plan = layout(scene.shape)
        return td_loss(
            scene.shape,
            plan.views(scene.online_LD),
            plan.views(scene.target_LD),
            scene.obs,
            scene.next_obs,
            scene.batch,
            scene.support,
            scene.popart,
            scene.signals,
            scene.epoch_L,
            scene.params,
        )

    def gradient(self, **changes: Any) -> tuple[Tensor, TdLoss]:
        leaf_LD = changes.pop("online_LD", self.online_LD).detach().clone().requires_grad_()
        result = self.loss(online_LD=leaf_LD, **changes)
        return torch.autograd.grad(result.loss, leaf_LD)[0], result


def _params(lanes: int = 1, **values: Any) -> AgentParams:
    return stack_dynamic(AgentParams, [AgentConfig(**values)] * lanes, CPU)


def _observation(seed_L: Tensor, shape: NetworkShape, rows: int, step: int) -> Observation:
    return Observation(
        features=normal(seed_L, Stream.WARMUP, step, (rows, shape.window, shape.features)),
        portfolio=normal(seed_L, Stream.WARMUP, step + 1, (rows, shape.portfolio)),
        hold_only=uniform(seed_L, Stream.WARMUP, step + 2, (rows,)) < 0.1,
    )


def _scene(lanes: int = 2, rows: int = 64, window: int = 3, **values: Any) -> Scene:
    config = AgentConfig(**{"hidden": 16, "atoms": 12, "bottleneck_dim": 4, "flow_dim": 4, **values})
    shape = NetworkShape.of(config, features=9, portfolio=5, window=window, flow=(2, 5, 6))
    seed_L = torch.arange(lanes) + 11
    params = stack_dynamic(AgentParams, [config] * lanes, CPU)
    action = [randint(seed_L, Stream.WARMUP, 20 + branch, (rows,), size) for branch, size in enumerate(BRANCHES)]
    batch = Batch(
        action_LB4=torch.stack(action, dim=-1),
        return_LB=normal(seed_L, Stream.WARMUP, 30, (rows,)) * 0.5,
        discount_LB=torch.where(uniform(seed_L, Stream.WARMUP, 31, (rows,)) < 0.1, 0.0, 0.97),
        weight_LB=uniform(seed_L, Stream.WARMUP, 32, (rows,)) + 0.5,
    )
    return Scene(
        shape=shape,
        params=params,
        online_LD=initialise(shape, seed_L, CPU) * 3.0,
        target_LD=initialise(shape, seed_L + 1000, CPU) * 3.0,
        obs=_observation(seed_L, shape, rows, 0),
        next_obs=_observation(seed_L, shape, rows, 10),
        batch=batch,
        support=support.cold(params, config.atoms),
        popart=popart.fresh(lanes, CPU),
        signals=health.fresh(lanes, CPU),
        epoch_L=torch.zeros(lanes, dtype=torch.int64),
    )


@pytest.fixture(scope="session")
def params_of() -> Any:
    """``params_of(lanes=1, **config fields)``."""
    return _params


@pytest.fixture(scope="session")
def scene_of() -> Any:
    """``scene_of(lanes=2, rows=64, window=3, **config fields)``."""
    return _scene
