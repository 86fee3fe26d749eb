"""Which exact checkpoints stay when trials end."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.retention import Retention


def trial(root: Path, name: str, score: float | None = None) -> None:
    for folder in ("epoch_000001", "epoch_000002", ".attempt_3", "policies"):
        (root / name / folder).mkdir(parents=True)
    if score is not None:
        (root / name / "result.json").write_text(json.dumps({"score": score}))


def left(root: Path) -> dict[str, list[str]]:
    return {path.name: sorted(each.name for each in path.glob("*epoch_*")) for path in sorted(root.iterdir())}


def test_the_best_finished_trials_keep_their_newest_checkpoint(tmp_path: Path) -> None:
    retention = Retention(tmp_path, kept=2)
    for name, score in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        trial(tmp_path, name, score)
        retention.ended(name, score)
    assert left(tmp_path) == {"a": [], "b": ["epoch_000002"], "c": ["epoch_000002"]}
    assert not list(tmp_path.glob("*/.attempt_*"))


def test_a_trial_that_did_not_finish_keeps_none_but_its_other_files(tmp_path: Path) -> None:
    trial(tmp_path, "a")
    Retention(tmp_path, kept=2).ended("a", None)
    assert left(tmp_path) == {"a": []}
    assert (tmp_path / "a" / "policies").is_dir()


def test_what_an_earlier_run_of_the_sweep_kept_counts(tmp_path: Path) -> None:
    trial(tmp_path, "old", 1.0)
    trial(tmp_path, "new", 2.0)
    Retention(tmp_path, kept=1).ended("new", 2.0)
    assert left(tmp_path) == {"new": ["epoch_000002"], "old": []}
