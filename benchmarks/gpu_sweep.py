"""A whole sweep through the service on one GPU: how much of the card's peak rate reaches trials, where the rest goes::

    python -m benchmarks.gpu_sweep [--out benchmarks/results/h200_DATE_sweep] [--skip compile processes] [--set K=V]
    python -m benchmarks.gpu_sweep --device cpu --tiny --out /tmp/sweep       # the same mechanics in some minutes

1. On a GPU: the steps of every capacity are compiled, in a process each, as an earlier sweep would have left them.
2. ``python -m search benchmarks/gpu_sweep.toml`` (200 trials x 5 folds, ASHA, SQLite MLflow), its own local Ray.
3. From the trainer's account of every epoch: live lane-steps over wall time x peak rate, after warm-up, that is from
   the end of the first epoch at full capacity to the end of the last one. The peak rate is that of learn steps alone,
   all rows of the largest capacity counted, in the same run; so idle rows, collecting, validating, smaller capacities
   as the sweep runs dry, and the time between epochs all count as lost, and the table says how much each.
4. Sixteen processes train a trial each for an epoch, eagerly and one fold after the other, on the same card; from their
   start and their epoch follows what the sweep's trials, with the epochs that ASHA gave them, would take so.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.children import ROOT, Child, ChildError, end_all, orders, say, together
from benchmarks.gpu_table import Line, default_out, markdown, write
from cluster.epoch_log import Epoch, read_epochs
from search.log import LOG, read_events
from search.sweep_config import Profile, load_profile

PROFILE = ROOT / "benchmarks" / "gpu_sweep.toml"
COMPILE_S, SWEEP_S, READY_S, TRIAL_S, PARK_S = 300.0, 450.0, 120.0, 240.0, 90.0
TINY = [
    "market.synthetic.preset=easy",
    "market.synthetic.sessions=60",
    "market.synthetic.bars_per_session=24",
    "folds.count=2",
    "agent.hidden=16",
    "agent.blocks=1",
    "agent.bottleneck_dim=8",
    "agent.flow_dim=8",
    "replay.capacity=2048",
    "training.epochs=9",
    "training.episodes=64",
    "training.collect_steps=8",
    "training.learn_steps=8",
    "training.batch=64",
    "training.checkpoint_every=3",
    "training.precision=float32",
    "training.compile=false",
    "sweep.trials=12",
    "sweep.waiting=4",
    "sweep.scheduler.grace_epochs=3",
    "sweep.pool.lanes=8",
    "sweep.pool.trainers=1",
]
ABOUT = """`python -m benchmarks.gpu_sweep`: the sweep of benchmarks/gpu_sweep.toml through the whole service, tracked
in MLflow. Peak: learn steps alone at the largest capacity, all its rows counted. Warm-up ends with the first epoch
there. Times are seconds of the trainer after warm-up unless said otherwise; what is lost adds up to the wall time."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or be one of the processes measured."""
    asked = _parse(arguments)
    profile = load_profile(str(asked.profile), asked.set)
    if asked.child == "compile":
        compile_capacity(profile, asked.capacity)
    elif asked.child == "trial":
        train_alone(profile, asked.device)
    else:
        measure(asked, profile)


def measure(asked: argparse.Namespace, profile: Profile) -> None:
    """All stages; results are written after each."""
    values: dict[str, Any] = {"profile": asked.profile.name, "settings": list(asked.set)}
    with tempfile.TemporaryDirectory(prefix="paceline-gpu-sweep-") as scratch:
        folder = Path(scratch) if asked.keep is None else asked.keep
        folder.mkdir(parents=True, exist_ok=True)
        if asked.device == "cuda" and profile.trial.training.compile and "compile" not in asked.skip:
            values |= compiled(asked, profile, folder)
        seconds, ended, values["the sweep's exit code"] = run_sweep(asked.profile, asked.set, folder, asked.limit)
        (epochs,) = read_epochs(folder / "sweep").values()
        account = Account.of(epochs, told_epochs(folder / "sweep"), profile.trial.folds.count, seconds, ended)
        values |= {"MLflow metrics": metrics_of(folder / "mlflow.db"), "capacities": account.capacities()}
        lines = account.lines()
        write(asked.out, "A sweep through the service", ABOUT, lines, values)
        print(markdown(lines), flush=True)
        if "processes" not in asked.skip:
            lines += against_processes(asked, account, folder)
            write(asked.out, "A sweep through the service", ABOUT, lines, values)
    print(markdown(lines))


