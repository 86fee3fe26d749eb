"""From TOML and ``--set`` to one frozen configuration, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.__main__ import main
from trainer.config import PROFILES, TrialConfig, apply_override, load_config, read_toml, validate, write_toml
from trainer.errors import UserError
from trainer.fields import Frozen, dynamic, static, walk


def write(folder: Path, text: str) -> str:
    path = folder / "profile.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_profile_file_changes_what_it_names_and_keeps_the_other_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "seed = 3\n[agent]\nlr = 1e-2\n"))
    assert (config.seed, config.agent.lr) == (3, 1e-2)
    assert config == TrialConfig(seed=3, agent=TrialConfig().agent.model_copy(update={"lr": 1e-2}))


def test_overrides_come_after_the_profile_and_the_last_one_wins(tmp_path: Path) -> None:
    profile = write(tmp_path, "[agent]\nlr = 1e-2\n")
    assert load_config(profile, ["agent.lr=1e-3", "agent.lr=1e-4"]).agent.lr == 1e-4


def test_a_profile_by_name_wins_over_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smoketest").write_text("seed = 9")
    assert load_config("smoketest") == load_config(str(PROFILES / "smoketest.toml"))


def test_the_sweeps_table_is_no_part_of_a_trial(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "[sweep]\nanything = 1\n")) == TrialConfig()


@pytest.mark.parametrize("name", sorted(path.stem for path in PROFILES.glob("*.toml")))
def test_a_written_config_reads_back_as_the_same_config(tmp_path: Path, name: str) -> None:
    config = load_config(name, ["market.synthetic.signal=0.01", "market.files.timezone=UTC", "seed=7"])
    write_toml(config, tmp_path / "config.toml")
    assert load_config(str(tmp_path / "config.toml")) == config


@given(
    lr=st.floats(1e-9, 1.0),
    gamma=st.floats(0.0, 1.0),
    epochs=st.integers(1, 10**6),
    path=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), min_size=1),
)
def test_any_value_survives_the_way_through_toml(
    tmp_path_factory: pytest.TempPathFactory, lr: float, gamma: float, epochs: int, path: str
) -> None:
    tree = {
        "agent": {"lr": lr, "gamma": gamma},
        "training": {"epochs": epochs},
        "market": {"files": {"path": path, "columns": {"time": path}}},
    }
    config = TrialConfig.model_validate(tree)
    file = tmp_path_factory.mktemp("config") / "config.toml"
    write_toml(config, file)
    assert load_config(str(file)) == config


def test_configs_are_frozen() -> None:
    with pytest.raises(ValidationError):
        TrialConfig().agent.lr = 1.0


def test_an_unknown_key_is_an_error_with_the_nearest_valid_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown key 'training.epoch'; did you mean 'training.epochs'\?"):
        load_config(write(tmp_path, "[training]\nepoch = 3\n"))
    with pytest.raises(UserError, match=r"unknown key 'trainin'; did you mean 'training'\?"):
        load_config(write(tmp_path, "[trainin]\nepochs = 3\n"))
    with pytest.raises(UserError, match=r"did you mean 'market.synthetic.flow_noise'\?"):
        load_config(write(tmp_path, "[market.synthetic]\nflownoise = 3.0\n"))


def test_every_fault_of_a_profile_is_told_at_once_each_with_its_key_and_origin(tmp_path: Path) -> None:
    profile = write(tmp_path, "[agent]\nlr = 7.0\n[training]\nepochs = 0\n")
    with pytest.raises(UserError) as fault:
        load_config(profile, ["agent.gamma=2"])
    message = str(fault.value)
    assert f"{profile}: agent.lr = 7.0: input should be less than or equal to 1" in message
    assert f"{profile}: training.epochs = 0: input should be greater than or equal to 1" in message
    assert "--set agent.gamma=2: agent.gamma = 2" in message


def test_a_fault_between_fields_names_the_table_but_does_not_print_it(tmp_path: Path) -> None:
    with pytest.raises(UserError) as fault:
        load_config(write(tmp_path, "[agent]\nhealth_gradient_low = 200.0\n"))
    assert str(fault.value).endswith("agent: health_gradient_low must be below health_gradient_high")


def test_a_flag_is_no_number_and_a_number_is_no_wrong_whole(tmp_path: Path) -> None:
    for line in ("[agent]\nlr = true", "[market.synthetic]\nsignal = false", "[training]\nepochs = true"):
        with pytest.raises(UserError, match="a number is right, not a flag"):
            load_config(write(tmp_path, line))
    assert load_config(write(tmp_path, "[env]\nwhole_lots = true")).env.whole_lots
    assert load_config(write(tmp_path, "[agent]\nlr = 1")).agent.lr == 1.0


@pytest.mark.parametrize(
    ("override", "tree"),
    [
        ("a=1", {"a": 1}),
        (" a . b =1", {"a": {"b": 1}}),
        ("a.b=1e-4", {"a": {"b": 1e-4}}),
        ("a.b=text", {"a": {"b": "text"}}),
        ("a.b='1'", {"a": {"b": "1"}}),
        ("a.b=x=y", {"a": {"b": "x=y"}}),
        ("a.b=", {"a": {"b": ""}}),
        ("a.b=[1, 2]", {"a": {"b": [1, 2]}}),
    ],
)
def test_an_override_is_a_dotted_key_and_a_toml_value_or_bare_text(override: str, tree: dict[str, Any]) -> None:
    made: dict[str, Any] = {}
    apply_override(made, override)
    assert made == tree


@pytest.mark.parametrize("override", ["a", "=1", ".a=1", "a.=1", "a..b=1", ""])
def test_what_is_no_override_is_refused(override: str) -> None:
    with pytest.raises(UserError, match=r"dotted\.key=value"):
        apply_override({}, override)


def test_an_override_below_a_value_is_refused() -> None:
    with pytest.raises(UserError, match="'a' is a value, not a table"):
        apply_override({"a": 1}, "a.b=2")


def test_toml_faults_name_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"profile\.toml: not valid TOML: .*line 2"):
        read_toml(Path(write(tmp_path, "seed = 1\nseed = 2\n")))
    with pytest.raises(UserError, match="cannot be read"):
        read_toml(tmp_path)


def test_models_of_other_packages_are_validated_the_same_way() -> None:
    class Inner(Frozen):
        share: float = dynamic(0.5, unit="", ge=0, le=1, doc="a share")

    class Outer(Frozen):
        inner: Inner = Inner()
        name: str = static("x", doc="a name")

    assert validate(Outer, {"inner": {"share": 1}}, where="here").inner.share == 1.0
    with pytest.raises(UserError, match=r"here: unknown key 'inner\.shar'; did you mean 'inner\.share'\?"):
        validate(Outer, {"inner": {"shar": 1}}, where="here")


def test_the_list_of_fields_says_value_kind_unit_bounds_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fields", "smoketest", "--set", "agent.lr=2e-4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list(walk(TrialConfig())))
    assert "agent.lr = 0.0002  [dynamic; 1/step; > 0, <= 1]  learning rate of Adam" in lines
    assert any(line.startswith("folds.scheme = 'expanding'  [static; 'expanding' | 'rolling']") for line in lines)
    assert any("multiple of 8" in line for line in lines if line.startswith("agent.hidden = "))
    assert main(["fields", "--prefix", "folds."]) == 0
    assert all(line.startswith("folds.") for line in capsys.readouterr().out.splitlines())


def test_the_static_signature_ignores_dynamic_values_alone() -> None:
    base = load_config("smoketest")
    assert load_config("smoketest", ["agent.lr=1e-5", "seed=4"]).static_signature() == base.static_signature()
    assert load_config("smoketest", ["agent.hidden=128"]).static_signature() != base.static_signature()
    assert load_config("smoketest", ["market.synthetic.seed=1"]).static_signature() != base.static_signature()
