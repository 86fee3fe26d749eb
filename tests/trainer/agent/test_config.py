"""The agent's config and its tensors agree."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from trainer.agent.config import AgentConfig
from trainer.agent.params import AgentParams
from trainer.fields import field_kind, walk


def test_every_dynamic_field_and_no_other_becomes_a_tensor() -> None:
    dynamic = {f"{path}_L" for path, field, _ in walk(AgentConfig()) if field_kind(field) == "dynamic"}
    assert dynamic == set(AgentParams.__dataclass_fields__)


def test_the_defaults_are_those_of_the_original() -> None:
    config = AgentConfig()
    assert (config.c51_alpha_max, config.c51_warmup_epochs, config.tau, config.atoms) == (1.0, 0, 0.01, 52)
    assert (config.noise_sigma, config.gamma, config.lr, config.bottleneck_dim) == (0.1, 0.99, 1e-5, 16)


def test_gradient_bounds_of_health_must_be_ordered() -> None:
    with pytest.raises(ValidationError, match="below"):
        AgentConfig(health_gradient_low=2.0, health_gradient_high=1.0)
