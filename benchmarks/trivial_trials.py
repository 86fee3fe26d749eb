"""How much the sweep service itself costs: trials that do not train, through the whole path.

    python -m benchmarks.trivial_trials --trials 2000 --out /tmp/trivial

Prints, as JSON, trials per second, the driver's memory per trial, client processes used, journal lines and what MLflow
holds. Reads /proc, so Linux only.
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import ray
from rich.console import Console

from benchmarks.trivial_pool import start_trivial_pool
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
    tracking = SweepTracking(folder, target_of(uri, "trivial", (folder / "sweep_id").read_text().strip()))
    connect_ray()
    course = Course(folder, profile, [], tracking)
    course.start()
    tracking.start({}, [], 60.0)
    pool = start_trivial_pool(folder, profile.sweep.pool, tracking.target)
    run = SweepRun(course, pool, lambda _status: None)
    with _Memory(course) as memory:
        began_s = time.monotonic()
        closed = run.run()
        seconds = time.monotonic() - began_s
    conclude(course, tracking, run, closed, Console(quiet=True), began_s)
    shipped_s = time.monotonic() - began_s
    ray.shutdown()
    print(json.dumps(_summary(folder, uri, course, memory, seconds, shipped_s)))


class _Memory:
    """The driver's resident bytes against trials ended, once a second."""

    def __init__(self, course: Course) -> None:
        self._course, self._ended = course, threading.Event()
        self.seen: list[tuple[int, int]] = []
        self.clients: set[int] = set()

    def __enter__(self) -> _Memory:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self.seen.append((len(self._course.ledger.trials), _resident_bytes()))
            self.clients |= _processes("TrialClient") | _processes("ResourceTrainable")

    def bytes_per_trial(self) -> float:
        """Slope between a fifth of the trials and the end: the first ones load libraries."""
        total = self.seen[-1][0]
        first = next(each for each in self.seen if each[0] >= total // 5)
        return (self.seen[-1][1] - first[1]) / max(total - first[0], 1)


def _resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
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
    folder: Path, uri: str, course: Course, memory: _Memory, seconds: float, shipped_s: float
) -> dict[str, float]:
    lines = sum(1 for path in (folder / "tracking").glob("*.jsonl") for _ in path.open())
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        (runs,) = database.execute("select count(*) from runs").fetchone()
        (metrics,) = database.execute("select count(*) from metrics").fetchone()
    return {
        "trials": len(course.ledger.trials),
        "seconds": round(seconds, 1),
        "trials_per_s": round(len(course.ledger.trials) / seconds, 2),
        "seconds_until_tracked": round(shipped_s, 1),
        "driver_bytes_per_trial": round(memory.bytes_per_trial()),
        "driver_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "client_processes": len(memory.clients),
        "log_lines": sum(1 for _ in (folder / "log.jsonl").open()),
        "journal_lines": lines,
        "mlflow_runs": runs,
        "mlflow_metrics": metrics,
    }


if __name__ == "__main__":
    main()
