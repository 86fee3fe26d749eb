"""Where the time of a sweep went, from hand-worked epochs."""

from __future__ import annotations

import pytest

from benchmarks.gpu_sweep import PROFILE as SWEEP
from benchmarks.gpu_sweep import TINY, Account, load_profile
from cluster.epoch_log import Epoch
from trainer.config import load_config


def epoch(began: float, lanes: int, capacity: int, learn: float, wall: float, between: float = 0.5) -> Epoch:
    """Ten learn steps; half a second each to collect and to validate, the rest of the wall time is nobody's."""
    phases = {"collect": 0.5, "validate": 0.5, "capture": 0.0, "report": 0.0, "learn": learn}
    return Epoch(began, between, wall, phases, lanes, capacity, lanes // 5, 10)


EPOCHS = [
    epoch(100.0, 5, 8, 1.0, 30.0),  # until here: the first trial alone, and starts
    epoch(130.5, 10, 16, 2.0, 5.5),  # the first full one ends at 136
    epoch(136.5, 10, 16, 2.0, 3.5),
    epoch(140.5, 10, 16, 2.0, 3.5),
    epoch(144.5, 5, 8, 1.5, 2.5),  # ends at 147
]


def account() -> Account:
    return Account.of(EPOCHS, [2, 1], 5, whole=70.0, ended=150.0)


def test_ideal_and_lost_seconds_are_the_wall_time() -> None:
    found = account()
    assert found.peak == 16 / 0.2
    assert found.wall == 11.0
    assert found.ideal == 250 / 80.0  # two epochs of 10 lanes, one of 5
    lost = found.lost()
    assert lost["idle rows"] == pytest.approx(2 * (2.0 - 100 / 80))
    assert lost["smaller capacities"] == pytest.approx(1.5 - 50 / 80)
    assert (lost["collect"], lost["validate"], lost["between epochs"]) == (1.5, 1.5, 1.5)
    assert lost["rest of an epoch"] == pytest.approx(0.5 + 0.5 + 0.0)
    assert found.ideal + sum(lost.values()) == pytest.approx(found.wall)


def test_warm_up_and_the_end_are_told_apart_and_epochs_beyond_a_verdict_from_those_that_counted() -> None:
    found = account()
    assert (found.warm_up, found.shipping) == (136.0 - 80.0, 3.0)
    assert found.live == 10 * (5 + 10 + 10 + 10 + 5)
    lines = {line.what: line.ours for line in found.lines()}
    assert lines["lane-steps within a trial's own epochs, of all"] == 5 * 3 * 10 / 400
    assert lines["sweep, 2 trials x 5 folds: live lane-steps over wall x peak rate"] == pytest.approx(250 / 80 / 11)


def test_the_profile_is_the_reference_network_and_trial_and_tiny_one_are_valid() -> None:
    profile, large = load_profile(str(SWEEP)), load_config("h100")
    assert (profile.sweep.trials, profile.trial.folds.count, profile.sweep.scheduler.name) == (200, 5, "asha")
    assert profile.trial.training.batch == large.training.batch == 512
    assert profile.trial.training.precision == large.training.precision
    assert load_profile(str(SWEEP), TINY).sweep.trials == 12
