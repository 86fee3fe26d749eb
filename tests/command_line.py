"""Runs ``python -m trainer`` in process on a trial so small that it takes a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainer.__main__ import main

TINY = """
[market]
source = "synthetic"
[market.synthetic]
preset = "easy"
sessions = 40
bars_per_session = 24
[market.features]
families = ["returns", "session"]
[folds]
count = 2
[env]
session_episodes = true
[agent]
lr = 1e-3
gamma = 0.9
hidden = 16
atoms = 12
support_start = "warm"
[replay]
capacity = 2048
[training]
epochs = 3
episodes = 64
collect_steps = 8
learn_steps = 6
batch = 64
checkpoint_every = 1
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> Ended:
    """The command's exit code and everything it printed, also from below Python."""
    capfd.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capfd.readouterr()
    return Ended(code, said.out, said.err)


def refused(ended: Ended, *parts: str) -> None:
    """One line on stderr that holds ``parts``, exit code 2, no traceback."""
    assert ended.code == 2, ended
    assert "Traceback" not in ended.out + ended.err
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1, ended.err
    for part in parts:
        assert part in ended.err, ended.err


def tiny_profile(folder: Path, extra: Sequence[str] = ()) -> Path:
    """A profile file of the tiny trial, with more lines at its end."""
    path = folder / "tiny.toml"
    path.write_text("\n".join([TINY, *extra]), encoding="utf-8")
    return path
