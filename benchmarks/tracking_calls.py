"""Counts what a process asks of MLflow: calls by name, and the seconds that they took."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import search.sweep_tracking
import trainer.tracking


class Calls:
    """From its making on, every client that the tracking of this process connects is counted."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self._connect = trainer.tracking.connect
        for module in (trainer.tracking, search.sweep_tracking):
            module.connect = self._counted

    def to_json(self) -> dict[str, Any]:
        return {name: {"calls": calls, "seconds": round(self.seconds[name], 1)} for name, calls in self.count.items()}

    def _counted(self, uri: str) -> Any:
        return _Counted(self._connect(uri), self)


class _Counted:
    def __init__(self, client: Any, calls: Calls) -> None:
        self._client, self._calls = client, calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            began_s = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self._calls.count[name] += 1
                self._calls.seconds[name] += time.perf_counter() - began_s

        return counted
