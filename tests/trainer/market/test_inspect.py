from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from trainer.market.bars_table import BarTable
from trainer.market.calendar import HOUR, MINUTE
from trainer.market.inspect import Range, describe, describe_holdout, draw
from trainer.market.instrument import load_instrument
from trainer.market.quality import QualityReport

ES = load_instrument("es")
START = 1_704_186_000_000_000_000  # 2024-01-02 09:00 UTC
REPORT = QualityReport(("d/es_trade.csv", "d/es_quote.csv"), 9, 6, {"copies": 3}, {"crossed": 1}, ("a note",))
RANGES = (Range("fold 0 train", 0, 3), Range("fold 0 validation", 3, 6), Range("last holdout", 6, 6))


@pytest.fixture
def table() -> BarTable:
    close_N = np.array([5000.0, 5001.0, 5002.0, 5050.0, 5051.0, 5100.0])
    return BarTable(
        time_N=START + np.array([0, 1, 7, 24 * 60, 24 * 60 + 1, 240 * 60]) * MINUTE,
        open_N=close_N,
        high_N=close_N + 1.0,
        low_N=close_N - 1.0,
        close_N=close_N,
        volume_N=np.full(6, 10.0),
        spread_N=np.full(6, 0.25),
        funding_N=np.zeros(6),
        session_N=np.array([0, 0, 0, 1, 1, 2]),
        contract_N=np.array([0, 0, 0, 0, 0, 1]),
        contract=("ESH4", "ESM4"),
    )


def test_the_page_says_what_was_read_and_why_rows_went(table: BarTable) -> None:
    page = describe(table, REPORT, ES, RANGES, ("ret_1", "rsi"), warm_up=14).splitlines()
    assert "pair: es_trade.csv, es_quote.csv" in page
    assert "rows: 9 read, 6 kept" in page
    assert "  dropped 3: copies" in page
    assert "  repaired 1: crossed" in page
    assert "  a note" in page
    assert "span: 2024-01-02 09:00 to 2024-01-12 09:00 UTC, bars labelled by their end" in page


def test_the_page_lists_sessions_gaps_nights_rolls_and_far_dates(table: BarTable) -> None:
    page = describe(table, REPORT, ES).splitlines()
    assert any(
        line.startswith("sessions: 3 on 3 UTC dates, bars of 60 s; bars in a session: 1 shortest") for line in page
    )
    assert "gaps inside sessions: 1 (5 bars missing)" in page
    assert "  6 min after 2024-01-02 09:01 UTC" in page
    assert (
        "  +0.96% at the open, +0.96% at the first close, +0.98% after 5 min, 23.9 h after 2024-01-02 09:07 UTC" in page
    )
    assert "dates far apart (more than 120 h): 1" in page
    assert "  9.0 days after 2024-01-03 09:01 UTC" in page
    assert "  ESH4 to ESM4 after 2024-01-03 09:01 UTC, step of +49 points not booked" in page


def test_the_page_lists_features_and_folds(table: BarTable) -> None:
    page = describe(table, REPORT, ES, RANGES, ("ret_1", "rsi"), warm_up=14).splitlines()
    assert "features: 2, warm-up 14 bars" in page
    assert "  ret_1, rsi" in page
    assert "fold 0 train: bars 0 to 2 (3), 1 sessions, 2024-01-02 09:00 to 2024-01-02 09:07 UTC" in page
    assert "last holdout: no bars" in page


def test_the_picture_is_a_png_with_folds_in_their_colours(table: BarTable, tmp_path: Path) -> None:
    draw(table, ES, tmp_path / "bare.png")
    draw(table, ES, tmp_path / "folds.png", RANGES)
    bare, folds = (matplotlib.image.imread(tmp_path / name) for name in ("bare.png", "folds.png"))
    blue = np.array([0x4C, 0x72, 0xB0]) / 255.0

    def bluish(picture: np.ndarray) -> int:
        return int((np.abs(picture[:, :, :3] - blue).max(axis=2) < 0.12).sum())

    assert folds.shape == bare.shape == (825, 1430, 4)
    assert bluish(folds) > 1000 > bluish(bare)


def test_far_dates_are_those_beyond_the_instruments_limit(table: BarTable) -> None:
    patient = ES.model_copy(update={"max_gap_hours": 1000.0})
    assert "dates far apart (more than 1000 h): 0" in describe(table, REPORT, patient)
    assert HOUR == 60 * MINUTE


def test_of_the_holdout_only_the_time_axis_is_told(table: BarTable) -> None:
    page = describe_holdout(table, 3, ES).splitlines()
    assert page == [
        "holdout, out of sight: 3 bars from 2024-01-03 09:00 UTC, 2 sessions on 2 UTC dates, 0 gaps inside sessions, "
        "1 between dates far apart, 1 rolls (ESH4 to ESM4)",
        "all of it: 6 bars to 2024-01-12 09:00 UTC, 3 sessions on 3 UTC dates, 1 gaps inside sessions, "
        "1 between dates far apart, 1 rolls (ESH4 to ESM4)",
    ]
    assert len(describe_holdout(table, 6, ES).splitlines()) == 1


def test_bars_of_uneven_length_have_gaps_only_where_a_minute_is_silent(table: BarTable) -> None:
    second = 1_000_000_000
    uneven = replace(
        table,
        time_N=START + np.array([0, 3, 4, 90, 97, 97 + 40]) * second,
        session_N=np.zeros(6, dtype=np.int64),
        contract_N=np.zeros(6, dtype=np.int64),
    )
    page = describe(uneven, REPORT, ES).splitlines()
    assert any("bars of uneven length" in line for line in page)
    assert "gaps inside sessions: 1 (silences of more than a minute)" in page
    assert "  1.433 min after 2024-01-02 09:00:04 UTC" in page
