"""A trial of a sweep: what ``--from-trial DIR TRIAL_ID`` reruns alone, without Ray.

Reads the sweep's folder as plain data: ``sweep.toml`` has what all trials share, ``log.jsonl`` what each was given and
how it ran.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainer.errors import UserError
from trainer.training.capture import capacity_of
from trainer.training.recording import Recording


@dataclass(frozen=True)
class SweepTrial:
    """One trial of a sweep."""

    profile: str  # the sweep's own, as a file
    overrides: tuple[str, ...]  # the trial's values, as for --set
    recording: Recording


def trial_of(folder: Path, trial_id: str) -> SweepTrial:
    """A trial of the sweep in ``folder``.

    Raises:
        UserError: no sweep there, or no such trial in it.
    """
    profile, log = folder / "sweep.toml", folder / "log.jsonl"
    if not profile.is_file() or not log.is_file():
        raise UserError(f"--from-trial {folder}: no sweep here (sweep.toml and log.jsonl are not both there)")
    asked: list[str] = []
    values: dict[str, Any] = {}
    capacities: list[int] = []
    rungs: list[int] = []
    for event in _events(log):
        if event["kind"] == "ask" and event["values"] is not None:
            asked.append(event["trial_id"])
        if event.get("trial_id") != trial_id:
            continue
        match event["kind"]:
            case "ask":
                values = event["values"]
            case "rung":
                rungs.append(event["epoch"])
            case "tell":
                capacities = event["capacities"]
    if trial_id not in asked:
        near = difflib.get_close_matches(trial_id, asked, n=1, cutoff=0.0)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"--from-trial {folder} {trial_id}: the sweep has no such trial among its {len(asked)}{hint}")
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in values.items())
    return SweepTrial(str(profile), overrides, Recording(tuple(capacities), tuple(rungs)))


def replayed(recording: Recording, device: torch.device) -> tuple[Recording, str]:
    """What of a recording matters on this device, and for people what follows from it, "" where nothing does."""
    if device.type != "cuda":
        return replace(recording, capacities=()), ""
    if not recording.capacities:
        return recording, "the sweep has no capacities of this trial yet: the last bits of its numbers may differ there"
    if any(capacity_of(capacity, device) != capacity for capacity in recording.capacities):
        return replace(recording, capacities=()), "the trial did not run on a GPU in the sweep: its numbers will differ"
    return recording, f"its first {len(recording.capacities)} epochs run at the capacities that they had in the sweep"


def _events(log: Path) -> Iterator[dict[str, Any]]:
    """The sweep's log. A last line that is still being written is left out."""
    for line in log.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
