from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.commands.sweep_trial import profile_and_overrides
from trainer.config import TrialConfig, load_config, write_toml
from trainer.errors import UserError


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    write_toml(TrialConfig(), tmp_path / "sweep.toml")
    events = [
        {"kind": "start"},
        {"kind": "ask", "trial_id": "t00000", "point": [0.1], "values": {"agent.lr": 1.2345678901234567e-05}},
        {"kind": "ask", "trial_id": "t00001", "point": [0.2], "values": {"agent.hidden": 128, "env.whole_lots": True}},
        {"kind": "ask", "trial_id": "t00002", "point": None, "values": None},
    ]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "log.jsonl").write_text(text + '{"kind": "ask", "trial_id": "t0')
    return tmp_path


def test_a_trial_of_a_sweep_has_exactly_the_values_it_was_given(sweep: Path) -> None:
    profile, overrides = profile_and_overrides(sweep, "t00000")
    assert load_config(profile, overrides).agent.lr == 1.2345678901234567e-05
    profile, overrides = profile_and_overrides(sweep, "t00001")
    config = load_config(profile, overrides)
    assert (config.agent.hidden, config.env.whole_lots) == (128, True)


def test_a_trial_that_the_sweep_has_not_is_named_with_the_nearest(sweep: Path) -> None:
    with pytest.raises(UserError, match=r"t00011: .* among its 2; did you mean t00001\?"):
        profile_and_overrides(sweep, "t00011")


def test_a_folder_without_a_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sweep here"):
        profile_and_overrides(tmp_path, "t00000")
