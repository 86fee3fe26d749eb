"""A trial's folder in the sweep: checkpoints to continue from, and what is left of it when it has ended.

``config.toml``, ``epoch_NNNNNN/`` (exact checkpoints, the newest two), and at the end of its budget ``result.json`` and
``policies/``. A folder appears whole or not at all, also when a trainer that was given up for dead still writes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import UserError
from trainer.training import checkpoint
from trainer.training.lane_state import LaneState
from trainer.training.report import TrialReport, trial_score

KEPT = 2
"""Checkpoints of a running trial; the second is there for the case that the first is damaged."""

History = list[dict[str, Any]]


@dataclass(frozen=True)
class TrialFolder:
    """``sweep_dir/trials/<trial_id>``."""

    path: Path

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint that is whole, and its manifest."""
        for folder in sorted(self.path.glob("epoch_*"), reverse=True):
            try:
                return folder, checkpoint.read_manifest(folder)
            except UserError:
                continue
        return None

    def save(self, attempt: int, epoch: int, state: LaneState, manifest: Mapping[str, Any]) -> None:
        """Write a checkpoint, then remove old ones."""
        staged = self.path / f".attempt_{attempt}" / f"epoch_{epoch:06d}"
        checkpoint.save(staged, state, {"epoch": epoch, **manifest})
        try:
            staged.rename(self.path / staged.name)
        except OSError:  # there already: the same epoch of the same trial has the same bits
            shutil.rmtree(staged, ignore_errors=True)
        shutil.rmtree(staged.parent, ignore_errors=True)
        for old in sorted(self.path.glob("epoch_*"))[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def history_entry(report: TrialReport) -> dict[str, Any]:
    """One epoch as the manifest keeps it."""
    return {
        "epoch": report.epoch,
        "time_ms": int(time.time() * 1000),
        "capacity": report.capacity,
        "folds": [{"fold": fold.fold, **fold.numbers()} for fold in report.folds],
        "phase_seconds": dict(report.phase_seconds),
    }


def numbers_of(entry: Mapping[str, Any]) -> dict[str, float]:
    """``fold_0/val_sharpe`` and so on, as :meth:`trainer.training.report.TrialReport.metrics` names them."""
    named = {f"fold_{f['fold']}/{name}": value for f in entry["folds"] for name, value in f.items() if name != "fold"}
    return named | {"capacity": entry["capacity"], **({"score": entry["score"]} if "score" in entry else {})}


def score_at(history: Sequence[Mapping[str, Any]], epoch: int, score_epochs: int) -> float:
    """The trial's score as it stood after ``epoch``: see :func:`trainer.training.report.trial_score`."""
    seen = [entry["folds"] for entry in history if entry["epoch"] <= epoch]
    by_fold = zip(*seen, strict=True)
    return trial_score([[f["val_sharpe"] for f in fold if "val_sharpe" in f] for fold in by_fold], score_epochs)
