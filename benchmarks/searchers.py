"""Paceline's PSO against Nevergrad's PSO, OptunaHub's PSO, Optuna's TPE and random search.

Every contender gets the same problems, instances, budgets and trial durations, with 1, 8 and 64 trials in flight: a
simulated clock ends trials in an order drawn from the seed (durations log-normal, sigma 0.5), so that asks and tells
interleave as they do in a sweep. The result of a run is the regret of the best trial it saw.

Runs accumulate: a second call with other contenders adds to the JSON, and the table is written from all of it::

    nice python -m benchmarks.searchers benchmarks/results/searchers_2026-12-01 --jobs 2
        [--contenders pso optuna-tpe] [--optunahub-registry CHECKOUT] [--seeds 20] [--budget 200]
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import platform
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Contender, contenders
from benchmarks.problems import Problem, Regret, all_problems
from benchmarks.searchers_table import render

IN_FLIGHT = (1, 8, 64)
_DURATION_SIGMA = 0.5
_BLOCK = 4


@dataclass(frozen=True)
class Cell:
    """One contender on one problem with so many in flight, over some seeds."""

    contender: str
    problem: str
    in_flight: int
    seeds: range
    budget: int
    registry: Path | None


def main() -> None:
    """Run the contenders asked for, add them to the JSON, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="results without suffix; .json and .md are written")
    parser.add_argument("--contenders", nargs="+", help="default: all that can be run")
    parser.add_argument("--optunahub-registry", type=Path, help="checkout of optuna/optunahub-registry")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    names = args.contenders if args.contenders else list(contenders(args.optunahub_registry))
    results = args.out.with_suffix(".json")
    record = _load(results, args.budget)
    with ProcessPoolExecutor(args.jobs) as pool:
        for cells in _blocks(record, names, args):
            started = time.time()
            for cell, found in zip(cells, pool.map(run_cell, cells), strict=True):
                kept = record["regrets"].setdefault(cell.contender, {}).setdefault(cell.problem, {})
                kept.setdefault(str(cell.in_flight), []).extend(found)
            results.write_text(json.dumps(record) + "\n")
            print(f"{cells[0].contender}, seeds {cells[0].seeds}: {time.time() - started:.0f} s", flush=True)
    args.out.with_suffix(".md").write_text(render(record))


def _blocks(record: dict[str, Any], names: list[str], args: argparse.Namespace) -> Iterator[list[Cell]]:
    """What is still to run, a few seeds of every problem at a time, so that a run cut short still says something."""
    for name in names:
        done = record["regrets"].get(name, {})
        have = min((len(r) for problem in done.values() for r in problem.values()), default=0)
        for first in range(have, args.seeds, _BLOCK):
            seeds = range(first, min(first + _BLOCK, args.seeds))
            yield [
                Cell(name, problem, in_flight, seeds, args.budget, args.optunahub_registry)
                for problem in _problems()
                for in_flight in IN_FLIGHT
            ]


def run_cell(cell: Cell) -> list[float]:
    """Regret per seed."""
    warnings.simplefilter("ignore")
    problem = _problems()[cell.problem]
    make = contenders(cell.registry)[cell.contender]
    return [
        simulate(
            make(problem.space, cell.budget, cell.in_flight, seed=seed),
            problem.make(seed),
            cell.budget,
            cell.in_flight,
            seed,
        )
        for seed in cell.seeds
    ]


def simulate(contender: Contender, regret: Regret, budget: int, in_flight: int, seed: int) -> float:
    """Best regret after ``budget`` trials, at most ``in_flight`` of them running at any time."""
    rng = np.random.default_rng([seed, in_flight])
    running: list[tuple[float, int, Any, float]] = []
    now, best, asked = 0.0, math.inf, 0
    while asked < budget or running:
        while asked < budget and len(running) < in_flight:
            handle, values = contender.ask()
            heapq.heappush(running, (now + rng.lognormal(0.0, _DURATION_SIGMA), asked, handle, regret(values)))
            asked += 1
        now, _, handle, loss = heapq.heappop(running)
        contender.tell(handle, loss)
        best = min(best, loss)
    return best


@cache
def _problems() -> dict[str, Problem]:
    return {problem.name: problem for problem in all_problems()}


def _load(path: Path, budget: int) -> dict[str, Any]:
    fresh = {
        "budget": budget,
        "families": {problem.name: problem.family for problem in _problems().values()},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "regrets": {},
    }
    if not path.exists():
        return fresh
    record: dict[str, Any] = json.loads(path.read_text())
    if record["budget"] != budget:
        raise SystemExit(f"{path} holds runs of {record['budget']} trials; name another file for {budget}")
    return record


if __name__ == "__main__":
    main()
