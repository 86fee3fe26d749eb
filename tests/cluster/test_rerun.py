"""A trial of a sweep rerun alone: the same numbers, in its own process, without Ray."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.protocol import RungReport, TrialRequest
from trainer.__main__ import main
from trainer.commands import sweep_trial
from trainer.config import TrialConfig, write_toml
from trainer.training.capture import capacity_of

from .conftest import request_of
from .test_trainer_loop import Link

GPU = torch.device("cuda")
RUNGS = {"t0": (2, 4), "t1": (1, 2, 5), "t2": (2, 3), "t3": (4,)}


def requests() -> list[TrialRequest]:
    """Trials that differ in their seed alone, so that they share a profile; they end at different epochs."""
    return [request_of(name, rungs, seed=seed) for seed, (name, rungs) in enumerate(RUNGS.items())]


def write_sweep(folder: Path, reports: dict[str, Sequence[RungReport]]) -> None:
    """The sweep's folder as ``search`` leaves it, as far as a rerun reads it."""
    write_toml(TrialConfig.model_validate(requests()[0].config), folder / "sweep.toml")
    events: list[dict[str, Any]] = []
    for request in requests():
        values = {"seed": request.config["seed"], "training.epochs": request.rungs[-1]}
        events.append({"kind": "ask", "trial_id": request.trial_id, "point": [0.5], "values": values})
        for report in reports[request.trial_id]:
            events.append({"kind": "rung", "trial_id": request.trial_id, "epoch": report.epoch})
        last = reports[request.trial_id][-1]
        events.append({"kind": "tell", "trial_id": request.trial_id, "capacities": list(last.capacities)})
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Trials that shared lane groups of the sizes that a GPU's have, as they came and went."""
    monkeypatch.setattr("trainer.training.group.capacity_of", lambda lanes, _device: capacity_of(lanes, GPU))
    link = Link(tmp_path / "sweep")
    for request in requests():
        link.state.submit(request)
    link.run()
    write_sweep(link.sweep_dir, {request.trial_id: link.reports(request.trial_id) for request in requests()})
    return link.sweep_dir


def rerun(sweep: Path, trial_id: str, out: Path) -> dict[str, Any]:
    assert main(["--from-trial", str(sweep), trial_id, "--device", "cpu", "--out", str(out)]) == 0
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def epochs(result: dict[str, Any]) -> list[tuple[int, list[dict[str, float]]]]:
    return [(epoch["epoch"], epoch["folds"]) for epoch in result["epochs"]]


@pytest.mark.parametrize("trial_id", ["t1", "t3"])
def test_a_trial_rerun_alone_has_the_numbers_that_it_had_in_the_sweep(
    sweep: Path, tmp_path: Path, trial_id: str
) -> None:
    told = json.loads((sweep / "trials" / trial_id / "result.json").read_text())
    result = rerun(sweep, trial_id, tmp_path / "alone")
    assert epochs(result) == epochs(told)
    assert result["score"] == told["score"]
    assert [fold["untrained_val_sharpe"] for fold in result["folds"]] == told["untrained_val_sharpe"]
    assert [fold["best_epoch"] for fold in result["folds"]] == told["best_epoch"]
    assert {epoch["capacity"] for epoch in result["epochs"]} == {8}


def test_on_a_gpu_a_rerun_goes_through_the_capacities_of_the_sweep(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads((sweep / "trials" / "t1" / "result.json").read_text())
    on_gpu = sweep_trial.replayed
    monkeypatch.setattr("trainer.commands.run.replayed", lambda recording, _device: on_gpu(recording, GPU))
    result = rerun(sweep, "t1", tmp_path / "alone")
    capacities = [epoch["capacity"] for epoch in told["epochs"]]
    assert set(capacities) == {8, 16}
    assert [epoch["capacity"] for epoch in result["epochs"]] == capacities
    assert epochs(result) == epochs(told)
