"""The sweep's searcher as Tune sees it: asks and tells go to the log first, trials to the pool.

Tune's trial ids end with a Tune run; the sweep's own (``t00000``, ``t00001``, ... in the order of asks) do not. Trials
that were asked for and have not ended, left by a crash or an earlier Tune run of the chain, come first. A trial begins
in the pool as soon as there is room, and with Tune when it has its first report (:mod:`search.turns`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ray.tune.search import Searcher as RaySearcher

from cluster.protocol import RungReport
from search.results import TrialRecord
from search.trainable import AFTER_KEY, TRIAL_KEY, report_of
from search.turns import Turns

BEGIN_S = 1.0
"""Tune is not kept waiting longer while trials begin."""


class Course(Protocol):
    """What the sweep does when Tune asks and tells."""

    def ask(self) -> TrialRecord | None:
        """One more trial, None where there is none."""

    def begin(self, trial: TrialRecord) -> None:
        """Give a trial to the pool, if it is not there already."""

    def rung(self, report: RungReport) -> None:
        """A trial reached a rung and goes on."""

    def end(self, report: RungReport, *, pruned: bool) -> None:
        """A trial's last report, or the rung at which the scheduler stopped it."""


class TuneSearcher(RaySearcher):
    """One per Tune run.

    Args:
        course: the sweep.
        left: trials to continue before any is asked for.
        most: trials of this Tune run, those to continue included.
        room: whether the pool takes another trial now.
        turns: who may have a client.
        closing: whether no trial should begin any more.
    """

    def __init__(
        self,
        course: Course,
        left: list[TrialRecord],
        most: int,
        room: Callable[[int], bool],
        turns: Turns,
        closing: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.course, self.most, self.room, self.turns, self.closing = course, most, room, turns, closing
        self.given = 0
        self.dry = False  # the course has no trial left to ask for
        self._left = deque(left)
        self._begun: dict[str, TrialRecord] = {}  # in the pool, not with Tune yet
        self._live: dict[str, str] = {}  # Tune's trial id -> ours

    @property
    def live(self) -> int:
        """Trials that began and did not end."""
        return len(self._begun) + len(self._live)

    @property
    def full(self) -> bool:
        """Tune had its share of trials, and others are left."""
        return self.given >= self.most and not (self.dry and not self._begun)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]  # Tune's own FINISHED
        """Tune's question for one more trial."""
        self._begin()
        if self.closing() or (self.dry and not self.live):  # not before: Tune would let go of its client
            return str(RaySearcher.FINISHED)
        ours = self.turns.next(self._begun) if self.given < self.most else None
        if ours is None:
            return None
        trial = self._begun.pop(ours)
        self.given += 1
        self._live[trial_id] = ours
        return {TRIAL_KEY: ours, AFTER_KEY: trial.epoch}

    def _begin(self) -> None:
        """Fill the pool."""
        until_s = time.monotonic() + BEGIN_S
        while not self.closing() and not self.dry and time.monotonic() < until_s and self.room(self.live):
            trial = self._left.popleft() if self._left else self.course.ask()
            if trial is None:
                self.dry = True
                return
            self.course.begin(trial)
            self._begun[trial.trial_id] = trial

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:  # noqa: ARG002
        """A rung after which the trial goes on."""
        report = report_of(result)
        if report is not None:
            self.course.rung(report)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:  # noqa: ARG002
        """The trial's last report, or the rung at which the scheduler stopped it; without either it stays open."""
        self.turns.over(self._live.pop(trial_id, ""))
        report = None if result is None else report_of(result)
        if report is not None:
            self.course.end(report, pruned=not report.ends)

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles what it was given into its own state, from which nothing is ever restored."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """The log is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """The log is the state."""


class Room:
    """Whether the pool takes another trial: so many at once, or as long as few of those it has are waiting.

    Args:
        status: the pool's own account.
        concurrent: most trials at once, None where the pool's room decides.
        waiting: trials that should wait there so that freed lanes refill at once.
    """

    EVERY_S, MOST = 0.25, 512

    def __init__(self, status: Callable[[], Mapping[str, Any]], concurrent: int | None, waiting: int) -> None:
        self._status, self._concurrent, self._waiting = status, concurrent, waiting
        self._asked_s, self._free = 0.0, 0

    def __call__(self, live: int) -> bool:
        """``live``: trials that Tune holds now."""
        if self._concurrent is not None:
            return live < self._concurrent + self._waiting
        if live >= self.MOST:
            return False
        now = time.monotonic()
        if now - self._asked_s > self.EVERY_S:
            self._asked_s = now
            self._free = max(self._waiting, 1) - int(self._status()["waiting"])
        self._free -= 1
        return self._free >= 0
