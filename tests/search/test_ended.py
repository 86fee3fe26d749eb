"""A sweep that has ended and is resumed all the same."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from search.__main__ import main
from search.course import Course
from search.start import _create
from search.sweep_config import load_profile
from search.sweep_tracking import SweepTracking, target_of

from .conftest import MakeReport, RecordingPool


@pytest.fixture
def ended(tiny: Path, tmp_path: Path, report: MakeReport) -> Path:
    """A sweep of two trials whose server took nothing."""
    folder = tmp_path / "runs" / "sweep"
    profile = load_profile(str(tiny), ["sweep.trials=2"])
    _create(folder, profile, [])
    uri = f"sqlite:///{folder.parent / 'mlflow.db'}"
    tracking = SweepTracking(folder, target_of(uri, "paceline", (folder / "sweep_id").read_text().strip()))
    course = Course(folder, profile, [], tracking)
    pool: Any = RecordingPool()
    course.pool = pool
    course.start()
    for _ in range(2):
        trial = course.ask()
        assert trial is not None
        course.begin(trial)
        course.end(report(trial.trial_id, 4, 0.5, final=True), pruned=False)
    course.stop("every trial ended")
    course.close()
    return folder


def test_it_is_told_to_the_server_that_was_away_and_then_refused(
    ended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--resume", str(ended)]) == 0
    assert "2 trials: 2 complete" in capsys.readouterr().out
    with sqlite3.connect(ended.parent / "mlflow.db") as database:
        query = "select t.value, r.status from tags t join runs r on r.run_uuid = t.run_uuid where t.key = 'trial_id'"
        assert sorted(database.execute(query)) == [("t00000", "FINISHED"), ("t00001", "FINISHED")]
    assert main(["--resume", str(ended)]) == 2
    assert "has ended (2 trials); extend it with" in capsys.readouterr().err


def test_a_refused_extension_changes_nothing(ended: Path) -> None:
    assert main(["--resume", str(ended)]) == 0
    before = (ended / "sweep.toml").read_text()
    assert main(["--resume", str(ended), "--trials", "1"]) == 2
    assert (ended / "sweep.toml").read_text() == before
