from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainer.commands.sweep_trial import replayed, trial_of
from trainer.config import TrialConfig, load_config, write_toml
from trainer.errors import UserError
from trainer.training.recording import NOTHING, Recording


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    write_toml(TrialConfig(), tmp_path / "sweep.toml")
    events = [
        {"kind": "start"},
        {"kind": "ask", "trial_id": "t00000", "point": [0.1], "values": {"agent.lr": 1.2345678901234567e-05}},
        {"kind": "ask", "trial_id": "t00001", "point": [0.2], "values": {"agent.hidden": 128, "env.whole_lots": True}},
        {"kind": "rung", "trial_id": "t00001", "epoch": 1, "score": 0.5, "folds": []},
        {"kind": "rung", "trial_id": "t00000", "epoch": 1, "score": 0.1, "folds": []},
        {"kind": "tell", "trial_id": "t00000", "outcome": {}, "because": "", "epoch": 1, "capacities": [8]},
        {"kind": "rung", "trial_id": "t00001", "epoch": 3, "score": 0.6, "folds": []},
        {"kind": "tell", "trial_id": "t00001", "outcome": {}, "because": "", "epoch": 3, "capacities": [8, 16, 16]},
        {"kind": "ask", "trial_id": "t00002", "point": [0.3], "values": {"agent.hidden": 64}},
        {"kind": "ask", "trial_id": "t00003", "point": None, "values": None},
    ]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "log.jsonl").write_text(text + '{"kind": "ask", "trial_id": "t0')
    return tmp_path


def test_a_trial_of_a_sweep_has_exactly_the_values_it_was_given(sweep: Path) -> None:
    first, second = trial_of(sweep, "t00000"), trial_of(sweep, "t00001")
    assert load_config(first.profile, first.overrides).agent.lr == 1.2345678901234567e-05
    config = load_config(second.profile, second.overrides)
    assert (config.agent.hidden, config.env.whole_lots) == (128, True)


def test_a_trial_of_a_sweep_has_the_capacities_and_rungs_that_the_log_has_of_it(sweep: Path) -> None:
    assert trial_of(sweep, "t00001").recording == Recording((8, 16, 16), (1, 3))
    assert trial_of(sweep, "t00002").recording == NOTHING


def test_capacities_are_replayed_on_a_gpu_where_the_trial_ran_on_one() -> None:
    gpu, recorded = torch.device("cuda"), Recording((8, 16), (1, 3))
    assert replayed(recorded, torch.device("cpu")) == (Recording((), (1, 3)), "")
    assert replayed(recorded, gpu)[0] == recorded
    assert "first 2 epochs" in replayed(recorded, gpu)[1]
    assert replayed(Recording((9, 12), (1, 3)), gpu)[0] == Recording((), (1, 3))
    assert "did not run on a GPU" in replayed(Recording((9, 12)), gpu)[1]
    assert "no capacities" in replayed(Recording((), (1,)), gpu)[1]


def test_a_trial_that_the_sweep_has_not_is_named_with_the_nearest(sweep: Path) -> None:
    with pytest.raises(UserError, match=r"t00011: .* among its 3; did you mean t00001\?"):
        trial_of(sweep, "t00011")


def test_a_folder_without_a_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sweep here"):
        trial_of(tmp_path, "t00000")