def compiled(asked: argparse.Namespace, profile: Profile, folder: Path) -> dict[str, float]:
    """Seconds of each capacity's process."""
    from trainer.training.capture import LADDER

    least, most = profile.trial.folds.count, profile.sweep.pool.lanes or LADDER[-1]
    sizes = [
        size for size in LADDER if size <= most and any(least <= lanes <= size for lanes in range(least, size + 1))
    ]
    children = {size: _child(asked, "compile", folder / f"compile_{size}.log", size) for size in sizes}
    found: dict[str, float] = {}
    deadline = time.monotonic() + COMPILE_S
    for size, each in children.items():
        try:
            found[f"compiled {size} rows, s"] = each.hear(deadline - time.monotonic())["seconds"]
        except ChildError as error:
            print(f"{size} rows were not compiled before: {error}", flush=True)
    end_all(list(children.values()))
    print(found, flush=True)
    return found


def compile_capacity(profile: Profile, capacity: int) -> None:
    """A child: compile and capture the steps of a lane group of this size, so that they are kept on disk."""
    import torch

    from trainer.lanes.tree import take
    from trainer.training.capture import Parts, Steps
    from trainer.training.group import LaneGroup
    from trainer.training.lane_state import new_lanes
    from trainer.training.prepare import prepare

    began, device = time.monotonic(), torch.device("cuda")
    prepared = prepare(profile.trial, device)
    group = LaneGroup(profile.trial, prepared, device)
    one = new_lanes(profile.trial, prepared, prepared.folds[:1], device)
    state = take(one, torch.zeros(capacity, dtype=torch.int64, device=device))
    Steps(Parts(group.setting), state, group.validation_steps, capture=True).prepare()
    say(seconds=round(time.monotonic() - began, 1))
    for _ in orders():
        pass


def run_sweep(
    profile: Path,
    overrides: Sequence[str],
    folder: Path,
    limit: float,
    environment: Mapping[str, str] | None = None,
    watch: Callable[[int], None] | None = None,
) -> tuple[float, float, int]:
    """Run the search in ``folder``; returns its wall time, its end (s since 1970) and its exit code.

    Args:
        limit: seconds after which it is parked.
        environment: variables beside those of this process.
        watch: called with the search's process id every second.

    Raises:
        SystemExit: it failed before its first epoch.
    """
    uri = f"sweep.tracking_uri=sqlite:///{folder.resolve() / 'mlflow.db'}"
    command = [sys.executable, "-m", "search", str(profile), "--out", str(folder / "sweep")]
    for override in [*overrides, uri]:
        command += ["--set", override]
    began, log = time.monotonic(), folder / "search.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "RAY_ADDRESS": "local", **(environment or {})},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None and time.monotonic() - began < limit:
                time.sleep(1.0)
                _progress(folder / "sweep", time.monotonic() - began)
                if watch is not None:
                    watch(process.pid)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=PARK_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(timeout=PARK_S)
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        print(f"the sweep ended with {process.returncode} after {time.monotonic() - began:.0f} s:\n{tail}", flush=True)
        if not any(read_epochs(folder / "sweep").values()):
            raise SystemExit(1)
    return time.monotonic() - began, time.time(), process.returncode


_TOLD = {"at": 0.0}


def _progress(sweep: Path, seconds: float) -> None:
    if seconds - _TOLD["at"] < 15.0:
        return
    _TOLD["at"] = seconds
    epochs = [epoch for trainer in read_epochs(sweep).values() for epoch in trainer]
    newest = f", last {epochs[-1].lanes} lanes in {epochs[-1].wall:.2f} s {dict(epochs[-1].phases)}" if epochs else ""
    print(f"{seconds:.0f} s: {len(epochs)} epochs{newest}", flush=True)


def told_epochs(sweep: Path) -> list[int]:
    """Epochs that counted of every trial that ended."""
    return [int(event["epoch"]) for event in read_events(sweep / LOG) if event["kind"] == "tell"]


def metrics_of(database: Path) -> int:
    """Numbers that MLflow holds."""
    with sqlite3.connect(database) as connection:
        (count,) = connection.execute("select count(*) from metrics").fetchone()
    return int(count)


