"""Paceline beside stable-baselines3's DQN and sb3-contrib's QR-DQN, on the same market, cores and step budget.

What is the same for all: the embedded market at its easy preset, the last fold's train and validation range, episodes,
rewards, discount, environment steps, batch, gradient steps, replay size, target rate, exploration and learning-rate
schedules, hidden width, the final backtest. What is not: the peers choose among 108 flat actions, Paceline among
4 + 3 + 3 + 3; the peers' learning rate is the best of four by seed 0, Paceline's is its profile's.

Every trial runs to its end. Peers run one process per trial, two at a time; Paceline runs two processes of eight lanes
each; one thread per process. Times are of whole processes, start-up and validation included. The peers' environment is
a vector of 64 episodes (``peers_env``), their fastest form; one run through the single Gymnasium environment stands
beside it. CPU seconds are given beside wall time because they hardly move when the machine is shared.

Contenders named on the command line are added to what the JSON holds already.

    nice python -m benchmarks.peers [--contenders ours dqn qrdqn single]
        [--out benchmarks/results/peers_DATE] [--trials 16] [--epochs 20]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROCESSES = 2
PEERS = {"dqn": "stable-baselines3 DQN", "qrdqn": "sb3-contrib QR-DQN"}
CONTENDERS = ["ours", *PEERS, "single"]
PEER_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
OUR_RATE = 3e-3
_STEPS_PER_EPOCH, _LEARN_STEPS = 64 * 64, 64
_SINGLE_EPOCHS = 4


@dataclass(frozen=True)
class Run:
    """One finished process."""

    sharpes: list[float]
    cpu_seconds: float


@dataclass(frozen=True)
class Row:
    """All trials of one contender to their end."""

    name: str
    trials: int
    epochs: int
    batch: int
    lr: float
    wall_seconds: float
    cpu_seconds: float
    sharpes: list[float]

    def numbers(self) -> dict[str, Any]:
        """What is written."""
        steps = self.trials * self.epochs * _STEPS_PER_EPOCH
        samples = self.trials * self.epochs * _LEARN_STEPS * self.batch
        return {
            "name": self.name,
            "trials": self.trials,
            "lr": self.lr,
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
            "env_steps_per_s": steps / self.wall_seconds,
            "gradient_samples_per_s": samples / self.wall_seconds,
            "env_steps_per_cpu_s": steps / self.cpu_seconds,
            "gradient_samples_per_cpu_s": samples / self.cpu_seconds,
            "val_sharpe_median": statistics.median(self.sharpes),
            "val_sharpes": self.sharpes,
        }


def main() -> None:
    """Run all contenders one after the other and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="results without suffix; .json and .md are written")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=20, help="of 4,096 environment steps and 64 gradient steps")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    options = parser.parse_args()
    out = options.out if options.out is not None else Path(f"benchmarks/results/peers_{time.strftime('%Y-%m-%d')}")
    record = _about(options)
    if out.with_suffix(".json").exists():
        before = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
        record |= {key: before[key] for key in ("rows", "peer_sharpe_by_lr")}
    rows, tuning = record["rows"], record["peer_sharpe_by_lr"]
    for contender in options.contenders:
        if contender == "ours":
            rows[contender] = _row("Paceline", contender, options, OUR_RATE, lanes=-(-options.trials // PROCESSES))
        elif contender == "single":
            rows[contender] = _single(options, rows["dqn"]["lr"] if "dqn" in rows else PEER_RATES[0])
        else:
            tuning[contender] = _tune(contender, options)
            best = float(max(tuning[contender], key=tuning[contender].__getitem__))
            rows[contender] = _row(PEERS[contender], contender, options, best, lanes=1)
        write(out, record)


def _row(name: str, contender: str, options: argparse.Namespace, lr: float, lanes: int) -> dict[str, Any]:
    seeds = list(range(options.trials))
    jobs = [_job(contender, seeds[at : at + lanes], lr, options) for at in range(0, len(seeds), lanes)]
    wall, runs = _run_all(jobs)
    sharpes = [sharpe for run in runs for sharpe in run.sharpes]
    cpu = sum(run.cpu_seconds for run in runs)
    return Row(name, options.trials, options.epochs, options.batch, lr, wall, cpu, sharpes).numbers()


def _single(options: argparse.Namespace, lr: float) -> dict[str, Any]:
    """A few epochs of one trial through the Gymnasium adapter: its rate does not depend on how long it runs."""
    wall, (run,) = _run_all([{**_job("dqn", [0], lr, options), "epochs": _SINGLE_EPOCHS, "single": True}])
    name = f"the same DQN, single Gymnasium environment, {_SINGLE_EPOCHS} epochs"
    return Row(name, 1, _SINGLE_EPOCHS, options.batch, lr, wall, run.cpu_seconds, run.sharpes).numbers()


def _tune(contender: str, options: argparse.Namespace) -> dict[str, float]:
    """Final Sharpe of seed 0 by learning rate."""
    _, runs = _run_all([_job(contender, [0], lr, options) for lr in PEER_RATES])
    return {str(lr): run.sharpes[0] for lr, run in zip(PEER_RATES, runs, strict=True)}


def _job(contender: str, seeds: Sequence[int], lr: float, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "contender": contender,
        "seeds": list(seeds),
        "lr": lr,
        "epochs": options.epochs,
        "batch": options.batch,
    }


def _run_all(jobs: Sequence[dict[str, Any]]) -> tuple[float, list[Run]]:
    """Wall seconds of all jobs, two processes at a time, and what each gave."""
    started = time.perf_counter()
    with ThreadPoolExecutor(PROCESSES) as pool:
        runs = list(pool.map(_run, jobs))
    return time.perf_counter() - started, runs


def _run(job: dict[str, Any]) -> Run:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peers_run", json.dumps(job)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    printed = process.stdout.read() if process.stdout is not None else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{job}: ended with {process.returncode}")
    print(printed.strip(), flush=True)
    return Run(json.loads(printed)["sharpes"], usage.ru_utime + usage.ru_stime)


def _about(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "hardware": _hardware(),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("torch", "stable_baselines3", "sb3_contrib", "gymnasium", "numpy")
        },
        "epochs": options.epochs,
        "env_steps_per_trial": options.epochs * _STEPS_PER_EPOCH,
        "gradient_steps_per_trial": options.epochs * _LEARN_STEPS,
        "batch": options.batch,
        "peer_sharpe_by_lr": {},
        "rows": {},
    }


