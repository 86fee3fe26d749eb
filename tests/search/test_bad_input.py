"""What a person can get wrong: one clear line, exit code 2, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import ray

from search.__main__ import main


def fault(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


SPACE = 'type = "uniform"\nlow = 0.1\nhigh = 0.2\n'


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ('[sweep.space."agent.learning_rate"]\n' + SPACE, "no field agent.learning_rate"),
        ('[sweep.space."agent.gamma"]\ntype = "uniform"\nlow = 0.5\nhigh = 1.5\n', "outside the field's bounds"),
        ('[sweep.space."training.batch"]\ntype = "categorical"\nchoices = [65, 66]\n', "must be a multiple of 16"),
        ('[sweep.space."agent.gamma"]\ntype = "uniform"\nlow = 0.9\nhigh = 0.5\n', "must be below"),
        (
            '[sweep.space."agent.health_gradient_low"]\ntype = "log"\nlow = 1e3\nhigh = 1e5\n',
            "admits no valid config",
        ),
        ("", "needs a space"),
    ],
)
def test_a_space_that_is_wrong(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], space: str, said: str
) -> None:
    text = tiny.read_text()
    tiny.write_text(text[: text.index('[sweep.space."agent.lr"]')] + space)
    assert said in fault(capsys, str(tiny), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nosuch",), "no such profile"),
        ((), "give a profile"),
        (("{tiny}", "--resume", "somewhere"), "give a profile, or --resume"),
        (("{tiny}", "--trials", "0"), "trials = 0"),
        (("{tiny}", "--trials", "many"), "invalid int"),
        (("{tiny}", "--searcher", "anneal"), "invalid choice"),
        (("{tiny}", "--time-budget", "soon"), "2h, 30m, 90s"),
        (("{tiny}", "--set", "sweep.trails=3"), "did you mean 'trials'"),
        (("{tiny}", "--set", "agent.lrr=3"), "agent.lr"),
        (("{tiny}", "--set", "sweep.scheduler.grace_epochs=5"), "beyond training.epochs = 4"),
        (("{tiny}", "--set", "sweep.warm_start=['/nowhere']", "--set", "sweep.experiment='e'"), "/nowhere"),
        (("{tiny}", "--set", "sweep.first=[{'agent.tau' = 0.1}]"), "agent.tau"),
        (("--resume", "/nowhere"), "no sweep to resume here"),
    ],
)
def test_arguments_that_are_wrong(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    filled = [each.format(tiny=tiny) if each.startswith("{tiny}") else each for each in arguments]
    out = [] if "--resume" in arguments else ["--out", str(tmp_path / "runs" / "out")]
    assert said in fault(capsys, *filled, *out)
    assert not (tmp_path / "runs" / "out").exists()


def test_a_tracking_server_that_does_not_answer(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = "http://someone:secret@127.0.0.1:9"
    said = fault(capsys, str(tiny), "--set", f"sweep.tracking_uri={uri}", "--out", str(tmp_path / "out"))
    assert "no answer" in said
    assert "secret" not in said
    assert not (tmp_path / "out").exists()
    assert not ray.is_initialized()  # it starts beside the question


def test_a_folder_that_holds_something(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not an empty folder" in fault(capsys, str(tiny), "--out", str(tmp_path))


def test_a_profile_without_a_sweep(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no [sweep] table" in fault(capsys, "short", "--out", str(tmp_path / "out"))


def test_a_resume_that_would_change_the_search(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from search.start import _create
    from search.sweep_config import load_profile

    folder = tmp_path / "runs" / "sweep"
    _create(folder, load_profile(str(tiny)), [])
    before = (folder / "sweep.toml").read_text()
    assert "sweep.searcher cannot change" in fault(capsys, "--resume", str(folder), "--searcher", "random")
    assert "trials' configuration cannot" in fault(capsys, "--resume", str(folder), "--set", "agent.gamma=0.5")
    assert (folder / "sweep.toml").read_text() == before
    assert json.loads((folder / "warm_start.json").read_text()) == []
