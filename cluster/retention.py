"""Which files of a trial go when it has ended. No torch here: the pool calls it.

Exact checkpoints hold the replay and fill disks; those of the best finished trials stay, of the others only
configuration, result and policies do.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path


class Retention:
    """The finished trials whose exact checkpoint is kept.

    Args:
        trials: folder of the trials; what is in it from an earlier run of the sweep counts too.
        kept: how many.
    """

    def __init__(self, trials: Path, kept: int) -> None:
        self._trials, self._kept = trials, kept
        self._best: list[tuple[float, str]] = []
        for result in trials.glob("*/result.json"):
            if any(result.parent.glob("epoch_*")):
                self._best.append((float(json.loads(result.read_text(encoding="utf-8"))["score"]), result.parent.name))

    def ended(self, trial_id: str, score: float | None) -> None:
        """Drop what need not be kept now that this trial has ended; ``score`` is None where it did not finish."""
        if score is None:
            self._drop(trial_id, 0)
            return
        others = [(other, name) for other, name in self._best if name != trial_id]
        self._best = sorted([*others, (score, trial_id)], reverse=True)
        for _, name in self._best[self._kept :]:
            self._drop(name, 0)
        self._best = self._best[: self._kept]
        self._drop(trial_id, 1)

    def _drop(self, trial_id: str, kept: int) -> None:
        checkpoints = sorted((self._trials / trial_id).glob("epoch_*"), reverse=True)[kept:]
        for folder in [*checkpoints, *(self._trials / trial_id).glob(".attempt_*")]:
            shutil.rmtree(folder, ignore_errors=True)
