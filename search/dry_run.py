"""``python -m search PROFILE --dry-run``: what a sweep would do and cost, without doing it."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from search.scheduler import rungs
from search.space import Dimension, Space
from search.sweep_config import Profile, SchedulerConfig, load_profile, write_profile
from trainer.errors import UserError
from trainer.fields import field_kind, walk

GROUPS_SHOWN = 8
GROUPS_COUNTED = 4_096
CHECKPOINTS = 2  # a running trial has
MEASURE_TIMEOUT_S = 900


def dry_run(options: argparse.Namespace) -> int:
    """Print the plan; returns the exit code."""
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 160)
    profile = load_profile(str(options.resume / "sweep.toml") if options.resume else options.profile, options.set)
    sweep, trial = profile.sweep, profile.trial
    console.print(_dimensions(profile))
    plan = rungs(sweep.scheduler, trial.training.epochs)
    console.print(
        f"{sweep.trials} trials by {sweep.searcher}, {sweep.scheduler.name} with rungs at epochs "
        f"{', '.join(str(rung) for rung in plan)}; {trial.folds.count} folds are {trial.folds.count} lanes a trial",
        highlight=False,
    )
    groups = lane_groups(profile.space)
    console.print(f"{len(groups)} lane group{'s' if len(groups) > 1 else ''} by static values:", highlight=False)
    for values in groups[:GROUPS_SHOWN]:
        console.print(f"  {values or 'all trials share one'}", highlight=False)
    if len(groups) > GROUPS_SHOWN:
        console.print(f"  and {len(groups) - GROUPS_SHOWN} more", highlight=False)
    console.print("measuring a trial of the profile's own values on this machine ...", highlight=False)
    for line in costs(profile, _measured(profile), len(groups)):
        console.print(line, highlight=False)
    return 0


def lane_groups(space: Space) -> list[str]:
    """The combinations of static values that the space's trials can have, as texts."""
    base = space.base
    fields = {} if base is None else {path: field for path, field, _ in walk(base)}
    static = tuple(d for d in space.dimensions if field_kind(fields[d.name]) == "static")
    names = {dimension.name for dimension in static}
    shaping = tuple(
        Dimension(d.name, d.kind, d.low, d.high, d.log, d.choices, tuple(w for w in d.when if w[0] in names))
        for d in static
    )
    combinations = Space(shaping, base).configurations(GROUPS_COUNTED)
    if combinations is None:
        return [f"more than {GROUPS_COUNTED}: too many static values"]
    admitted = [values for values in combinations if space.admits(values)]
    return [", ".join(f"{name} = {value}" for name, value in values.items()) for values in admitted]


def expected_epochs(config: SchedulerConfig, budget: int) -> float:
    """Epochs that a trial gets on average: under halving, 1 in ``reduction`` goes on at each rung; else all of them."""
    if config.name not in ("asha", "hyperband"):
        return float(budget)
    total, before = 0.0, 0
    for index, rung in enumerate(rungs(config, budget)):
        total += (rung - before) / config.reduction**index
        before = rung
    return total


def costs(profile: Profile, measured: dict[str, float | str], groups: int) -> list[str]:
    """Capacity, hours and disk as lines."""
    sweep, trial = profile.sweep, profile.trial
    folds = trial.folds.count
    trial_bytes = float(measured["lane_bytes"]) * folds
    fits = int(float(measured["room_bytes"]) / (2 * trial_bytes))
    lanes = sweep.pool.lanes if sweep.pool.lanes is not None else int(float(measured["room_lanes"]))
    fits = min(fits, lanes // folds)
    wanted = sweep.trials if sweep.concurrent is None else sweep.concurrent
    together = max(min(fits, math.ceil(wanted / groups)), 1)
    alone, more = float(measured["alone"]), float(measured["each_more"])
    epochs = sweep.trials * expected_epochs(sweep.scheduler, trial.training.epochs)
    hours = epochs * (alone + more * (together - 1)) / together / 3600
    held = (sweep.pool.kept_trials + CHECKPOINTS * together) * trial_bytes
    unit = "GPU-hours" if measured["device"] == "cuda" else "CPU core hours; a GPU takes a small part of that"
    return [
        f"on {measured['device']}: an epoch of one trial takes {alone:.2f} s, each more in its group {more:.2f} s",
        f"capacity: room for {fits} trials at once ({trial_bytes / 2**20:.1f} MB each); {together} to a group",
        f"work: {epochs:,.0f} trial epochs, {hours:.2f} {unit}",
        f"disk: up to {held / 2**20:,.0f} MB of checkpoints at once",
    ]


def _measured(profile: Profile) -> dict[str, float | str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.toml"
        write_profile(profile, path)
        command = [sys.executable, "-m", "search.estimate", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MEASURE_TIMEOUT_S)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"a trial of this profile cannot be measured: {last}")
    measured: dict[str, float | str] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def _dimensions(profile: Profile) -> Table:
    table = Table(title="Dimensions", title_justify="left")
    conditional = any(dimension.when for dimension in profile.space.dimensions)
    for column in ("field", "kind", "unit", "range", *(["only where"] if conditional else [])):
        table.add_column(column)
    fields = {path: field for path, field, _ in walk(profile.trial)}
    for dimension in profile.space.dimensions:
        extra = fields[dimension.name].json_schema_extra
        unit = str(extra.get("unit", "")) if isinstance(extra, dict) else ""
        where = "; ".join(f"{name} in {list(values)}" for name, values in dimension.when)
        row = (dimension.name, str(field_kind(fields[dimension.name])), unit, dimension.span)
        table.add_row(*row, *([where] if conditional else []))
    return table
