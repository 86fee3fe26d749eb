"""The smoke test (S47): the shipped profile, from the command line to the result, in minutes on two cores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from trainer.__main__ import main

HEALTH_FLOOR = 0.3


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("smoke") / "trial"
    assert main(["smoketest", "--out", str(out), "--device", "cpu"]) == 0
    loaded: dict[str, Any] = json.loads(Path(out / "result.json").read_text())
    return loaded


def test_every_fold_beats_flat_buy_and_hold_random_and_the_untrained_agent(result: dict[str, Any]) -> None:
    assert len(result["folds"]) == 3
    for fold in result["folds"]:
        assert fold["val_trades"] >= 20
        alternatives = ("flat", "buy_and_hold", "random", "untrained")
        assert fold["val_sharpe"] > max(fold[f"{name}_val_sharpe"] for name in alternatives), fold


def test_the_q_gap_grows_and_the_agents_are_healthy(result: dict[str, Any]) -> None:
    first, last = result["epochs"][0]["folds"], result["epochs"][-1]["folds"]
    for before, after in zip(first, last, strict=True):
        assert after["q_gap"] > 1.5 * before["q_gap"]
        assert after["health"] > HEALTH_FLOOR
        assert after["mechanical_bias"] == 0.0


def test_every_number_is_finite(result: dict[str, Any]) -> None:
    numbers = [value for epoch in result["epochs"] for fold in epoch["folds"] for value in fold.values()]
    assert all(math.isfinite(number) for number in numbers)
    assert len(result["epochs"]) == 20
