"""The interface of all searchers: ask for a trial's values, tell how the trial ended.

Scores are maximised. A searcher is asynchronous: any number of asks may be in flight, tells arrive in any order, late,
twice, never, or for trials it does not know. It is a deterministic function of its constructor's arguments and the
sequence of asks and tells, so that the log of a sweep replays exactly (``replay``), and its state is plain JSON.

What all searchers share lives here: points to try first, no configuration twice, none that the config would refuse,
who is in flight, who is finished. A searcher itself only proposes points and learns from outcomes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal

import numpy as np

from search.space import Point, Space, Value
from trainer.errors import UserError

Earlier = tuple[Mapping[str, Value], float]

_TRIES = 24
_ENUMERABLE = 5_000


class Ending(StrEnum):
    """How a trial ended."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True)
class Outcome:
    """What a searcher is told. Build it with ``complete``, ``pruned``, ``failed`` or ``infeasible``.

    ``score``: higher is better, None where there is none. ``step``: the rung a pruned trial reached.
    """

    ending: Ending
    score: float | None = None
    step: int | None = None

    @staticmethod
    def complete(score: float) -> Outcome:
        """The full budget was spent. A score that is NaN or infinite is a failure."""
        return Outcome(Ending.COMPLETE, score) if math.isfinite(score) else Outcome.failed()

    @staticmethod
    def pruned(score: float, step: int) -> Outcome:
        """Stopped early with this score at ``step``: never compared with a full-budget score as if it were one."""
        return Outcome(Ending.PRUNED, score, step) if math.isfinite(score) else Outcome.failed()

    @staticmethod
    def failed() -> Outcome:
        """Crashed, lost, or without a finite score."""
        return Outcome(Ending.FAILED)

    @staticmethod
    def infeasible() -> Outcome:
        """The configuration cannot be run at all."""
        return Outcome(Ending.INFEASIBLE)

    @property
    def rank(self) -> tuple[float, float] | None:
        """``(fidelity, score)``, compared in this order; None without a score.

        Full budget is fidelity infinity. Under successive halving a trial that got further was better at every rung
        both reached, so fidelity goes first.
        """
        if self.score is None:
            return None
        return (math.inf if self.step is None else float(self.step), self.score)


@dataclass(frozen=True)
class Suggestion:
    """What to try: ``point`` ``[D]`` in the unit cube and the same thing as values of the active dimensions."""

    trial_id: str
    point: Point
    values: dict[str, Value]


