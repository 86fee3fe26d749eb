"""Which files of a trial go when it has ended. No torch here: the pool calls it."""

from __future__ import annotations

import shutil
from pathlib import Path


def drop_checkpoints(trial: Path) -> None:
    """Remove what is in a trial's folder only to continue it; configuration, result and policies stay."""
    for folder in [*trial.glob("epoch_*"), *trial.glob(".attempt_*")]:
        shutil.rmtree(folder, ignore_errors=True)
