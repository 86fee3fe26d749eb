"""The same sweep on 1, 2, 4 and 8 GPUs of one host, and on all of them with a trainer killed in the middle::

    python -m benchmarks.gpu_scaling [--counts 1 2 4 8] [--out benchmarks/results/h200_DATE_scaling] [--set K=V]
    python -m benchmarks.gpu_scaling --device cpu --tiny --counts 1 2 --out /tmp/scaling    # trainers on cores instead

The sweep is that of benchmarks/gpu_sweep.toml, PSO and ASHA, tracked. Trials an hour are counted from the moment at
which the first trainer begins its first epoch to the last verdict, so that one start of Ray and of compiled code (kept
on disk since the first run) is not counted n times over; *busy* is the share of that time in which a trainer
collected, learned or validated. ASHA stops what it stops and asks come in another order with more trainers: runs train
different epochs, so lane-steps a second stand beside the trials.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_sweep import PROFILE, TINY, run_sweep
from benchmarks.gpu_table import Line, default_out, markdown, write
from cluster.epoch_log import Epoch, read_epochs
from search.log import LOG, read_events

BUSY = ("collect", "learn", "validate")
TRIALS, LIMIT_S, LINEAR = 64, 900.0, 0.95
SMALL = ["sweep.trials=16"]  # on top of gpu_sweep's: enough for two trainers
ABOUT = """`python -m benchmarks.gpu_scaling`: one sweep after the other on so many GPUs of one host, a trainer on each.
The peer of n GPUs is n times the one, so the ratio is the share of linear scaling."""


@dataclass(frozen=True)
class Run:
    """What a sweep on so many trainers came to."""

    trainers: int
    trials: int
    seconds: float  # from the first epoch's beginning to the last verdict
    lane_steps: int
    busy: tuple[float, ...]  # share of ``seconds``, of each trainer
    best_after: float  # seconds from the first epoch's beginning to the best complete trial's verdict
    best: float  # its score
    twice: int  # trials with more than one verdict
    failed: int

    @staticmethod
    def of(epochs: Mapping[str, Sequence[Epoch]], events: Sequence[Mapping[str, Any]]) -> Run:
        """From the trainers' epochs and the sweep's log.

        Raises:
            ValueError: no trial was complete.
        """
        began = min(each[0].began for each in epochs.values() if each)
        tells = [event for event in events if event["kind"] == "tell"]
        seconds = max(event["time"] for event in tells) - began
        complete = [event for event in tells if event["outcome"]["ending"] == "complete"]
        best = max(complete, key=lambda event: event["outcome"]["score"])
        told = Counter(event["trial_id"] for event in tells)
        return Run(
            trainers=len(epochs),
            trials=len(told),
            seconds=seconds,
            lane_steps=sum(epoch.lanes * epoch.learn_steps for each in epochs.values() for epoch in each),
            busy=tuple(sum(epoch.phases[p] for epoch in each for p in BUSY) / seconds for each in epochs.values()),
            best_after=best["time"] - began,
            best=best["outcome"]["score"],
            twice=sum(count > 1 for count in told.values()),
            failed=sum(event["outcome"]["ending"] == "failed" for event in tells),
        )

    def lines(self, name: str, one: Run | None) -> list[Line]:
        """Its rows of the table, beside a run on one trainer."""

        def rate(what: str, ours: float, theirs: float | None, unit: str) -> Line:
            peer = "" if theirs is None else f"{self.trainers} times one"
            linear = None if theirs is None else self.trainers * theirs
            return Line(f"{name}: {what}", ours, unit, peer, linear, bar=None if theirs is None else LINEAR)

        per_hour, per_second = 3600.0 * self.trials / self.seconds, self.lane_steps / self.seconds
        return [
            rate("trials an hour", per_hour, None if one is None else 3600.0 * one.trials / one.seconds, "1/h"),
            rate("lane-steps", per_second, None if one is None else one.lane_steps / one.seconds, "1/s"),
            Line(f"{name}: busy, least of the trainers", min(self.busy), "share"),
            Line(f"{name}: busy, most of the trainers", max(self.busy), "share"),
            Line(f"{name}: until the best score", self.best_after, "s", note=f"score {self.best:.2f}"),
            Line(f"{name}: trials ended", float(self.trials), "trials"),
            Line(f"{name}: ended twice", float(self.twice), "trials"),
            Line(f"{name}: failed", float(self.failed), "trials"),
        ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each count, then the loss of a trainer; results are written after each."""
    asked = _parse(arguments)
    one: Run | None = None
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="paceline-gpu-scaling-") as scratch:
        folder = Path(scratch) if asked.keep is None else asked.keep
        for count in asked.counts:
            run = measure(asked, count, folder / str(count))
            lines += run.lines(f"{count} trainers", one)
            one = run if count == 1 else one
            write(asked.out, "One sweep on several GPUs", ABOUT, lines, {"profile": asked.profile.name})
        if not asked.no_kill and max(asked.counts) > 1:
            run = measure(asked, max(asked.counts), folder / "killed", once(kill_a_trainer, asked.kill_after))
            lines += run.lines(f"{max(asked.counts)} trainers, one killed", None)
            write(asked.out, "One sweep on several GPUs", ABOUT, lines, {"profile": asked.profile.name})
    print(markdown(lines))


def measure(asked: argparse.Namespace, count: int, folder: Path, watch: Callable[[int], None] | None = None) -> Run:
    """One sweep on ``count`` trainers."""
    folder.mkdir(parents=True)
    shown = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count)))} if asked.device == "cuda" else {}
    overrides = [f"sweep.trials={TRIALS}", *asked.set, f"sweep.pool.trainers={count}"]
    run_sweep(asked.profile, overrides, folder, asked.limit, shown, watch)
    epochs = {name: each for name, each in read_epochs(folder / "sweep").items() if each}
    return Run.of(epochs, read_events(folder / "sweep" / LOG))


def once(act: Callable[[int], bool], after: int) -> Callable[[int], None]:
    """Calls ``act`` at every call from the ``after``-th on until it says that it is done."""
    calls = 0

    def watch(process: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= after and act(process):
            calls = -(1 << 30)

    return watch


def kill_a_trainer(search: int) -> bool:
    """Kill -9 one trainer actor below this process; whether there was one."""
    for process in _below(search):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::TrainerActor"):
                os.kill(process, signal.SIGKILL)
                print(f"killed trainer {process}", flush=True)
                return True
    return False


def _below(process: int) -> Iterator[int]:
    """Process ids of all descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.name))
    waiting = [process]
    while waiting:
        children = parents.get(waiting.pop(), [])
        yield from children
        waiting += children


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--counts", type=int, nargs="+", default=[1, 2, 4, 8], help="GPUs; 1 is what others stand beside"
    )
    parser.add_argument("--out", type=Path, help="results without suffix; .json and .md are written")
    parser.add_argument("--profile", type=Path, default=PROFILE)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one field")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds after which a sweep is parked")
    parser.add_argument("--keep", type=Path, help="folder for sweeps and logs; left out: a temporary one")
    parser.add_argument("--no-kill", action="store_true", help="leave out the run that loses a trainer")
    parser.add_argument(
        "--kill-after", type=int, default=60, metavar="S", help="seconds after which a trainer is killed"
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the mechanics on a CPU")
    asked = parser.parse_args(arguments)
    if asked.tiny:
        asked.set = [*TINY, *SMALL, *asked.set]
    if asked.out is None:
        asked.out = default_out("_scaling")
    return asked


if __name__ == "__main__":
    main()