class Searcher(ABC):
    """Base of all searchers.

    ``first``: values to try before anything else (dimensions left out sit in the middle of their range).
    ``earlier``: (values, score) of another sweep; those the space does not contain are left out.
    """

    name: ClassVar[str]

    def __init__(
        self, space: Space, seed: int, first: Sequence[Mapping[str, Value]] = (), earlier: Sequence[Earlier] = ()
    ) -> None:
        self.space = space
        self.seed = seed
        self.in_flight: dict[str, Suggestion] = {}
        self.finished: dict[str, str] = {}
        self._first: list[Point] = [space.encode(values) for values in first]
        self._tried: set[str] = set()
        self._draws = 0
        self._everything: list[dict[str, Value]] | None = None
        self._enumerated = False
        self._set_earlier(_known(space, earlier))

    def ask(self, trial_id: str) -> Suggestion | None:
        """What ``trial_id`` should try; None when every configuration of a finite space has been given out.

        Asking again for a trial in flight gives the same suggestion. UserError for a trial already told.
        """
        if trial_id in self.in_flight:
            return self.in_flight[trial_id]
        if trial_id in self.finished:
            raise UserError(f"trial {trial_id} has already ended as {self.finished[trial_id]}; ask with a new id")
        suggestion = self._from_first(trial_id)
        if suggestion is None:
            suggestion = self._fresh(trial_id)
        if suggestion is None:
            return None
        self._accept(suggestion)
        self._tried.add(self.space.key(suggestion.values))
        self.in_flight[trial_id] = suggestion
        return suggestion

    def tell(self, trial_id: str, outcome: Outcome) -> bool:
        """Learn how a trial ended. False, with nothing changed, for an unknown trial and for a second tell."""
        suggestion = self.in_flight.pop(trial_id, None)
        if suggestion is None:
            return False
        self._learn(suggestion, outcome)
        self.finished[trial_id] = outcome.ending.value
        return True

    def state(self) -> dict[str, Any]:
        """Everything needed to continue identically, as JSON."""
        return {
            "searcher": self.name,
            "seed": self.seed,
            "space": self.space.fingerprint(),
            "in_flight": {s.trial_id: [list(s.point), s.values] for s in self.in_flight.values()},
            "finished": dict(self.finished),
            "first": [list(point) for point in self._first],
            "tried": sorted(self._tried),
            "draws": self._draws,
            "own": self._own_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``. UserError if it is of another searcher, seed or space."""
        for key, mine in (("searcher", self.name), ("seed", self.seed), ("space", self.space.fingerprint())):
            if state.get(key) != mine:
                raise UserError(f"the saved searcher state has {key} {state.get(key)!r}, this sweep has {mine!r}")
        self.in_flight = {
            trial_id: Suggestion(trial_id, tuple(point), dict(values))
            for trial_id, (point, values) in state["in_flight"].items()
        }
        self.finished = dict(state["finished"])
        self._first = [tuple(point) for point in state["first"]]
        self._tried = set(state["tried"])
        self._draws = state["draws"]
        self._restore_own(state["own"])

    @abstractmethod
    def _propose(self, trial_id: str, attempt: int) -> Suggestion:
        """A suggestion. ``attempt`` counts this ask's refused ones (tried before, or not a valid config)."""

    @abstractmethod
    def _accept(self, suggestion: Suggestion) -> None:
        """A suggestion is kept: the last proposed for this ask, or one from outside (to try first, or left over)."""

    @abstractmethod
    def _learn(self, suggestion: Suggestion, outcome: Outcome) -> None:
        """Use the outcome of a suggestion that was in flight."""

    @abstractmethod
    def _set_earlier(self, earlier: list[tuple[Point, dict[str, Value], float]]) -> None:
        """Start from another sweep's results, best first."""

    @abstractmethod
    def _own_state(self) -> Any:
        """The searcher's own part of the state, as JSON."""

    @abstractmethod
    def _restore_own(self, state: Any) -> None:
        """Continue from ``_own_state``'s result."""

    def _generator(self) -> np.random.Generator:
        """A generator for the next draw: a pure function of the seed and how many were made, which is all its state."""
        self._draws += 1
        return np.random.default_rng([self.seed, self._draws])

    def _suggestion(self, trial_id: str, point: Iterable[float]) -> Suggestion:
        exact = tuple(float(unit) for unit in point)
        return Suggestion(trial_id, exact, self.space.decode(exact))

    def _is_new(self, suggestion: Suggestion) -> bool:
        return self.space.key(suggestion.values) not in self._tried and self.space.admits(suggestion.values)

    def _from_first(self, trial_id: str) -> Suggestion | None:
        while self._first:
            suggestion = self._suggestion(trial_id, self._first.pop(0))
            if self._is_new(suggestion):
                return suggestion
        return None

    def _fresh(self, trial_id: str) -> Suggestion | None:
        for attempt in range(_TRIES):
            suggestion = self._propose(trial_id, attempt)
            if self._is_new(suggestion):
                return suggestion
        untried = self._untried()
        if untried is None:
            return suggestion
        if not untried:
            return None
        values = untried[int(self._generator().integers(len(untried)))]
        return Suggestion(trial_id, self.space.encode(values), values)

    def _untried(self) -> list[dict[str, Value]] | None:
        """What is left of a small finite space, None for one that is not small."""
        if not self._enumerated:
            everything = self.space.configurations(_ENUMERABLE)
            self._everything = None if everything is None else [v for v in everything if self.space.admits(v)]
            self._enumerated = True
        if self._everything is None:
            return None
        return [values for values in self._everything if self.space.key(values) not in self._tried]


@dataclass(frozen=True)
class Event:
    """One line of a sweep's log: an ask with the point it gave (None: nothing left), or a tell with its outcome."""

    kind: Literal["ask", "tell"]
    trial_id: str
    point: Point | None = None
    outcome: Outcome | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON for the log."""
        if self.outcome is None:
            return {
                "kind": self.kind,
                "trial_id": self.trial_id,
                "point": None if self.point is None else list(self.point),
            }
        outcome = {"ending": self.outcome.ending.value, "score": self.outcome.score, "step": self.outcome.step}
        return {"kind": self.kind, "trial_id": self.trial_id, "outcome": outcome}

    @staticmethod
    def from_json(line: Mapping[str, Any]) -> Event:
        """The event ``to_json`` wrote."""
        if line["kind"] == "ask":
            return Event("ask", line["trial_id"], point=None if line["point"] is None else tuple(line["point"]))
        told = line["outcome"]
        outcome = Outcome(Ending(told["ending"]), told["score"], told["step"])
        return Event("tell", line["trial_id"], outcome=outcome)


def replay(searcher: Searcher, events: Iterable[Event]) -> None:
    """Bring a fresh searcher to where the log ends. UserError at the first ask that gives another point than logged."""
    for number, event in enumerate(events, start=1):
        if event.outcome is not None:
            searcher.tell(event.trial_id, event.outcome)
            continue
        suggestion = searcher.ask(event.trial_id)
        point = None if suggestion is None else suggestion.point
        if point != event.point:
            raise UserError(
                f"search log, event {number}: trial {event.trial_id} was given {event.point}, replay gives {point}; "
                "the log belongs to another seed, space or version"
            )


def _known(space: Space, earlier: Sequence[Earlier]) -> list[tuple[Point, dict[str, Value], float]]:
    known = []
    for values, score in earlier:
        try:
            point = space.encode(values)
        except UserError:
            continue
        if math.isfinite(score):
            known.append((point, space.decode(point), score))
    return sorted(known, key=lambda entry: -entry[2])
