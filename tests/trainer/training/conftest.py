"""A market and a configuration so small that whole trials run in a second."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.config import TrialConfig
from trainer.training.prepare import Prepared, prepare

CPU = torch.device("cpu")

TINY: dict[str, Any] = {
    "market": {
        "synthetic": {"sessions": 40, "bars_per_session": 24, "preset": "easy"},
        "features": {"families": ["returns", "session"]},
    },
    "folds": {"count": 3},
    "env": {"session_episodes": True},
    "agent": {"lr": 1e-3, "gamma": 0.9, "hidden": 16, "atoms": 12, "blocks": 1, "support_start": "warm"},
    "replay": {"capacity": 2048},
    "training": {"epochs": 3, "episodes": 64, "collect_steps": 8, "learn_steps": 6, "batch": 64},
}


def tiny(**changes: Any) -> TrialConfig:
    """The tiny configuration with dotted-key changes, for example ``tiny(**{"agent.lr": 1e-2})``."""
    tree: dict[str, Any] = {
        section: dict(values) if isinstance(values, dict) else values for section, values in TINY.items()
    }
    for key, value in changes.items():
        node = tree
        *path, last = key.split(".")
        for part in path:
            node[part] = dict(node.get(part, {}))
            node = node[part]
        node[last] = value
    return TrialConfig.model_validate(tree)


@pytest.fixture(scope="session")
def prepared() -> Prepared:
    return prepare(tiny(), CPU)
