"""Random search: the k-th draw is a pure function of the seed and k, whatever was told. The baseline to beat."""

from __future__ import annotations

from typing import Any, ClassVar

from search.searchers.base import Outcome, Searcher, Suggestion
from search.space import Point, Value


class RandomSearcher(Searcher):
    """Uniform in the unit cube."""

    name: ClassVar[str] = "random"

    def _propose(self, trial_id: str, attempt: int) -> Suggestion:  # noqa: ARG002
        return self._suggestion(trial_id, self._generator().random(len(self.space)))

    def _accept(self, suggestion: Suggestion) -> None:
        """Nothing is bound to a draw."""

    def _learn(self, suggestion: Suggestion, outcome: Outcome) -> None:
        """Outcomes do not change what comes next."""

    def _set_earlier(self, earlier: list[tuple[Point, dict[str, Value], float]]) -> None:
        """Nor do another sweep's."""

    def _own_state(self) -> Any:
        return None

    def _restore_own(self, state: Any) -> None:
        """All state is the count of draws."""
