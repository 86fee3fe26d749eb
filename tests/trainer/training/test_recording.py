"""Reruns at recorded capacities. On the CPU a GPU's ladder is played: rows lie idle, and no number depends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.config import TrialConfig
from trainer.lanes.tree import map_tensors
from trainer.training.capture import capacity_of
from trainer.training.group import LaneGroup
from trainer.training.lane_state import LaneState
from trainer.training.prepare import Prepared
from trainer.training.recording import NOTHING, Recording, read_recording
from trainer.training.report import TrialReport
from trainer.training.trial import TRIAL, Trial

from .conftest import CPU, tiny
from .test_independence import assert_same_bits, neighbours

GPU = torch.device("cuda")


@pytest.fixture
def ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups on the CPU have the sizes of groups on a GPU."""
    monkeypatch.setattr("trainer.training.group.capacity_of", lambda lanes, _device: capacity_of(lanes, GPU))


def in_company(
    prepared: Prepared, device: torch.device, subject: TrialConfig
) -> tuple[LaneState, list[TrialReport], Recording]:
    """The subject joins an epoch after another trial; four more come and go: 8 rows, 16 and 8 again."""
    others = neighbours(5)
    group = LaneGroup(subject, prepared, device)
    reports: list[TrialReport] = []

    def advance() -> None:
        reports.extend(report for report in group.advance() if report.trial_id == "subject")

    group.admit("other 0", others[0])
    advance()
    group.admit("subject", subject)
    advance()
    for index in range(1, 4):
        group.admit(f"other {index}", others[index])
    group.evict("other 0")
    advance()
    group.admit("other 4", others[4])
    advance()
    for index in range(1, 4):
        group.evict(f"other {index}")
    advance()
    state = map_tensors(lambda t: t.cpu(), group.snapshot("subject"))
    return state, reports, Recording(tuple(report.capacity for report in reports))


def alone(
    prepared: Prepared, device: torch.device, subject: TrialConfig, capacities: Sequence[int | None]
) -> tuple[LaneState, list[TrialReport]]:
    group = LaneGroup(subject, prepared, device)
    group.admit("subject", subject)
    reports = [report for capacity in capacities for report in group.advance(capacity)]
    return map_tensors(lambda t: t.cpu(), group.snapshot("subject")), reports


def numbers(reports: Sequence[TrialReport]) -> list[tuple[int, int, tuple[float, ...], Mapping[str, float]]]:
    """All that a rerun must repeat; seconds may differ."""
    return [(report.epoch, report.capacity, report.untrained, report.metrics()) for report in reports]


@pytest.mark.usefixtures("ladder")
def test_a_rerun_has_the_capacities_and_the_bits_that_the_trial_had_among_others(prepared: Prepared) -> None:
    state, reports, recording = in_company(prepared, CPU, tiny())
    assert recording.capacities == (8, 16, 16, 8)
    again, rerun = alone(prepared, CPU, tiny(), recording.capacities)
    assert numbers(rerun) == numbers(reports)
    assert_same_bits(again, state)


def test_an_untrained_agent_is_validated_with_the_first_epoch_and_no_later_one(prepared: Prepared) -> None:
    _, reports = alone(prepared, CPU, tiny(), [None, None])
    assert [len(report.untrained) for report in reports] == [3, 0]
    joined = in_company(prepared, CPU, tiny())[1]
    assert joined[0].untrained == reports[0].untrained


def test_every_trial_is_validated_by_its_own_settings(prepared: Prepared) -> None:
    group = LaneGroup(tiny(), prepared, CPU)
    group.admit("strict", tiny(**{"evaluation.min_trades": 1_000_000}))
    group.admit("lenient", tiny(**{"evaluation.min_trades": 0}))
    strict, lenient = group.advance()
    assert {fold.numbers()["val_sharpe"] for fold in strict.folds} == {0.0}
    assert any(fold.numbers()["val_sharpe"] != 0.0 for fold in lenient.folds)


def run(trial: Trial, until: int | None = None) -> dict[str, Any] | None:
    return trial.run(lambda _report: None, lambda: trial.epoch == until)


def test_a_trial_runs_at_its_recorded_capacities_and_says_so_in_its_result(tmp_path: Path) -> None:
    recording = Recording((8, 16, 3))
    result = run(Trial(tiny(**{"training.epochs": 4}), tmp_path / "replayed", CPU, recording=recording))
    plain = run(Trial(tiny(**{"training.epochs": 4}), tmp_path / "plain", CPU))
    assert result is not None
    assert plain is not None
    assert [epoch["capacity"] for epoch in result["epochs"]] == [8, 16, 3, 3]
    assert [epoch["capacity"] for epoch in plain["epochs"]] == [3, 3, 3, 3]
    for key in ("score", "folds"):
        assert result[key] == plain[key]
    assert read_recording(tmp_path / "plain") == NOTHING


def test_a_rerun_that_was_interrupted_goes_on_with_its_recording(tmp_path: Path) -> None:
    config = tiny(**{"training.epochs": 3})
    assert run(Trial(config, tmp_path / "t", CPU, recording=Recording((8, 16, 8))), until=1) is None
    result = run(Trial(config, tmp_path / "t", CPU, resume=True))
    assert result is not None
    assert [epoch["capacity"] for epoch in result["epochs"]] == [8, 16, 8]


def test_a_rerun_is_validated_where_the_sweep_asked_for_scores(tmp_path: Path) -> None:
    config = tiny(**{"training.epochs": 6, "training.validate_every": 6, "training.score_epochs": 1})
    trial = Trial(config, tmp_path / "t", CPU, recording=Recording(rungs=(2, 6)))
    assert run(trial, until=3) is None
    assert trial.group.resident(TRIAL).rungs == (2, 6)
    result = run(Trial(config, tmp_path / "t", CPU, resume=True))
    assert result is not None
    assert [e["epoch"] for e in result["epochs"] if "val_sharpe" in e["folds"][0]] == [2, 6]


def test_a_recording_with_fewer_rows_than_lanes_gives_way(tmp_path: Path) -> None:
    config = tiny(**{"training.epochs": 1})
    result = run(Trial(config, tmp_path / "t", CPU, recording=Recording((1,))))
    assert result is not None
    assert result["epochs"][0]["capacity"] == 3
