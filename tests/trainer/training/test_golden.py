"""The committed trajectory of a tiny trial: a change of numerics shows here and is made on purpose.

After such a change run this file with ``PACELINE_UPDATE_GOLDEN=1`` in the environment, and say why in the commit.
Processors differ in the last bits, so numbers are compared to one part in a hundred, over the first epochs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainer.training.group import LaneGroup
from trainer.training.prepare import Prepared

from .conftest import CPU, tiny

GOLDEN = Path(__file__).with_name("golden.json")
NAMES = ("loss", "q_gap", "sigma", "gradient", "support_high")


def trajectory(prepared: Prepared) -> list[dict[str, float]]:
    group = LaneGroup(tiny(), prepared, CPU)
    group.admit("golden", tiny())
    epochs = []
    for _ in range(2):
        metrics = group.advance()[0].metrics()
        epochs.append({name: metrics[name] for fold in range(3) for name in (f"fold_{fold}/{each}" for each in NAMES)})
    return epochs


def test_a_tiny_trial_follows_the_committed_trajectory(prepared: Prepared) -> None:
    found = trajectory(prepared)
    if os.environ.get("PACELINE_UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    for epoch, (ours, golden) in enumerate(zip(found, json.loads(GOLDEN.read_text()), strict=True)):
        assert ours == pytest.approx(golden, rel=1e-2, abs=1e-6), f"epoch {epoch}"
