"""A sweep's log: one JSON line per event, only ever appended to. Everything else a sweep knows follows from it.

Events, by ``kind``:

``ask``   trial_id, point, values      the searcher gave a configuration (point null: it has none left)
``rung``  trial_id, epoch, score       a trial reached a rung
``tell``  trial_id, outcome, because, epoch, score, folds, capacities    a trial ended, and how
``run``   trial_id, run_id             the trial's id in MLflow ("" is the sweep's own)
``start`` / ``stop``  because          a driver began and ended; none of the second after a kill -9

Lines are on disk before anything acts on them. A last line that a crash left torn is cut off when the log is opened.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.errors import UserError

LOG = "log.jsonl"


class SweepLog:
    """The log, open for one driver at a time.

    Args:
        path: file; created where it does not exist.

    Raises:
        UserError: another driver has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise UserError(f"{path.parent}: another process runs this sweep; stop it first") from error
        self._file.truncate(whole_bytes(path))

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one event through to the disk."""
        self._file.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def events(self) -> Iterator[dict[str, Any]]:
        """All events so far."""
        yield from read_events(self.path)

    def close(self) -> None:
        """Let another driver open it."""
        self._file.close()


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a log that anybody may be writing; a torn last line is left out.

    Raises:
        UserError: there is no log, or a whole line of it is damaged.
    """
    if not path.is_file():
        raise UserError(f"{path.parent}: no sweep here (no {path.name})")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                event = json.loads(line)
            except ValueError as error:
                raise UserError(f"{path}, line {number}: damaged, not JSON ({error})") from error
            if not isinstance(event, dict) or "kind" not in event:
                raise UserError(f"{path}, line {number}: not an event of a sweep")
            yield event


def whole_bytes(path: Path) -> int:
    """Length of the file up to its last line end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        end = size
        while end > 0:
            begin = max(0, end - 65_536)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
    return 0
