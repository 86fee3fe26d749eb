"""What a person reads while a sweep goes."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from search.progress import TRAINERS_SHOWN, Progress
from search.results import Ledger


def pool(*trainers: tuple[int, str, float], **more: Any) -> dict[str, Any]:
    names = [f"trainer-{index}" for index in range(len(trainers))]
    account = {name: {"device": device, "busy": busy} for name, (_, device, busy) in zip(names, trainers, strict=True)}
    status = {
        "training": 2,
        "waiting": 1,
        "trials": {f"t{epoch}": {"phase": "training", "epoch": epoch} for epoch in (3, 5)},
        "trainers": dict(zip(names, (lanes for lanes, _, _ in trainers), strict=True)),
        "accounts": {**account, "trainer-lost": {"device": "GPU 9", "busy": 0.9}},
        "starting": {},
        "tracking_error": "",
    }
    return status | more


def said(status: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("search.progress.STATUS_EVERY_S", 0.0)
    text = io.StringIO()
    Progress(Ledger(), 4, Console(file=text, width=200)).status(status)
    return text.getvalue().strip()


def test_the_lanes_and_the_busy_share_of_each_trainer_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    line = said(pool((24, "GPU 0", 0.971), (21, "GPU 1", 0.5)), monkeypatch)
    expected = "0/4 ended, 2 train at epochs 3 to 5, 1 wait; lanes: 24 on GPU 0 (97 % busy), 21 on GPU 1 (50 % busy)"
    assert " ".join(line.split()) == f"0:00 {expected}"


def test_many_trainers_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = [(index, f"GPU {index}", index / 100) for index in range(1, TRAINERS_SHOWN + 2)]
    assert "9 trainers: 1 to 9 lanes, 1 to 9 % busy" in said(pool(*trainers), monkeypatch)


def test_trainers_that_start_and_tracking_that_fails_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    line = said(pool(starting={"a": 3, "b": 9}, tracking_error="ConnectionError: away"), monkeypatch)
    assert line.endswith("no trainer yet, 2 trainers starting, tracking: ConnectionError: away")
    line = said(pool(starting={"a": 75}), monkeypatch)
    assert line.endswith("no trainer yet, 1 trainer starting for 75 s: is the cluster full? see: ray status")


def test_without_news_the_account_comes_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.progress.STATUS_EVERY_S", 0.0)
    text = io.StringIO()
    progress = Progress(Ledger(), 4, Console(file=text, width=200))
    for lanes in (3, 3, 3, 6):
        progress.status(pool((lanes, "CPU", 0.5)))
    assert text.getvalue().count("\n") == 2
    monkeypatch.setattr("search.progress.SAME_EVERY_S", 0.0)
    progress.status(pool((6, "CPU", 0.5)))
    assert text.getvalue().count("\n") == 3
