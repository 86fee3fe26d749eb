"""The table of the GPU benchmarks: ratios, fractions of the limit, and the same numbers for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu import Card, Row
from benchmarks.gpu_table import Line, markdown, write

CARD = Card("a card", 4e12, {"bf16": 800e12, "tf32": 400e12, "float32": 50e12})


def test_the_limit_is_the_rate_at_the_larger_floor_of_the_precision_that_ran() -> None:
    row = Row("learn bf16 compiled, 128 x 512", 4e-3, 32_000.0, "lane-steps/s", flops=800e9, bytes=8e9, bar=60_000.0)
    line = row.line(CARD)  # 1 ms of products, 2 ms of bytes: at best twice as fast
    assert (line.limit, line.fraction, line.bar) == (pytest.approx(64_000.0), pytest.approx(0.5), 60_000.0)
    exact = Row("learn float32, 128 x 512", 40e-3, 3_200.0, "lane-steps/s", flops=800e9, bytes=8e9).line(CARD)
    assert exact.fraction == pytest.approx(16e-3 / 40e-3)
    assert Row("start-up", 5.0, 5.0, "s", 0.0, 0.0).line(CARD).limit is None


def test_people_and_programs_read_the_same_numbers(tmp_path: Path) -> None:
    lines = [
        Line("learn", 30_000.0, "steps/s", peer="8 processes", theirs=600.0, bar=100.0, note="in one run"),
        Line("learn", 30_000.0, "steps/s", limit=120_000.0),
    ]
    write(tmp_path / "r", "Title", "About.", lines, {"card": "x"})
    made = json.loads((tmp_path / "r.json").read_text())
    assert made["learn"] == 30_000.0
    assert made["learn / 8 processes"] == 600.0
    assert made["learn / 8 processes ratio"] == 50.0
    assert made["learn fraction of the limit"] == 0.25
    assert {"torch", "triton", "python", "device", "driver", "date"} <= set(made["versions"])
    text = (tmp_path / "r.md").read_text()
    assert "| learn | 30,000 | steps/s | 8 processes | 600 | 50 |  | 100 x |" in text
    assert "| learn | 30,000 | steps/s |  |  |  | 0.25 |  |" in text
    assert text.endswith("- learn / 8 processes: in one run\n")
    assert markdown(lines) in text
