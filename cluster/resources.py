"""How many trainers a cluster has room for, and what each of them reserves."""

from __future__ import annotations

from typing import Any

from cluster.config import PoolConfig


class Slots:
    """Counts the cluster's room for trainers, now."""

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.gpus = False
        self.per_node = 1

    def wanted(self) -> int:
        """Trainers there should be: the configured number, or one per GPU (per CPU slot where there is no GPU)."""
        import ray

        listed: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        nodes = [node["Resources"] for node in listed if node["Alive"]]
        there = any(node.get("GPU", 0.0) > 0 for node in nodes)
        self.gpus = there if self.config.trainer_gpus is None else self.config.trainer_gpus > 0.0
        rooms = [trainers_of(node, self.config, gpus=self.gpus) for node in nodes]
        self.per_node = max(max(rooms, default=1), 1)
        return self.config.trainers if self.config.trainers is not None else max(sum(rooms), 1)


def trainers_of(node: dict[str, float], config: PoolConfig, *, gpus: bool) -> int:
    """Trainers that a node with these resources has room for."""
    by_cpu = int(node.get("CPU", 0.0) / config.trainer_cpus)
    return min(by_cpu, int(node.get("GPU", 0.0)) * trainers_per_gpu(config)) if gpus else by_cpu


def trainer_resources(config: PoolConfig, gpus: bool) -> dict[str, Any]:
    """Ray's resource options of one trainer actor."""
    return {"num_cpus": config.trainer_cpus, "num_gpus": gpu_share(config) if gpus else 0}


def trainers_per_gpu(config: PoolConfig) -> int:
    """Trainers on one card; Ray lets none of them reach over to the next."""
    share = gpu_share(config)
    return int(1.0 / share) if share else 1


def gpu_share(config: PoolConfig) -> float:
    """GPUs of one trainer."""
    return 1.0 if config.trainer_gpus is None else config.trainer_gpus
