"""Tracking on a cluster: every trainer writes a journal into the sweep's folder, one process ships them all.

Trainers need no server and no MLflow. Because a single shipper reads all journals one after the other, a trial that
moved from a lost trainer to another has one run; what a crash left unshipped is shipped when the sweep is resumed.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.tracking import PIECE_BYTES, RunKey, Shipper, connect, shipped_bytes

_PAGE = 1_000
_LEAST_BYTES = 1 << 16


@dataclass(frozen=True)
class TrackingTarget:
    """Where the trials of a sweep are tracked.

    The parent run must exist before the pool starts (record something into it and flush): nobody else creates it.
    """

    uri: str
    experiment: str
    sweep_id: str
    parent: RunKey

    def run_of(self, trial_id: str) -> RunKey:
        """The run of a trial, found by the tags ``sweep_id`` and ``trial_id``."""
        return RunKey.of(trial_id, self.parent, sweep_id=self.sweep_id, trial_id=trial_id)

    def key_of(self, run: Any) -> RunKey:
        """What :meth:`run_of` gives for the trial of an MLflow run; the sweep's own run is the parent."""
        trial_id = run.data.tags.get("trial_id")
        return self.parent if trial_id is None else self.run_of(trial_id)


class Journal:
    """Appends records in the format of :mod:`trainer.tracking`; its reader leaves a crash's torn last line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def metrics(self, run: RunKey, values: Mapping[str, float], step: int, time_ms: int | None = None) -> None:
        """Record numbers of one step, those that are finite. Recorded again with the same time they change nothing."""
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._record(run, {"metrics": finite, "step": step, **({} if time_ms is None else {"time_ms": time_ms})})

    def params(self, run: RunKey, values: Mapping[str, Any]) -> None:
        """Record the values a run was started with."""
        self._record(run, {"params": {name: str(value) for name, value in values.items()}})

    def tags(self, run: RunKey, values: Mapping[str, str]) -> None:
        """Record or change tags."""
        self._record(run, {"tags": dict(values)})

    def artifact(self, run: RunKey, path: Path) -> None:
        """Record a file or folder, if it exists; it is read when it is shipped."""
        if path.exists():
            self._record(run, {"artifact": str(path.resolve())})

    def status(self, run: RunKey, status: str) -> None:
        """Set ``RUNNING``, ``FINISHED``, ``FAILED`` or ``KILLED``."""
        self._record(run, {"status": status})

    def _record(self, run: RunKey, what: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"run": run.to_json(), "time_ms": int(time.time() * 1000), **what}) + "\n")
        self._file.flush()


class JournalShipper:
    """Ships all journals of a folder, again and again, from one thread.

    It looks for the sweep's runs once: while it is at work nobody else creates any.

    Args:
        folder: where the journals are.
        target: where they go.
    """

    def __init__(self, folder: Path, target: TrackingTarget) -> None:
        self._folder, self._target = folder, target
        self._shippers: dict[Path, Shipper] = {}
        self._run_ids: dict[RunKey, str] | None = None
        self._closing, self._lock = threading.Event(), threading.Lock()
        self.last_error = ""

    def run(self, every_s: float = 5.0) -> None:
        """Ship until :meth:`close`; a server that is away is asked again, later and later, up to every 30 s."""
        delay = every_s
        while not self._closing.wait(delay):
            delay = every_s if self.ship_once() else min(2 * delay, 30.0)

    def ship_once(self) -> bool:
        """Ship what there is; False where the server did not take it (nothing is lost)."""
        try:
            with self._lock:
                while not self._closing.is_set() and self._ship_round():
                    pass
        except Exception as error:  # whatever the server did, the journals keep all
            self.last_error = f"{type(error).__name__}: {error}"
            return False
        self.last_error = next((shipper.refused for shipper in self._shippers.values() if shipper.refused), "")
        return True

    def flush(self, timeout_s: float) -> bool:
        """Ship everything, however much it is; False where the server did not answer for so long."""
        deadline = time.monotonic() + timeout_s
        while not self.ship_once():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def close(self) -> None:
        """Let :meth:`run` return."""
        self._closing.set()

    def _ship_round(self) -> bool:
        """Send a piece of every journal, what they have of one run together; False where there was nothing."""
        shippers = [self._shipper(path) for path in sorted(self._folder.glob("*.jsonl"))]
        share = max(PIECE_BYTES // max(len(shippers), 1), _LEAST_BYTES)
        pieces = [(shipper, *shipper.read_piece(share)) for shipper in shippers]
        lines = [line for _, of_journal, _ in pieces for line in of_journal]
        if lines:
            shippers[0].send(lines)
            for shipper, of_journal, end in pieces:
                if of_journal:
                    shipper.shipped(end)
        return bool(lines)

    def _shipper(self, path: Path) -> Shipper:
        if self._run_ids is None:
            self._run_ids = {self._target.key_of(run): run.info.run_id for run in reversed(list(runs_of(self._target)))}
        if path not in self._shippers:
            target = self._target
            self._shippers[path] = Shipper(target.uri, target.experiment, path, self._run_ids, knows_all=True)
        return self._shippers[path]


def unshipped_bytes(folder: Path) -> int:
    """What the journals of a folder still have for the server."""
    return sum(path.stat().st_size - shipped_bytes(path) for path in folder.glob("*.jsonl"))


def runs_of(target: TrackingTarget) -> Iterator[Any]:
    """MLflow's runs of the sweep, its own and the trials', oldest first."""
    client = connect(target.uri)
    experiment = client.get_experiment_by_name(target.experiment)
    token: str | None = None
    while experiment is not None:
        page = client.search_runs(
            [experiment.experiment_id],
            f"tags.sweep_id = '{target.sweep_id}'",
            max_results=_PAGE,
            order_by=["attributes.start_time"],
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return
