"""The lane pool: one Ray actor per sweep that spreads trials over trainer actors. Start here to use it.

::

    pool = start_pool(sweep_dir, PoolConfig(), tracking)         # in the sweep's driver; Ray is connected
    pool.submit(TrialRequest("t00000", config, rungs=(5, 10, 20)))  # from any process of the job; handles pickle
    report = pool.next_report("t00000", after=0)                 # blocks until a report past epoch 0
    report = pool.next_report("t00000", after=report.epoch)      # asking again means: go on (it went on already)
    pool.due(); pool.report_now("t00000", after=report.epoch)    # the same without waiting: who has a report to tell
    pool.stop("t00000", "pruned")                                # or "complete", ...: always the last word on a trial
    pool.drain()                                                 # SIGTERM: checkpoint all; waiters get parked=True
    pool.close()                                                 # end of the sweep: ship tracking, end actors

Reports come again in the same order after a resume: a trial submitted again with the same id continues from its newest
checkpoint and tells the rungs it passed before, so ask with the last epoch you know in ``after``. ``report.ends`` says
that nothing follows: ``final``, ``error`` or ``parked``. The pool belongs to the driver that started it: when that
dies, pool and trainers end, and what came after the last checkpoints is lost. No torch in here.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.config import PoolConfig
from cluster.journal import JournalShipper, TrackingTarget
from cluster.pool_state import PoolState
from cluster.protocol import News, Orders, RungReport, StopReason, TrialRequest
from cluster.resources import Slots, trainer_resources
from cluster.retention import Retention
from cluster.trainer_actor import TrainerActor
from trainer.errors import UserError

NAMESPACE = "paceline"
IDLE_POLL_S = 2.0
"""A trainer without work asks again after this long, so that a lost answer is never waited for."""
WATCH_S = 2.0
"""How often the cluster is looked at for new nodes."""
START_GRACE_S = 60.0
"""A trainer that has not joined after this long is not counted on when lanes are spread."""
MOST_FAILED_STARTS = 5
"""Trainers that may die one after the other before any joins; then the pool gives up instead of waiting for ever."""


class PoolError(RuntimeError):
    """The pool cannot go on (no trainer starts, or the pool is gone); the sweep can be resumed."""


@dataclass(frozen=True)
class PoolHandle:
    """A client of a running pool; pickles, and works in every process of the same Ray job."""

    name: str

    def submit(self, request: TrialRequest) -> None:
        """Queue a trial. A configuration at fault comes back as a report with ``error``.

        Raises:
            UserError: a trial of this id is live.
            PoolError: the pool is gone.
        """
        self._call("submit", request)

    def next_report(self, trial_id: str, after: int) -> RungReport:
        """Wait for the trial's first report past epoch ``after``, or the one that ended it. Safe to ask twice.

        Raises:
            UserError: the trial was not submitted, or was stopped.
            PoolError: no trainer can be started, or the pool is gone.
        """
        report: RungReport = self._call("next_report", trial_id, after)
        return report

    def report_now(self, trial_id: str, after: int) -> RungReport | None:
        """As :meth:`next_report`, but None where there is none yet."""
        report: RungReport | None = self._call("report_now", trial_id, after)
        return report

    def go_on(self, trial_id: str, epoch: int) -> None:
        """Say that the trial is to go on past its rung at ``epoch``, as asking for the next report does."""
        self._call("go_on", trial_id, epoch)

    def due(self) -> tuple[str, ...]:
        """Trials that have something new to tell: their next report is there.

        Raises:
            PoolError: no trainer can be started, or the pool is gone.
        """
        trial_ids: tuple[str, ...] = self._call("due")
        return trial_ids

    def stop(self, trial_id: str, reason: StopReason) -> None:
        """The last word on a trial: free its lanes if it has any, and drop what nobody needs any more.

        After ``"paused"`` its checkpoints stay: it may be submitted again.
        """
        self._call("stop", trial_id, reason)

    def drain(self, timeout_s: float = 30.0) -> tuple[str, ...]:
        """Checkpoint every trial at its next boundary and end the trainers; returns those not checkpointed in time."""
        late: tuple[str, ...] = self._call("drain", timeout_s)
        return late

    def status(self) -> dict[str, Any]:
        """What waits, trains and has ended, and the lanes of every trainer: JSON values."""
        status: dict[str, Any] = self._call("status")
        return status

    def close(self, flush_s: float = 30.0) -> bool:
        """End the pool; False where the tracking server did not take everything (the journals keep the rest)."""
        shipped: bool = self._call("close", flush_s)
        ray.kill(self._actor())
        return shipped

    def _actor(self) -> Any:
        try:
            return ray.get_actor(self.name, namespace=NAMESPACE)
        except ValueError as error:
            raise PoolError(f"the lane pool {self.name} is gone; resume the sweep") from error

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return ray.get(getattr(self._actor(), method).remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, (UserError, PoolError)):
                raise cause from None
            raise
        except ray.exceptions.RayActorError as error:
            raise PoolError(f"the lane pool {self.name} is gone; resume the sweep") from error


def start_pool(sweep_dir: Path, config: PoolConfig, tracking: TrackingTarget | None) -> PoolHandle:
    """Start a pool on this node, owned by this driver, for a sweep whose folder every node sees.

    Args:
        sweep_dir: the sweep's folder; trials continue from the checkpoints in it.
        config: trainers and their room.
        tracking: where trials are tracked, None for nowhere.

    Raises:
        UserError: the cluster has no room for a single trainer and cannot grow.
    """
    name = f"pool-{uuid.uuid4().hex[:12]}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = (
        ray.remote(LanePool)
        .options(
            name=name,
            namespace=NAMESPACE,
            num_cpus=0,
            max_concurrency=100_000,
            scheduling_strategy=here,
            max_restarts=0,
        )
        .remote(str(sweep_dir.resolve()), config, tracking, name)
    )
    ray.get(actor.start.remote())
    _KEPT.append(actor)
    return PoolHandle(name)


_KEPT: list[Any] = []  # the driver's own references: a pool lives as long as they do


class LanePool:
    """The actor behind :class:`PoolHandle`: :class:`PoolState` with waiting, actors and tracking around it."""

    def __init__(self, sweep_dir: str, config: PoolConfig, tracking: TrackingTarget | None, name: str) -> None:
        self.sweep_dir, self.config, self.tracking, self.name = Path(sweep_dir), config, tracking, name
        self.state = PoolState(config)
        self.slots = Slots(config)
        self._news: dict[str, asyncio.Event] = {}  # by trial, where somebody waits
        self._work = asyncio.Event()  # something may have come for trainers without work
        self._actors: dict[str, Any] = {}
        self._started_s: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_starts = 0
        self._failure: str | None = None
        self._shipper: JournalShipper | None = None
        self._retention = Retention(self.sweep_dir / "trials", config.kept_trials)
        if tracking is not None:
            self._shipper = JournalShipper(self.sweep_dir / "tracking", tracking)

    async def start(self) -> None:
        """Start the trainers and keep watch."""
        self._spawn(self._watch())
        if self._shipper is not None:
            asyncio.get_running_loop().run_in_executor(None, self._shipper.run)

    async def submit(self, request: TrialRequest) -> None:
        self.state.submit(request)
        self._settle()

    async def next_report(self, trial_id: str, after: int) -> RungReport:
        while True:
            report = self.state.next_report(trial_id, after)
            if report is not None:
                return report
            if self._failure is not None:
                raise PoolError(self._failure)
            await self._news.setdefault(trial_id, asyncio.Event()).wait()

    async def report_now(self, trial_id: str, after: int) -> RungReport | None:
        return self.state.next_report(trial_id, after)

    async def go_on(self, trial_id: str, epoch: int) -> None:
        self.state.go_on(trial_id, epoch)

    async def due(self) -> tuple[str, ...]:
        due = self.state.due()
        if not due and self._failure is not None:
            raise PoolError(self._failure)
        return due

    async def stop(self, trial_id: str, reason: StopReason) -> None:
        entry = self.state.entries.get(trial_id)
        score = entry.reports[-1].score if entry is not None and entry.reports and entry.reports[-1].final else None
        self.state.stop(trial_id)
        self._settle()
        if reason != "paused" and not self.state.draining:
            await asyncio.to_thread(self._retention.ended, trial_id, score)

    async def drain(self, timeout_s: float) -> tuple[str, ...]:
        self.state.drain()
        self._settle()
        deadline = time.monotonic() + timeout_s
        while self.state.training and time.monotonic() < deadline:
            await self._wait_for_work(deadline - time.monotonic())
        late = self.state.give_up()
        self._settle()
        return late

    async def status(self) -> dict[str, Any]:
        now = time.monotonic()
        starting = {n: round(now - since) for n, since in self._started_s.items() if n not in self.state.trainers}
        tracking = None if self._shipper is None else self._shipper.last_error
        return {**self.state.status(), "starting": starting, "tracking_error": tracking, "failure": self._failure}

    async def close(self, flush_s: float) -> bool:
        self.state.drain()
        self._settle()
        for actor in self._actors.values():
            ray.kill(actor)
        if self._shipper is None:
            return True
        shipped = await asyncio.to_thread(self._shipper.flush, flush_s)
        self._shipper.close()
        return shipped

    async def exchange(self, trainer: str, news: News) -> Orders:
        """A trainer's call: see :meth:`PoolState.exchange`. One without work waits here until there is some."""
        if trainer in self._actors:
            self.state.joined(trainer)
            self._failed_starts = 0
        orders = self.state.exchange(trainer, news, self._counted_on())
        self._settle()
        deadline = time.monotonic() + IDLE_POLL_S
        while not news.offer.groups and orders == Orders() and time.monotonic() < deadline:
            await self._wait_for_work(deadline - time.monotonic())
            orders = self.state.exchange(trainer, News(news.offer), self._counted_on())
        return orders

    def _settle(self) -> None:
        """Wake whoever waits for news of trials or for work."""
        touched, self.state.touched = self.state.touched, set()
        for trial_id in touched:
            self._wake(trial_id)
        work, self._work = self._work, asyncio.Event()
        work.set()

    def _wake(self, trial_id: str) -> None:
        if trial_id in self._news:
            self._news.pop(trial_id).set()

    async def _wait_for_work(self, timeout_s: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._work.wait(), timeout_s)

    async def _watch(self) -> None:
        """Keep as many trainers as the cluster has room for, as nodes come and go."""
        while not self.state.draining and self._failure is None:
            for _ in range(await asyncio.to_thread(self.slots.wanted) - len(self._actors)):
                self._start_trainer()
            await asyncio.sleep(WATCH_S)

    def _start_trainer(self) -> None:
        name = f"trainer-{uuid.uuid4().hex[:8]}"
        resources = trainer_resources(self.config, self.slots.gpus)
        actor: Any = (
            ray.remote(TrainerActor)
            .options(max_restarts=0, **resources)
            .remote(name, str(self.sweep_dir), self.config, self.slots.per_node, self.tracking)
        )
        self._actors[name], self._started_s[name] = actor, time.monotonic()
        self._spawn(self._mind(name, actor))

    async def _mind(self, name: str, actor: Any) -> None:
        """Wait for a trainer's end; its trials go back to the queue."""
        try:
            await actor.run.remote(ray.get_runtime_context().current_actor)
        except RayError as error:
            if not self.state.draining:
                print(f"{name} died: {error}", file=sys.stderr)
            self._failed_starts += name not in self.state.trainers
            if self._failed_starts >= MOST_FAILED_STARTS:
                self._failure = f"{MOST_FAILED_STARTS} trainers died before they joined; the last one: {error}"
                for trial_id in list(self._news):
                    self._wake(trial_id)
        del self._actors[name], self._started_s[name]
        self.state.lost(name)
        self._settle()
        if not self.state.draining and self._failure is None:
            await asyncio.sleep(min(0.25 * 2**self._failed_starts, 30.0))
            if len(self._actors) < await asyncio.to_thread(self.slots.wanted):
                self._start_trainer()

    def _counted_on(self) -> int:
        now = time.monotonic()
        joined = set(self.state.trainers)
        starting = [n for n, since in self._started_s.items() if n not in joined and now - since < START_GRACE_S]
        return len(joined) + len(starting)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
