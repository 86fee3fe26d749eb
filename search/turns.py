"""Whose turn it is to be spoken for by a Tune client.

Trials train in the pool whether or not a client speaks for them, and a client is a process that takes a core two or
three seconds to start. So there is one: it fetches a trial's report once that is there, Tune says what is to become of
the trial, and the client goes on to the next one that has something to tell.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

EVERY_S = 0.1
"""How often the pool is asked who has something to tell."""


class Turns:
    """Gives out turns, one at a time.

    Args:
        due: the trials that have something to tell, the pool's answer.
    """

    def __init__(self, due: Callable[[], Collection[str]]) -> None:
        self._ask = due
        self._due: set[str] = set()
        self._asked_s = 0.0
        self._current: str | None = None
        self._first = True

    def next(self, candidates: Iterable[str]) -> str | None:
        """The first of the candidates that has something to tell, and it is its turn now; None where nobody has, or
        another trial's turn is not over.

        The very first candidate need have nothing to tell: the client starts while trainers do.
        """
        if self._current is not None:
            return None
        now = time.monotonic()
        if now - self._asked_s > EVERY_S:
            self._asked_s, self._due = now, set(self._ask())
        self._current = next((trial_id for trial_id in candidates if self._first or trial_id in self._due), None)
        if self._current is not None:
            self._first = False
            self._due.discard(self._current)  # the answer is from before its turn
        return self._current

    def wait(self) -> None:
        """Wait a moment if it is nobody's turn: Tune looks again at once where no client is at work."""
        if self._current is None:
            time.sleep(EVERY_S)

    def over(self, trial_id: str) -> None:
        """The trial has told what it had to."""
        if self._current == trial_id:
            self._current = None
