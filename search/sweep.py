"""Runs a sweep: a lane pool, and Tune runs chained under one log.

Tune keeps some 50 kB in the driver for every trial it has seen, so no Tune run gets more than ``sweep.chain`` trials.
When one is full the next one takes over the trials in flight: they live in the pool, which goes on training meanwhile.

Whatever ends a sweep early (SIGTERM, SIGINT, the time budget) drains the pool: trainers checkpoint at their next
boundary, trials are parked, and the Tune run ends. All of that is a courtesy: a driver that is killed loses only what
came after the last checkpoints.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray import tune

from cluster.pool import PoolError, PoolHandle
from search.course import Course
from search.scheduler import SweepScheduler
from search.trainable import TrialClient
from search.tune_searcher import Room, TuneSearcher
from search.turns import Turns

_TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no per-trial CSV, JSON and TensorBoard files
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # signals are handled here
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # failed trials have no score
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # the log is the state; Tune's file is rewritten whole
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "10",
    "RAY_AIR_NEW_OUTPUT": "0",
}
CLIENT_LOSSES = 5
"""Client processes that a trial may lose to dying nodes within one Tune run; the trial itself is in the pool."""
CLIENT_BYTES = 128 << 20
"""What a client reserves: memory, no CPU, so that it fits beside trainers that hold every CPU."""
STATUS_EVERY_S = 2.0


class SweepRun:
    """One driver's work on a sweep.

    Args:
        course: the sweep.
        pool: where trials train.
        on_status: called with the pool's account now and then.
    """

    def __init__(self, course: Course, pool: PoolHandle, on_status: Callable[[dict[str, Any]], None]) -> None:
        self.course, self.pool, self.on_status = course, pool, on_status
        self.closing: str | None = None
        self._drained = False
        course.pool = pool

    def run(self) -> str | None:
        """Work until every trial has ended; returns why it ended earlier, None where it did not.

        Raises:
            PoolError: nothing gets done: the pool is gone, or cannot train.
        """
        with self._watching():
            while not self.course.finished and self.closing is None:
                before = self.course.appended
                self._tune_run()
                if self.closing is None and self.course.appended == before:
                    self._look()
                    raise PoolError("the clients of trials die one after the other; see Ray's logs, then resume")
        if self.closing is None:
            self._look()
        return self.closing

    def close(self, because: str) -> None:
        """End early: checkpoint and park what runs. Returns when that is done."""
        if self.closing is None:
            self.closing = because
            self.course.stop(because)
            with suppress(PoolError):
                self.pool.drain()
            self._drained = True  # not before: the Tune run ends now, and the pool with it

    def _look(self) -> None:
        status = self.pool.status()
        self.course.trainers |= status["accounts"]
        self.on_status(status)

    def _tune_run(self) -> None:
        sweep = self.course.profile.sweep
        turns = Turns(self.pool.due)
        searcher = TuneSearcher(
            self.course,
            self.course.ledger.open_trials,
            most=sweep.chain,
            room=Room(self.pool.status, sweep.concurrent, sweep.waiting),
            turns=turns,
            closing=lambda: self._drained,
        )
        scheduler = SweepScheduler(sweep.scheduler, self.course.budget, self.course.ledger.trials.values(), turns)
        os.environ.update(_TUNE_ENVIRONMENT)
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # it would list every trial without a result file
        with _scratch() as storage:
            tune.run(
                tune.with_resources(tune.with_parameters(TrialClient, pool=self.pool), {"memory": CLIENT_BYTES}),
                name="tune",
                search_alg=searcher,
                scheduler=scheduler,
                num_samples=-1,
                reuse_actors=True,
                stop=_ChainEnd(searcher, lambda: self._drained),
                max_failures=CLIENT_LOSSES,
                raise_on_failed_trial=False,
                storage_path=str(storage),
                trial_dirname_creator=lambda trial: str(trial.trial_id),
                verbose=0,
            )
        gc.collect()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """The time budget and the status line, beside Tune's loop."""
        budget = self.course.profile.sweep.time_budget
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(STATUS_EVERY_S):
                with suppress(PoolError):
                    self._look()

        timers = [threading.Thread(target=watch, daemon=True)]
        if budget is not None:
            timers.append(threading.Timer(budget, self.close, [f"time budget of {budget:g} s used up"]))
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            ended.set()
            if budget is not None:
                timers[1].cancel()  # type: ignore[attr-defined]


class _ChainEnd(tune.Stopper):
    """Ends a Tune run that had its share of trials while others are left; those in flight go over to the next one.
    One of a pool that was drained ends too."""

    def __init__(self, searcher: TuneSearcher, drained: Callable[[], bool]) -> None:
        self._searcher, self._drained = searcher, drained

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002
        return False

    def stop_all(self) -> bool:
        return self._drained() or self._searcher.full

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles what it was given into its own state, from which nothing is ever restored."""
        return {}


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="paceline-tune-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
