"""Shared fixtures. Torch runs on one thread: lanes are bit-identical only at a fixed thread count."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("paceline", deadline=None)  # a shared machine stands still at times
settings.load_profile("paceline")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # before Ray starts anything: a process reads it once


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real market files, named by ``PACELINE_DATA``; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("PACELINE_DATA", Path(__file__).parents[1] / ".." / "shared" / "data")).resolve()
    if not folder.is_dir():
        pytest.skip(f"no market files at {folder}: set PACELINE_DATA to a folder that has them")
    return folder
