"""A trial of a sweep as a profile and overrides: what ``--from-trial DIR TRIAL_ID`` reruns alone, without Ray.

Reads the sweep's folder as plain data: ``sweep.toml`` has what all trials share, ``log.jsonl`` what each was given.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from trainer.errors import UserError


def profile_and_overrides(folder: Path, trial_id: str) -> tuple[str, list[str]]:
    """The sweep's profile and the trial's values as ``--set`` overrides.

    Raises:
        UserError: no sweep there, or no such trial in it.
    """
    profile, log = folder / "sweep.toml", folder / "log.jsonl"
    if not profile.is_file() or not log.is_file():
        raise UserError(f"--from-trial {folder}: no sweep here (sweep.toml and log.jsonl are not both there)")
    asked = _asked(log)
    if trial_id not in asked:
        near = difflib.get_close_matches(trial_id, asked, n=1, cutoff=0.0)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"--from-trial {folder} {trial_id}: the sweep has no such trial among its {len(asked)}{hint}")
    return str(profile), [f"{key}={json.dumps(value)}" for key, value in asked[trial_id].items()]


def _asked(log: Path) -> dict[str, dict[str, Any]]:
    """Values by trial id. A last line that is still being written is left out."""
    asked = {}
    for line in log.read_text(encoding="utf-8").splitlines(keepends=True):
        event = json.loads(line) if line.endswith("\n") else {}
        if event.get("kind") == "ask" and event["values"] is not None:
            asked[event["trial_id"]] = event["values"]
    return asked
