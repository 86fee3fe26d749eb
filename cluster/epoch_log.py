"""What every epoch of a trainer cost, for whoever asks where the time went: ``trainers/<name>.jsonl`` in a sweep's
folder.

One line per epoch: ``began`` (s since 1970), ``between`` (s from the end of the epoch before: orders, admissions,
reports), ``wall`` (s of the epoch itself), ``phases`` (s of each of its parts), ``lanes`` that lived, ``capacity``
computed, ``trials``, and ``learn_steps`` of each lane.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "trainers"


@dataclass(frozen=True)
class Epoch:
    """One line."""

    began: float
    between: float
    wall: float
    phases: Mapping[str, float]
    lanes: int
    capacity: int
    trials: int
    learn_steps: int

    @property
    def ended(self) -> float:
        """Seconds since 1970."""
        return self.began + self.wall


class EpochLog:
    """Appends a trainer's epochs.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        self._ended_s = time.perf_counter()

    def add(
        self, began_s: float, phases: Mapping[str, float], *, lanes: int, capacity: int, trials: int, steps: int
    ) -> None:
        """An epoch that began at ``began_s`` by :func:`time.perf_counter` and is over now."""
        now_s = time.perf_counter()
        wall = now_s - began_s
        epoch = Epoch(time.time() - wall, began_s - self._ended_s, wall, dict(phases), lanes, capacity, trials, steps)
        self._ended_s = now_s
        self._file.write(json.dumps(asdict(epoch)) + "\n")
        self._file.flush()


def read_epochs(sweep_dir: Path) -> dict[str, list[Epoch]]:
    """All epochs by trainer, in order."""
    return {path.stem: list(_read(path)) for path in sorted((sweep_dir / FOLDER).glob("*.jsonl"))}


def _read(path: Path) -> Iterator[Epoch]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield Epoch(**json.loads(line))