@dataclass(frozen=True)
class Account:
    """Where the time of a sweep went; seconds after warm-up."""

    trials: int
    trial_epochs: tuple[int, ...]  # that counted, per trial
    folds: int
    epochs: tuple[Epoch, ...]  # after warm-up
    capacity: int  # the largest
    peak: float  # lane-steps/s
    collect_peak: float  # seconds of an epoch's collect steps per row, at full capacity
    wall: float  # after warm-up
    warm_up: float  # from the command to the end of the first full epoch
    shipping: float  # from the last epoch to the command's end
    whole: float
    live: int  # lane-steps of the whole sweep

    @staticmethod
    def of(epochs: Sequence[Epoch], trial_epochs: Sequence[int], folds: int, whole: float, ended: float) -> Account:
        """From a trainer's epochs, the trials' counted epochs, and the command's wall time and end."""
        capacity = max(epoch.capacity for epoch in epochs)
        most = max(epoch.lanes for epoch in epochs if epoch.capacity == capacity)
        full = [epoch for epoch in epochs if (epoch.capacity, epoch.lanes) == (capacity, most)]
        settled = full[1:] or full
        step_s = statistics.median(epoch.phases["learn"] / epoch.learn_steps for epoch in settled)
        after = [epoch for epoch in epochs if epoch.began >= full[0].ended]
        wall = (after[-1].ended if after else full[0].ended) - full[0].ended
        return Account(
            trials=len(trial_epochs),
            trial_epochs=tuple(trial_epochs),
            folds=folds,
            epochs=tuple(after),
            capacity=capacity,
            peak=capacity / step_s,
            collect_peak=statistics.median(epoch.phases["collect"] for epoch in settled) / capacity,
            wall=wall,
            warm_up=whole - (ended - full[0].ended),
            shipping=ended - epochs[-1].ended,
            whole=whole,
            live=sum(epoch.lanes * epoch.learn_steps for epoch in epochs),
        )

    @property
    def ideal(self) -> float:
        """Seconds that the live lane-steps take at the peak rate."""
        return sum(epoch.lanes * epoch.learn_steps for epoch in self.epochs) / self.peak

    def lost(self) -> dict[str, float]:
        """Seconds by cause; with :attr:`ideal` they are the wall time."""
        full = [epoch for epoch in self.epochs if epoch.capacity == self.capacity]
        smaller = [epoch for epoch in self.epochs if epoch.capacity < self.capacity]

        def beyond_ideal(some: Sequence[Epoch]) -> float:
            return sum(epoch.phases["learn"] - epoch.lanes * epoch.learn_steps / self.peak for epoch in some)

        found = {"idle rows": beyond_ideal(full), "smaller capacities": beyond_ideal(smaller)}
        for phase in ("collect", "validate", "capture", "report"):
            found[phase] = sum(epoch.phases[phase] for epoch in self.epochs)
        found["rest of an epoch"] = sum(epoch.wall - sum(epoch.phases.values()) for epoch in self.epochs)
        found["between epochs"] = self.wall - sum(epoch.wall for epoch in self.epochs)
        return found

    def capacities(self) -> dict[str, list[float]]:
        """Epochs, and median seconds of a learn step and between epochs, at each capacity."""
        found: dict[str, list[float]] = {}
        for size in sorted({epoch.capacity for epoch in self.epochs}):
            some = [epoch for epoch in self.epochs if epoch.capacity == size]
            learn = statistics.median(epoch.phases["learn"] / epoch.learn_steps for epoch in some)
            found[str(size)] = [len(some), learn, statistics.median(epoch.between for epoch in some)]
        return found

    def lines(self) -> list[Line]:
        """The table."""
        wall = max(self.wall, 1e-9)
        collecting = sum(epoch.lanes * self.collect_peak for epoch in self.epochs)
        learning = sum(epoch.phases["learn"] for epoch in self.epochs)
        counted = self.folds * sum(self.trial_epochs) * (self.epochs[0].learn_steps if self.epochs else 0)
        of_sweep = f"sweep, {self.trials} trials x {self.folds} folds"
        rows = [
            Line(f"{of_sweep}: live lane-steps over wall x peak rate", self.ideal / wall, "share", bar=0.9),
            Line("the same with collect steps at their peak rate as work", (self.ideal + collecting) / wall, "share"),
            Line("the same if nothing but learn steps took time", self.ideal / max(learning, 1e-9), "share"),
            Line("lane-steps within a trial's own epochs, of all", counted / self.live, "share"),
            Line("peak rate", self.peak, "lane-steps/s", note=f"{self.capacity} rows"),
            Line("live lane-steps", float(self.live), "lane-steps"),
            Line("wall time after warm-up", self.wall, "s"),
            Line("until warm", self.warm_up, "s"),
            Line("from the last epoch to the end of the command", self.shipping, "s"),
        ]
        return rows + [Line(f"lost: {cause}", seconds, "s") for cause, seconds in self.lost().items()]


