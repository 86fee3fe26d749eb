"""The sweep's searcher as Tune sees it: asks and tells go to the log first, trials to the pool.

Tune's trial ids end with a Tune run; the sweep's own (``t00000``, ``t00001``, ... in the order of asks) do not. Trials
that were asked for and have not ended, left by a crash or an earlier Tune run of the chain, come first.
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
        closing: whether no trial should begin any more.
    """

    def __init__(
        self,
        course: Course,
        left: list[TrialRecord],
        most: int,
        room: Callable[[int], bool],
        closing: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.course, self.most, self.room, self.closing = course, most, room, closing
        self.given = 0
        self.dry = False  # the course has no trial left to ask for
        self._left = deque(left)
        self._live: dict[str, str] = {}  # Tune's trial id -> ours

    @property
    def live(self) -> int:
        """Trials that Tune holds."""
        return len(self._live)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]  # Tune's own FINISHED
        """Tune's question for one more trial."""
        if self.closing() or self.given >= self.most or self.dry:
            return str(RaySearcher.FINISHED)
        if not self.room(self.live):
            return None
        trial = self._left.popleft() if self._left else self.course.ask()
        if trial is None:
            self.dry = True
            return str(RaySearcher.FINISHED)
        self.course.begin(trial)
        self.given += 1
        self._live[trial_id] = trial.trial_id
        return {TRIAL_KEY: trial.trial_id, AFTER_KEY: trial.epoch}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:  # noqa: ARG002
        """A rung after which the trial goes on."""
        report = report_of(result)
        if report is not None:
            self.course.rung(report)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:  # noqa: ARG002
        """The trial's last report, or the rung at which the scheduler stopped it; without either it stays open."""
        self._live.pop(trial_id, None)
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
