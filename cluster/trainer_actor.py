"""The Ray shell of a trainer: one process, one GPU (or share of it) or CPU slot: Ray shows it no other GPU.

Naming it imports no torch, running it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.config import PoolConfig
from cluster.journal import Journal, TrackingTarget
from cluster.protocol import Orders

ANSWERS = 2
"""Of the pool at each boundary."""
PATIENCE_S = 0.02
"""Longest wait for the pool at an epoch's boundary; whatever comes later takes effect at the next one."""


class TrainerActor:
    """Runs a :class:`cluster.trainer_loop.TrainerLoop` for a pool.

    Args:
        name: the trainer's name in this pool, never used twice.
        sweep_dir: the sweep's folder.
        config: limits.
        slots: trainers that share a machine's memory.
        tracking: where trials are tracked, None for nowhere.
    """

    def __init__(
        self, name: str, sweep_dir: str, config: PoolConfig, slots: int, tracking: TrackingTarget | None
    ) -> None:
        import ray
        import torch

        from cluster.trainer_loop import TrainerLoop

        gpus = ", ".join(ray.get_runtime_context().get_accelerator_ids()["GPU"])
        device = torch.device("cuda" if gpus and torch.cuda.is_available() else "cpu")
        label = f"GPU {gpus}" if device.type == "cuda" else f"CPU (torch cannot use GPU {gpus})" if gpus else "CPU"
        if device.type == "cpu":
            torch.set_num_threads(1)  # lanes are bit-identical at a fixed thread count
        self.name = name
        self._journal = None if tracking is None else Journal(Path(sweep_dir) / "tracking" / f"{name}.jsonl")
        self._tracking = tracking
        self.loop = TrainerLoop(Path(sweep_dir), config, device, self._record, slots, label, name)

    def run(self, pool: Any) -> None:
        """Train until the pool says to leave. One call to the pool is always under way.

        At an epoch's boundary two answers are heard: to what was told at the last one, then to what this epoch brought,
        so that verdicts given during the epoch stop their trials here and not an epoch later. They are waited for
        briefly; only who has no work waits, or has just been given work whose cost nobody knew: the answer says what
        else there is room for, now that it is known.
        """
        import ray

        answer = pool.exchange.remote(self.name, self.loop.news())
        heard, learned = 0, False
        while True:
            ready, _ = ray.wait([answer], timeout=None if self.loop.idle or learned else PATIENCE_S)
            if ready:
                orders: Orders = ray.get(answer)
                known = self.loop.capacity.known
                self.loop.obey(orders)
                heard, learned = heard + 1, self.loop.capacity.known != known
                answer = pool.exchange.remote(self.name, self.loop.news())
                if orders.leave:
                    ray.get(answer)
                    return
                if heard < ANSWERS or learned:
                    continue
            if not self.loop.idle:
                self.loop.step()
                heard = 0

    def _record(self, trial_id: str, epoch: int, numbers: Mapping[str, float], time_ms: int) -> None:
        if self._journal is not None and self._tracking is not None:
            self._journal.metrics(self._tracking.run_of(trial_id), numbers, epoch, time_ms)
