"""How much the sweep service itself costs: trials that do not train, through the whole path.

    python -m benchmarks.trivial_trials --trials 2000 --out /tmp/trivial

Prints, as JSON, trials per second, the memory of driver and pool as trials come and go, client processes used, journal
lines, the calls that tracking made and what MLflow holds. Reads /proc, so Linux only.
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from benchmarks.tracking_calls import Calls
from benchmarks.trivial_pool import CALLS, process_of, start_trivial_pool
from search.connect import connect_ray
from search.course import Course, new_sweep_id
from search.start import conclude
from search.sweep import SweepRun
from search.sweep_config import load_profile
from search.sweep_tracking import SweepTracking, prepare_experiment, target_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2_000)
    parser.add_argument("--searcher", default="pso")
    parser.add_argument("--concurrent", type=int, default=16)
    parser.add_argument("--sample-every", type=int, default=500, metavar="TRIALS")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    folder = (options.out if options.out is not None else Path(tempfile.mkdtemp(prefix="trivial-"))) / "sweep"
    overrides = [
        f"sweep.trials={options.trials}",
        f"sweep.searcher={options.searcher}",
        f"sweep.concurrent={options.concurrent}",
        "sweep.first=[]",
    ]
    profile = load_profile("smoketest", overrides)
    folder.mkdir(parents=True)
    new_sweep_id(folder)
    uri = f"sqlite:///{folder.resolve().parent / 'mlflow.db'}"
    prepare_experiment(uri, "trivial")
    calls = Calls()
    tracking = SweepTracking(folder, target_of(uri, "trivial", (folder / "sweep_id").read_text().strip()))
    connect_ray()
    course = Course(folder, profile, [], tracking)
    course.start()
    tracking.start({}, [], 60.0)
    pool = start_trivial_pool(folder, profile.sweep.pool, tracking.target)
    run = SweepRun(course, pool, lambda _status: None)
    with _Memory(course, process_of(pool), options.sample_every) as memory:
        began_s = time.monotonic()
        closed = run.run()
        seconds = time.monotonic() - began_s
    conclude(course, tracking, run, closed, Console(quiet=True), began_s)
    shipped_s = time.monotonic() - began_s
    ray.shutdown()
    print(json.dumps(_summary(folder, uri, course, memory, calls, seconds, shipped_s)))


class _Memory:
    """Resident bytes of driver and pool against trials asked for, looked at once a second."""

    def __init__(self, course: Course, pool: int, every: int) -> None:
        self._course, self._pool, self._every, self._ended = course, pool, every, threading.Event()
        self._began_s = time.monotonic()
        self.samples: list[dict[str, float]] = []
        self.clients: set[int] = set()

    def __enter__(self) -> _Memory:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._sample()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            if len(self._course.ledger.trials) >= self._every * len(self.samples):
                self._sample()
            self.clients |= _processes("TrialClient") | _processes("ResourceTrainable")

    def _sample(self) -> None:
        self.samples.append(
            {
                "trials": len(self._course.ledger.trials),
                "seconds": round(time.monotonic() - self._began_s),
                "driver_mb": round(_resident_bytes("self") / 2**20, 1),
                "pool_mb": round(_resident_bytes(self._pool) / 2**20, 1),
            }
        )
        print(json.dumps(self.samples[-1]), file=sys.stderr, flush=True)

    def kilobytes_per_trial(self) -> float:
        """Slope between a fifth of the trials and the end: the first ones load libraries."""
        last = self.samples[-1]
        first = next(each for each in self.samples if each["trials"] >= last["trials"] // 5)
        return 1024 * (last["driver_mb"] - first["driver_mb"]) / max(last["trials"] - first["trials"], 1)


def _resident_bytes(process: int | str) -> int:
    fields = Path(f"/proc/{process}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


def _processes(name: str) -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_text()
        except OSError:  # it ended
            continue
        if line.startswith("ray::") and name in line:
            found.add(int(folder.name))
    return found


def _summary(
    folder: Path, uri: str, course: Course, memory: _Memory, calls: Calls, seconds: float, shipped_s: float
) -> dict[str, Any]:
    lines = sum(1 for path in (folder / "tracking").glob("*.jsonl") for _ in path.open())
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        rows = {table: _rows(database, table) for table in ("runs", "params", "metrics", "tags")}
    return {
        "trials": len(course.ledger.trials),
        "seconds": round(seconds, 1),
        "trials_per_s": round(len(course.ledger.trials) / seconds, 2),
        "seconds_until_tracked": round(shipped_s, 1),
        "driver_kb_per_trial": round(memory.kilobytes_per_trial(), 1),
        "driver_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "memory": memory.samples,
        "client_processes": len(memory.clients),
        "log_lines": sum(1 for _ in (folder / "log.jsonl").open()),
        "journal_lines": lines,
        "mlflow_rows": rows,
        "tracking_calls": {"pool": json.loads((folder / CALLS).read_text()), "driver": calls.to_json()},
    }


def _rows(database: sqlite3.Connection, table: str) -> int:
    (rows,) = database.execute(f"select count(*) from {table}").fetchone()
    return int(rows)


if __name__ == "__main__":
    main()
