"""Files written beside training: a trainer on a GPU does not wait for disks.

Jobs of one trial are done in their order, those of several trials side by side. What follows from a job (a report that
must not be heard before the checkpoint is on disk) is done by the trainer's own thread, when it settles. Without
threads a job is done at once: on a CPU the disk is not what an epoch waits for, and they would take others' cores.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

Job = Callable[[], object]


@dataclass
class _Work:
    trial_id: str
    jobs: tuple[Job, ...]
    then: Job
    ready: Any  # event of the device after which what the job reads is there, None on a CPU
    error: BaseException | None = None


class Writer:
    """Owned by one trainer; only jobs run in other threads.

    Args:
        threads: how many; 0 does every job when it is given.
        device: where tensors come from; a GPU's copies go over a stream of each thread's own, past the steps under way.
    """

    def __init__(self, threads: int, device: torch.device) -> None:
        self._device = device
        self._waiting: deque[_Work] = deque()
        self._running: dict[str, _Work] = {}  # by trial
        self._done: deque[_Work] = deque()
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._serve, name="writer", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def put(self, trial_id: str, jobs: Sequence[Job], then: Job) -> None:
        """Do ``jobs`` in their order, and ``then`` when the trainer settles after them.

        While earlier jobs of the trial are under way this waits, so that copies of lanes do not pile up.
        """
        if not self._threads:
            for job in jobs:
                job()
            then()
            return
        self.finish(trial_id)
        work = _Work(trial_id, tuple(jobs), then, self._event())
        with self._changed:
            self._waiting.append(work)
            self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """Jobs are under way, or done and not settled."""
        with self._changed:
            return bool(self._waiting or self._running or self._done)

    def settle(self, wait_s: float = 0.0) -> None:
        """Do what follows from finished jobs; with ``wait_s`` wait for one so long. A job's error is raised here."""
        if wait_s:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._done), wait_s)
        while True:
            with self._changed:
                if not self._done:
                    return
                work = self._done.popleft()
            if work.error is not None:
                raise work.error
            work.then()

    def finish(self, trial_id: str | None = None) -> None:
        """Wait for a trial's jobs, or for all of them, and settle."""

        def left() -> bool:
            of = [work.trial_id for work in self._waiting] + list(self._running)
            return trial_id in of if trial_id is not None else bool(of)

        with self._changed:
            self._changed.wait_for(lambda: not left())
        self.settle()

    def _event(self) -> Any:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _serve(self) -> None:
        stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                work = self._waiting.popleft()
                self._running[work.trial_id] = work
            try:
                with nullcontext() if stream is None else torch.cuda.stream(stream):
                    if stream is not None:
                        stream.wait_event(work.ready)
                    for job in work.jobs:
                        job()
            except BaseException as error:  # the trainer's thread raises it
                work.error = error
            work.jobs = ()  # lets go of the lanes that they held
            with self._changed:
                del self._running[work.trial_id]
                self._done.append(work)
                self._changed.notify_all()
