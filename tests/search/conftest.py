"""Small sweeps: profiles on disk, courses without Ray, a local Ray for those that need one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.protocol import RungReport, TrialRequest
from search.course import Course, new_sweep_id
from search.sweep_config import Profile, load_profile

TINY = """
[market]
source = "synthetic"

[env]
session_episodes = true

[folds]
count = 2

[training]
epochs = 4
learn_steps = 2
collect_steps = 4
checkpoint_every = 1

[sweep]
trials = 6
searcher = "pso"

[sweep.scheduler]
grace_epochs = 1
reduction = 2

[sweep.pso]
particles = 3

[sweep.space."agent.lr"]
type = "log"
low = 1e-4
high = 1e-2

[sweep.space."agent.gamma"]
type = "uniform"
low = 0.5
high = 0.99
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A profile whose trials take a second."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


class RecordingPool:
    """Takes what a course gives a pool."""

    def __init__(self) -> None:
        self.submitted: list[TrialRequest] = []
        self.stopped: list[tuple[str, str]] = []
        self.went_on: list[tuple[str, int]] = []

    def submit(self, request: TrialRequest) -> None:
        self.submitted.append(request)

    def go_on(self, trial_id: str, epoch: int) -> None:
        self.went_on.append((trial_id, epoch))

    def stop(self, trial_id: str, reason: str) -> None:
        self.stopped.append((trial_id, reason))


OpenCourse = Callable[..., Course]


@pytest.fixture
def open_course(tiny: Path, tmp_path: Path) -> Iterator[OpenCourse]:
    """Opens the course of the tiny sweep, as often as asked; the folder and its log stay."""
    opened: list[Course] = []

    def open_it(*overrides: str, profile: Profile | None = None) -> Course:
        for before in opened:
            before.close()
        folder = tmp_path / "sweep"
        if not folder.exists():
            folder.mkdir()
            new_sweep_id(folder)
        chosen = load_profile(str(tiny), overrides) if profile is None else profile
        course = Course(folder, chosen, [], None)
        pool: Any = RecordingPool()
        course.pool = pool
        course.start()
        opened.append(course)
        return course

    yield open_it
    for course in opened:
        course.close()


MakeReport = Callable[..., RungReport]


@pytest.fixture
def report() -> MakeReport:
    """Makes a report with two folds: ``report(trial_id, epoch, score, final=True)``."""
    return _report


def _report(trial_id: str, epoch: int, score: float | None, **more: Any) -> RungReport:
    folds = tuple({"fold": float(fold), "val_sharpe": score or 0.0, "mechanical_bias": 0.0} for fold in range(2))
    return RungReport(trial_id, epoch, score, more.pop("folds", folds), **more)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One Ray for the tests of a module."""
    import ray

    os.environ["RAY_ADDRESS"] = "local"
    from search.connect import connect_ray

    connect_ray()
    yield
    ray.shutdown()