def against_processes(asked: argparse.Namespace, account: Account, folder: Path) -> list[Line]:
    """One process per trial, extrapolated."""
    children = [_child(asked, "trial", folder / f"trial_{index}.log") for index in range(asked.processes)]
    try:
        deadline = time.monotonic() + READY_S
        start_s = statistics.mean(each.hear(deadline - time.monotonic())["seconds"] for each in children)
        epoch_s = statistics.mean(said["seconds"] for said in together(children, TRIAL_S))
    except ChildError as error:
        print(f"process per trial: not measured ({error})", flush=True)
        return []
    finally:
        end_all(children)
    seconds = sum(start_s + epochs * epoch_s for epochs in account.trial_epochs) / asked.processes
    note = f"start {start_s:.1f} s, an epoch of all folds {epoch_s:.1f} s; ours is the whole command"
    peer = f"a process per trial, extrapolated from {asked.processes}"
    hour = 3600.0 * account.trials
    return [Line("trials an hour", hour / account.whole, "1/h", peer, hour / seconds, bar=50.0, note=note)]


def train_alone(profile: Profile, device_name: str) -> None:
    """A child: an epoch of one trial, eagerly, one fold after the other, as a process per trial would run it."""
    began = time.monotonic()
    import torch

    from trainer.evaluation.backtest import paths
    from trainer.evaluation.metrics import summarise
    from trainer.training.capture import Parts, Steps, matmul_precision
    from trainer.training.group import LaneGroup
    from trainer.training.lane_state import new_lanes
    from trainer.training.prepare import prepare

    torch.set_num_threads(1)
    device, training = torch.device(device_name), profile.trial.training
    prepared = prepare(profile.trial, device)
    group = LaneGroup(profile.trial, prepared, device)
    parts = Parts(replace(group.setting, training=training.model_copy(update={"compile": False})))
    say(seconds=time.monotonic() - began)
    for _ in orders():
        began = time.monotonic()
        for fold in prepared.folds:
            state = new_lanes(profile.trial, prepared, [fold], device)
            steps = Steps(parts, state, group.validation_steps, capture=False)
            with matmul_precision(training.precision):
                steps.collect(training.collect_steps)
                steps.learn(training.learn_steps)
                run = steps.rollout()
            for path in paths(state.env_params, prepared.table.session_N, run):
                summarise(path)
        say(seconds=time.monotonic() - began)


def _child(asked: argparse.Namespace, kind: str, log: Path, capacity: int = 0) -> Child:
    arguments = ["benchmarks.gpu_sweep", "--child", kind, "--device", asked.device, "--profile", str(asked.profile)]
    for override in asked.set:
        arguments += ["--set", override]
    return Child([*arguments, "--capacity", str(capacity)], log)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="results without suffix; .json and .md are written")
    parser.add_argument("--profile", type=Path, default=PROFILE)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one field")
    parser.add_argument("--skip", nargs="*", default=[], choices=["compile", "processes"], help="stages to leave out")
    parser.add_argument("--limit", type=float, default=SWEEP_S, help="seconds after which the sweep is parked")
    parser.add_argument("--keep", type=Path, help="folder for sweep and logs; left out: a temporary one")
    parser.add_argument("--processes", type=int, default=16, help="processes of a trial each")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the mechanics on a CPU")
    parser.add_argument("--child", choices=["compile", "trial"], help=argparse.SUPPRESS)
    parser.add_argument("--capacity", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.tiny:
        asked.set = [*TINY, *asked.set]
    if asked.out is None:
        asked.out = default_out("_sweep")
    return asked


if __name__ == "__main__":
    main()
