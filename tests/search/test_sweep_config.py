from __future__ import annotations

import json
from pathlib import Path

import pytest

from search.course import make_searcher
from search.dry_run import costs, expected_epochs, lane_groups
from search.results import read_earlier
from search.sweep_config import SchedulerConfig, load_profile, seconds, write_profile
from trainer.errors import UserError
from trainer.fields import field_kind, walk


@pytest.mark.parametrize("name", ["smoketest", "localdev", "hyperopt", "production", "h100"])
def test_every_profile_has_a_sweep(name: str) -> None:
    profile = load_profile(name)
    assert len(profile.space) >= 4
    assert profile.trial.training.epochs >= profile.sweep.scheduler.grace_epochs


def test_hyperopt_searches_its_rates_on_the_original_ranges_and_one_static_field() -> None:
    profile = load_profile("hyperopt")
    dimensions = {dimension.name: dimension for dimension in profile.space.dimensions}
    assert (dimensions["agent.c51_alpha_max"].low, dimensions["agent.c51_alpha_max"].high) == (0.3, 0.9)
    assert (dimensions["agent.lr"].low, dimensions["agent.lr"].high, dimensions["agent.lr"].log) == (1e-7, 1e-4, True)
    kinds = {path: field_kind(field) for path, field, _ in walk(profile.trial)}
    assert [name for name in dimensions if kinds[name] == "static"] == ["agent.hidden"]
    assert len(lane_groups(profile.space)) == 3


def test_a_written_profile_reads_back_the_same(tiny: Path, tmp_path: Path) -> None:
    profile = load_profile(str(tiny), ["sweep.time_budget=90m", "sweep.first=[{'agent.gamma' = 0.7}]"])
    write_profile(profile, tmp_path / "copy.toml")
    again = load_profile(str(tmp_path / "copy.toml"))
    assert again == profile


def test_set_reaches_the_trial_the_sweep_and_the_space(tiny: Path) -> None:
    overrides = ["agent.tau=0.5", "sweep.trials=99", "sweep.scheduler.name=median", "sweep.space.agent.lr.high=5e-3"]
    profile = load_profile(str(tiny), overrides)
    assert profile.trial.agent.tau == 0.5
    assert profile.sweep.trials == 99
    assert profile.sweep.scheduler.name == "median"
    assert profile.space.dimensions[0].high == 5e-3


@pytest.mark.parametrize(
    ("text", "value"), [("2h", 7200.0), ("30m", 1800.0), ("90s", 90.0), ("1h30m", 5400.0), ("45", 45.0)]
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "2 days", "h", "-3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="2h, 30m"):
        seconds(text)


def test_a_warm_start_takes_complete_unbiased_trials_alone(tmp_path: Path) -> None:
    biased = [{"fold": 0.0, "mechanical_bias": 1.0}]
    trials = [
        {"state": "complete", "score": 1.5, "config": {"agent.gamma": 0.7}, "folds": []},
        {"state": "complete", "score": 9.0, "config": {"agent.gamma": 0.8}, "folds": biased},
        {"state": "pruned", "score": 8.0, "config": {"agent.gamma": 0.6}, "folds": []},
        {"state": "failed", "score": None, "config": {"agent.gamma": 0.5}, "folds": []},
    ]
    (tmp_path / "sweep.json").write_text(json.dumps({"trials": trials}))
    assert read_earlier([str(tmp_path)]) == [({"agent.gamma": 0.7}, 1.5)]
    with pytest.raises(UserError, match="nowhere"):
        read_earlier([str(tmp_path / "nowhere")])


@pytest.mark.parametrize("searcher", ["pso", "optuna", "random"])
def test_points_to_try_first_come_first(tiny: Path, searcher: str) -> None:
    point = "sweep.first=[{'agent.lr' = 2e-3, 'agent.gamma' = 0.75}]"
    made = make_searcher(load_profile(str(tiny), [f"sweep.searcher={searcher}", point]), [])
    first = made.ask("t00000")
    assert first is not None
    assert first.values == pytest.approx({"agent.lr": 2e-3, "agent.gamma": 0.75})


def test_expected_epochs_under_halving() -> None:
    config = SchedulerConfig(name="asha", grace_epochs=1, reduction=2)
    assert expected_epochs(config, 4) == 1 + 1 / 2 + 2 / 4
    assert expected_epochs(SchedulerConfig(name="none"), 4) == 4.0


def test_a_dry_run_says_capacity_hours_and_disk(tiny: Path) -> None:
    profile = load_profile(str(tiny), ["sweep.scheduler.name=none", "sweep.trials=10"])
    room: dict[str, float | str] = {"device": "cuda", "room_lanes": 1e9, "room_bytes": 40.0 * 2**20}
    measured = room | {"lane_bytes": 2.0**20, "alone": 3.0, "each_more": 1.0}
    lines = costs(profile, measured, groups=1)
    assert "room for 10 trials at once (2.0 MB each); 10 to a group" in lines[1]
    assert "40 trial epochs, 0.01 GPU-hours" in lines[2]  # 4 x (3 + 9 x 1) s
    assert "48 MB" in lines[3]  # 4 kept and 2 of each of 10
