"""The learn step's own schedule."""

from __future__ import annotations

import pytest
import torch

from trainer.agent.params import AgentParams
from trainer.lanes.tree import stack_dynamic
from trainer.training.learn import learning_rate

from .conftest import CPU, tiny


@pytest.mark.parametrize(("step", "rate"), [(0, 1e-3), (25, 7.75e-4), (50, 5.5e-4), (100, 1e-4), (1000, 1e-4)])
def test_the_learning_rate_falls_linearly_and_then_rests(step: int, rate: float) -> None:
    falling = tiny(**{"agent.lr": 1e-3, "agent.lr_end": 0.1, "agent.lr_decay": 100}).agent
    constant = tiny(**{"agent.lr": 1e-3}).agent
    params = stack_dynamic(AgentParams, [falling, constant], CPU)
    made_L = learning_rate(torch.tensor([step, step]), params)
    assert made_L.dtype == torch.float64
    assert made_L.tolist() == pytest.approx([rate, 1e-3])