def write(out: Path, record: dict[str, Any]) -> None:
    """Write what there is so far as JSON and as a table."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(render(record), encoding="utf-8")


def render(record: dict[str, Any]) -> str:
    """The table for people; ratios are how many times the contender's cost Paceline's is below it."""
    rows = record["rows"]
    ours = rows.get("ours")
    lines = [
        f"# Beside stable-baselines3, {record['date']}",
        "",
        f"{record['hardware']}; "
        + ", ".join(f"{name} {version}" for name, version in record["versions"].items())
        + ".",
        f"Each trial: {record['env_steps_per_trial']:,} environment steps, {record['gradient_steps_per_trial']:,} "
        f"gradient steps of {record['batch']}. Two processes at a time, one thread each; what is the same and what is "
        "not is said in `benchmarks/peers.py`.",
        "",
        "| contender | trials | wall s | CPU s | env steps/s | gradient samples/s | val Sharpe, median (least, most) "
        "| steps per wall s: ours / its | steps per CPU s: ours / its |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows.values():
        sharpes = row["val_sharpes"]
        full = row["trials"] > 1
        spread = f"{row['val_sharpe_median']:.2f} ({min(sharpes):.2f}, {max(sharpes):.2f})" if full else "-"
        ratios = ["-", "-"]
        if ours is not None:
            ratios = [f"{ours[key] / row[key]:.1f}" for key in ("env_steps_per_s", "env_steps_per_cpu_s")]
        lines.append(
            f"| {row['name']} (lr {row['lr']:g}) | {row['trials']} | {row['wall_seconds']:.0f} "
            f"| {row['cpu_seconds']:.0f} | {row['env_steps_per_s']:,.0f} | {row['gradient_samples_per_s']:,.0f} "
            f"| {spread} | {ratios[0]} | {ratios[1]} |"
        )
    for contender, by_rate in record["peer_sharpe_by_lr"].items():
        tried = ", ".join(f"{rate}: {sharpe:.2f}" for rate, sharpe in by_rate.items())
        lines += ["", f"{PEERS[contender]}, validation Sharpe of seed 0 by learning rate: {tried}."]
    return "\n".join(lines) + "\n"


def _hardware() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{model}, {os.cpu_count()} cores{load}"


if __name__ == "__main__":
    main()
