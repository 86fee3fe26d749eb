"""The real files, as their README describes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from trainer.market.calendar import Survey, survey
from trainer.market.instrument import Instrument, guess_instrument
from trainer.market.loaded import LoadedBars
from trainer.market.sources.config import FileConfig
from trainer.market.sources.files import read_bars


def load(folder: Path, name: str, **settings: Any) -> tuple[LoadedBars, Instrument, Survey]:
    path = folder / "bars" / name
    if not path.exists() and not list(path.parent.glob(f"{name}*")):
        pytest.skip(f"no {path}: set PACELINE_DATA to a folder that has it")
    instrument = guess_instrument(path)
    bars = read_bars(FileConfig(path=str(path), **settings), instrument)
    return bars, instrument, survey(bars.table, instrument)


def stamp(time: int) -> str:
    return f"{pd.Timestamp(int(time), tz='UTC'):%Y-%m-%d %H:%M}"


def test_yes_bank_has_245_sessions_the_evening_of_diwali_among_them(data_dir: Path) -> None:
    bars, _, found = load(data_dir, "yesbank_nse_1m_2019.parquet")
    assert bars.report.rows_read == 92_017
    assert bars.report.dropped == {"outside session hours": 460}
    assert found.sessions == 245
    assert found.bars_per_session == (62, 375, 375)
    assert any("labelled by their start" in note for note in bars.report.notes)


def test_yes_bank_falls_by_a_quarter_over_a_night_and_its_first_minutes(data_dir: Path) -> None:
    bars, _, found = load(data_dir, "yesbank_nse_1m_2019.parquet", hours="all")
    table = bars.table
    worst = min(found.nights, key=lambda night: night.close_move)
    assert stamp(table.time_N[worst.bar]) == "2019-04-26 10:11"
    assert worst.open_move == pytest.approx(213.5 / 237.2 - 1.0)
    assert worst.close_move == pytest.approx(201.65 / 237.2 - 1.0)
    sixth = worst.bar + 6  # the bar that opens five minutes into the session
    assert table.open_N[sixth] / table.close_N[worst.bar] - 1.0 == pytest.approx(-0.259, abs=5e-4)
    assert worst.early_move == pytest.approx(-0.259, abs=5e-4)


def test_es_front_has_19_dates_far_apart_and_rolls_that_are_no_nights(data_dir: Path) -> None:
    bars, _, found = load(data_dir, "es_front_1m")
    assert bars.report.rows_read == 23_098
    assert (found.dates, found.sessions) == (19, 25)
    assert len(found.far_apart) == 7
    assert [(roll.before, roll.after) for roll in found.rolls] == [
        ("201312", "201403"),
        ("201403", "201609"),
        ("201609", "202003"),
        ("202003", "20201218"),
    ]
    rolled = {roll.bar for roll in found.rolls}
    assert rolled.isdisjoint(night.bar for night in found.nights)


def test_es_sessions_run_over_midnight_of_chicago(data_dir: Path) -> None:
    table = load(data_dir, "es_front_1m")[0].table
    second = table.time_N[table.session_N == 1]
    assert (stamp(second[0]), stamp(second[-1])) == ("2013-10-07 22:01", "2013-10-08 21:15")


def test_es_sessions_end_when_the_exchange_closed_at_the_time(data_dir: Path) -> None:
    bars, instrument, _ = load(data_dir, "es_front_1m")
    assert bars.report.dropped == {}
    time_N = pd.DatetimeIndex(pd.to_datetime(bars.table.time_N, utc=True)).tz_convert(instrument.timezone)
    for year, close in ((2013, "16:15"), (2016, "16:00"), (2020, "16:00")):
        before_the_open = time_N[(time_N.year == year) & (time_N.hour < 17)]
        assert before_the_open.strftime("%H:%M").max() == close


def test_es_prices_in_millionths_are_scaled_back_with_their_quotes(data_dir: Path) -> None:
    bars, instrument, _ = load(data_dir, "es_front_1m")
    table = bars.table
    assert bars.report.repaired == {
        "fixed-point prices, divided by 1e+06": 2_650,
        "no quote at the close: last trade and default spread": 11,
        "locked quote: default spread": 3,
    }
    assert (table.low_N.min(), table.high_N.max()) == (1640.0, 3309.5)
    year_2016_N = np.array([stamp(time).startswith("2016") for time in table.time_N])
    assert 2150.0 < table.low_N[year_2016_N].min() < table.high_N[year_2016_N].max() < 2200.0
    assert np.median(table.spread_N[year_2016_N]) == instrument.tick
    assert table.spread_N.max() == 0.75


def test_es_close_is_the_mid_within_a_tick_of_the_last_trade(data_dir: Path) -> None:
    table = load(data_dir, "es_front_1m")[0].table
    raw = pd.read_parquet(data_dir / "bars" / "es_front_1m_trade.parquet")
    start_N = raw["ts"].dt.as_unit("ns").astype("int64").to_numpy() + 60_000_000_000
    last_N = pd.Series(raw["close"].to_numpy(), index=start_N).reindex(table.time_N).to_numpy()
    last_N = np.where(last_N > 1e6, last_N / 1e6, last_N)
    assert (np.abs(table.close_N - last_N) <= 1.0).all()
    assert np.mean(np.abs(table.close_N - last_N) <= 0.125) > 0.95


def test_spy_minutes_have_seven_sessions_of_390_bars_with_quotes(data_dir: Path) -> None:
    bars, _, found = load(data_dir, "spy_1m_trade.parquet")
    assert (found.sessions, found.bars_per_session, found.gaps) == (7, (390, 390, 390), ())
    assert bars.report.dropped == {"outside session hours": 3_056}
    assert bars.report.repaired == {"locked quote: default spread": 18}
    whole, _, _ = load(data_dir, "spy_1m_trade.parquet", hours="all")
    assert len(whole.table) == whole.report.rows_read == 5_786


def test_spy_five_minutes_have_756_sessions_and_eight_half_days(data_dir: Path) -> None:
    bars, _, found = load(data_dir, "spy_5m_2018_2020.parquet", volume_in_lots=True)
    assert (found.sessions, found.bars_per_session) == (756, (42, 78, 78))
    assert found.early_closes == 8
    assert bars.report.dropped == {"zero volume: nothing traded": 6}
    assert any("labelled by their end" in note for note in bars.report.notes)
    assert bars.table.volume_N[0] == 2_517_900.0


def test_spy_five_minute_labels_are_a_minute_early_and_said_to_be(data_dir: Path) -> None:
    bars, _, _ = load(data_dir, "spy_5m_2018_2020.parquet")
    assert any("60 s early" in note and "shift_seconds=60 " in note for note in bars.report.notes)
    shifted, _, _ = load(data_dir, "spy_5m_2018_2020.parquet", shift_seconds=60.0)
    assert not any("labels look off" in note for note in shifted.report.notes)
    assert stamp(shifted.table.time_N[0]) == "2018-01-02 14:35"


def test_spy_lacks_the_first_hour_where_new_york_and_europe_change_clocks_apart(data_dir: Path) -> None:
    bars, instrument, found = load(data_dir, "spy_5m_2018_2020.parquet")
    _, first_S = np.unique(bars.table.session_N, return_index=True)
    local = pd.to_datetime(bars.table.time_N[first_S], utc=True).tz_convert(instrument.timezone)
    late = local[local.strftime("%H:%M") == "10:34"]
    assert found.late_opens == len(late) + 1  # and the day whose first three bars did not trade
    assert set(late.month) == {3, 10, 11}


def test_euro_future_sessions_end_on_the_close_of_chicago(data_dir: Path) -> None:
    bars, instrument, found = load(data_dir, "6EH4.XCME_1min_bars_20240101_20240131.csv.gz")
    assert bars.report.rows_kept == bars.report.rows_read == 29_996
    assert found.sessions == 23
    assert max(gap.seconds for gap in found.gaps) == 420.0
    assert any("labelled by their end" in note for note in bars.report.notes)
    _, first_S = np.unique(bars.table.session_N, return_index=True)
    local = pd.to_datetime(bars.table.time_N[first_S], utc=True).tz_convert(instrument.timezone)
    assert set(local.strftime("%H:%M")) == {"17:01"}


def test_btc_perpetual_trades_round_the_clock_without_gaps_and_pays_funding(data_dir: Path) -> None:
    bars, _, found = load(data_dir, "btc-perp-20211231-20220201_1m.csv.gz")
    assert bars.report.rows_kept == bars.report.rows_read == 45_031
    assert (found.gaps, found.far_apart, found.rolls) == ((), (), ())
    assert found.sessions == found.dates == 33
    assert int((bars.table.funding_N > 0.0).sum()) == 94
