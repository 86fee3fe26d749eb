"""A lane pool whose trainers do not train: every epoch of every trial is over at once, with a made-up score.

Everything around the training is real (driver, Tune, clients, pool, journals, tracking), so what is measured or tested
with it is the service. Scores are a pure function of the trial's configuration and the epoch.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from benchmarks.tracking_calls import Calls
from cluster.config import PoolConfig
from cluster.journal import Journal, TrackingTarget
from cluster.pool import NAMESPACE, LanePool, PoolHandle
from cluster.protocol import Admission, News, Offer, Orders, RungReport

LANES = 3
CALLS = "tracking_calls.json"
_KEPT: list[Any] = []


def score_of(config: Mapping[str, Any], epoch: int) -> float:
    """Between 0 and 1, rising with the epoch towards a height that depends on the configuration."""
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 * epoch / (epoch + 1.0)


class TrivialTrainer:
    """Speaks a trainer's protocol; see :class:`cluster.trainer_actor.TrainerActor`.

    Args:
        epoch_s: seconds an epoch of all residents takes.
    """

    def __init__(self, name: str, sweep_dir: str, tracking: TrackingTarget | None, epoch_s: float, lanes: int) -> None:
        self.name, self._epoch_s, self._lanes, self._tracking = name, epoch_s, lanes, tracking
        self._journal = None if tracking is None else Journal(Path(sweep_dir) / "tracking" / f"{name}.jsonl")
        self._trials: dict[str, tuple[Admission, int]] = {}
        self._reports: list[tuple[int, RungReport]] = []

    def run(self, pool: Any) -> None:
        """Until the pool says to leave."""
        while True:
            orders: Orders = ray.get(pool.exchange.remote(self.name, self._news()))
            for trial_id in orders.stop:
                self._trials.pop(trial_id, None)
            for admission in orders.admit:
                self._trials[admission.request.trial_id] = (admission, 0)
            if orders.leave:
                for trial_id, (admission, epoch) in self._trials.items():
                    self._reports.append((admission.attempt, RungReport(trial_id, epoch, None, parked=True)))
                self._trials = {}
                ray.get(pool.exchange.remote(self.name, self._news()))
                return
            if self._trials:
                time.sleep(self._epoch_s)
            for trial_id in list(self._trials):
                self._advance(trial_id)

    def _advance(self, trial_id: str) -> None:
        admission, epoch = self._trials[trial_id][0], self._trials[trial_id][1] + 1
        self._trials[trial_id] = (admission, epoch)
        request = admission.request
        score = score_of(request.config, epoch)
        if self._journal is not None and self._tracking is not None:
            self._journal.metrics(self._tracking.run_of(trial_id), {"fold_0/val_sharpe": score}, epoch)
        final = epoch == request.rungs[-1]
        if epoch in request.rungs:
            folds = tuple({"fold": float(fold), "val_sharpe": score} for fold in range(LANES))
            self._reports.append((admission.attempt, RungReport(trial_id, epoch, score, folds, final=final)))
        if final:
            del self._trials[trial_id]

    def _news(self) -> News:
        signatures = ("one",) if self._trials else ()
        epochs = {trial_id: epoch for trial_id, (_, epoch) in self._trials.items()}
        news = News(Offer(self._lanes - LANES * len(self._trials), groups=signatures), tuple(self._reports), (), epochs)
        self._reports = []
        return news


class TrivialPool(LanePool):
    """A pool of such trainers. Leaves what it asked of MLflow in the sweep's folder."""

    epoch_s, lanes = 0.0, 48

    def __init__(self, sweep_dir: str, config: PoolConfig, tracking: TrackingTarget | None, name: str) -> None:
        self._calls = Calls()
        super().__init__(sweep_dir, config, tracking, name)

    async def process(self) -> int:
        return os.getpid()

    async def close(self, flush_s: float) -> bool:
        shipped = await super().close(flush_s)
        (self.sweep_dir / CALLS).write_text(json.dumps(self._calls.to_json()))
        return shipped

    def _start_trainer(self) -> None:
        name = f"trainer-{uuid.uuid4().hex[:8]}"
        options = ray.remote(TrivialTrainer).options(num_cpus=self.config.trainer_cpus)
        actor = options.remote(name, str(self.sweep_dir), self.tracking, self.epoch_s, self.lanes)
        self._actors[name], self._started_s[name] = actor, time.monotonic()
        self._spawn(self._mind(name, actor))


def start_trivial_pool(
    sweep_dir: Path, config: PoolConfig, tracking: TrackingTarget | None, epoch_s: float = 0.0, lanes: int = 48
) -> PoolHandle:
    """As :func:`cluster.pool.start_pool`."""
    name = f"pool-{uuid.uuid4().hex[:12]}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    kind = type("TrivialPool", (TrivialPool,), {"epoch_s": epoch_s, "lanes": lanes})
    actor: Any = (
        ray.remote(kind)
        .options(name=name, namespace=NAMESPACE, num_cpus=0, max_concurrency=100_000, scheduling_strategy=here)
        .remote(str(sweep_dir.resolve()), config, tracking, name)
    )
    ray.get(actor.start.remote())
    _KEPT.append(actor)
    return PoolHandle(name)


def process_of(pool: PoolHandle) -> int:
    """The pool's process."""
    actor = ray.get_actor(pool.name, namespace=NAMESPACE)
    return int(ray.get(actor.process.remote()))
