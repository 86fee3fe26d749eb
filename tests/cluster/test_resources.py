"""Trainers that a node has room for."""

from __future__ import annotations

import pytest

from cluster.config import PoolConfig
from cluster.resources import trainer_resources, trainers_of


@pytest.mark.parametrize(
    ("node", "config", "gpus", "trainers"),
    [
        ({"CPU": 8.0}, {}, False, 8),
        ({"CPU": 8.0}, {"trainer_cpus": 3.0}, False, 2),
        ({"CPU": 64.0, "GPU": 8.0}, {}, True, 8),
        ({"CPU": 4.0, "GPU": 8.0}, {}, True, 4),
        ({"CPU": 64.0, "GPU": 2.0}, {"trainer_gpus": 0.5}, True, 4),
        ({"CPU": 64.0, "GPU": 8.0}, {"trainer_gpus": 0.1}, True, 64),
        ({"CPU": 64.0, "GPU": 2.0}, {"trainer_gpus": 0.4}, True, 4),  # none lies across two cards
        ({"CPU": 64.0, "GPU": 2.0}, {"trainer_gpus": 0.7}, True, 2),
        ({"CPU": 64.0}, {}, True, 0),
        ({}, {}, False, 0),
    ],
)
def test_a_node_has_room_for_as_many_as_its_scarcest_resource(
    node: dict[str, float], config: dict[str, float], gpus: bool, trainers: int
) -> None:
    assert trainers_of(node, PoolConfig.model_validate(config), gpus=gpus) == trainers


def test_a_trainer_reserves_a_gpu_only_where_there_are_some() -> None:
    assert trainer_resources(PoolConfig(), gpus=True) == {"num_cpus": 1.0, "num_gpus": 1.0}
    assert trainer_resources(PoolConfig(), gpus=False) == {"num_cpus": 1.0, "num_gpus": 0}
