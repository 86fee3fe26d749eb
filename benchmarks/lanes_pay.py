"""Whether lanes pay on a CPU: the smoketest sweep, and the same trials as one process per trial under Ray Tune.

    python -m benchmarks.lanes_pay [--profile smoketest] [--out benchmarks/results/lanes_pay_DATE.json]

1. `python -m search PROFILE`, whole process, tracking included.
2. Its configurations again as plain Tune trials that import the trainer, prepare the market and train a lane group of
   their own: a fresh process per trial, then reused ones. Same rungs and ASHA settings, as many processes as cores, one
   thread each, no tracking (which favours them). ASHA stops what it stops: the epochs trained stand beside the time.

Start-up is what a trial's process spends before its first epoch; learning is the rest. Reads only what a sweep writes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from search.scheduler import rungs
from search.sweep_config import load_profile

ROOT = Path(__file__).resolve().parents[1]


class ProcessTrial(tune.Trainable):  # type: ignore[misc]
    """One trial as people run it today: everything of its own. One step trains to the next rung."""

    def setup(self, config: dict[str, Any]) -> None:
        started = time.perf_counter()
        import torch

        from trainer.config import TrialConfig, apply_override
        from trainer.training.group import LaneGroup
        from trainer.training.prepare import prepare

        torch.set_num_threads(1)
        tree = json.loads(config["base"])
        for key, value in json.loads(config["values"]).items():
            apply_override(tree, f"{key}={json.dumps(value)}")
        trial = TrialConfig.model_validate(tree)
        self.rungs: list[int] = list(config["rungs"])
        self.sharpes: list[list[float]] = []
        self.score_epochs = trial.training.score_epochs
        device = torch.device("cpu")
        self.group = LaneGroup(trial, prepare(trial, device), device)
        self.group.admit("trial", trial, rungs=self.rungs)
        self.startup = time.perf_counter() - started

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Asked for when ASHA stops a trial; nothing here is continued."""
        del checkpoint_dir
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        del checkpoint

    def step(self) -> dict[str, Any]:
        started = time.perf_counter()
        while self.group.resident("trial").epoch < self.rungs[0]:
            (report,) = self.group.advance()
            self.sharpes.append([fold.numbers()["val_sharpe"] for fold in report.folds])
        reached = self.rungs.pop(0)
        last = self.sharpes[-self.score_epochs :]  # judged as in the sweep, so that ASHA stops as many
        return {
            "epoch": reached,
            "score": statistics.median(statistics.mean(fold) for fold in zip(*last, strict=True)),
            "startup": self.startup,
            "learning": time.perf_counter() - started,
            "done": not self.rungs,
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all three once, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="smoketest")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="lanes-pay-") as folder:
        rows = measure(options.profile, Path(folder))
    text = json.dumps({"machine": platform.processor(), "cores": os.cpu_count(), "rows": rows}, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


def measure(profile_name: str, folder: Path) -> list[dict[str, Any]]:
    """Rows of the table: the sweep, fresh processes, reused processes."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "search", profile_name, "--out", str(folder / "sweep")]
    uri = f"sweep.tracking_uri='sqlite:///{folder}/mlflow.db'"
    subprocess.run([*command, "--set", uri], check=True, cwd=ROOT, env=os.environ | {"RAY_ADDRESS": "local"})
    wall = time.perf_counter() - started
    trials = json.loads((folder / "sweep" / "sweep.json").read_text())["trials"]
    epochs = sum(max((rung["epoch"] for rung in trial["rungs"]), default=0) for trial in trials)
    rows: list[dict[str, Any]] = [{"way": "lanes", "wall": wall, "trials": len(trials), "epochs": epochs}]
    profile = load_profile(profile_name, [])
    space = {
        "values": tune.grid_search([json.dumps(trial["config"]) for trial in trials]),
        "base": profile.trial.model_dump_json(),
        "rungs": list(rungs(profile.sweep.scheduler, profile.trial.training.epochs)),
    }
    for reuse in (False, True):
        started = time.perf_counter()
        ray.init(address="local", include_dashboard=False, log_to_driver=False)
        results = tune.Tuner(
            tune.with_resources(ProcessTrial, {"cpu": 1}),
            param_space=space,
            tune_config=tune.TuneConfig(
                metric="score",
                mode="max",
                reuse_actors=reuse,
                scheduler=ASHAScheduler(
                    time_attr="epoch",
                    max_t=profile.trial.training.epochs,
                    grace_period=profile.sweep.scheduler.grace_epochs,
                    reduction_factor=profile.sweep.scheduler.reduction,
                ),
            ),
            run_config=tune.RunConfig(storage_path=str(folder / f"tune-{reuse}"), verbose=0),
        ).fit()
        ray.shutdown()
        frames = [result.metrics_dataframe for result in results]
        rows.append(
            {
                "way": "a process per trial, reused" if reuse else "a process per trial",
                "wall": time.perf_counter() - started,
                "trials": len(frames),
                "epochs": int(sum(frame["epoch"].max() for frame in frames)),
                "startup_seconds": float(sum(frame["startup"].iloc[0] for frame in frames)),
                "learning_seconds": float(sum(frame["learning"].sum() for frame in frames)),
            }
        )
    for row in rows:
        row["times_lanes"] = row["wall"] / wall
    return rows


if __name__ == "__main__":
    main()
