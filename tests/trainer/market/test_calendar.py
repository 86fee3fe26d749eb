from __future__ import annotations

from dataclasses import replace
from datetime import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.market import calendar
from trainer.market.bars_table import BarTable, Ints
from trainer.market.calendar import HOUR, MINUTE
from trainer.market.instrument import Instrument, load_instrument

NYSE = load_instrument("spy")
CME = load_instrument("es")
PERP = load_instrument("btc-perp")


def at(*stamps: str, zone: str = "UTC") -> Ints:
    return pd.DatetimeIndex([pd.Timestamp(each, tz=zone) for each in stamps]).as_unit("ns").asi8.astype(np.int64)


def days(time_N: Ints, instrument: Instrument) -> list[str]:
    return [str(day) for day in calendar.session_days(time_N, instrument).astype("datetime64[D]")]


def table(time_N: Ints, session_N: list[int], contract_N: list[int], close_N: list[float]) -> BarTable:
    price_N = np.array(close_N)
    zero_N = np.zeros(len(price_N))
    return BarTable(
        time_N=time_N,
        open_N=price_N,
        high_N=price_N,
        low_N=price_N,
        close_N=price_N,
        volume_N=zero_N,
        spread_N=zero_N,
        funding_N=zero_N,
        session_N=np.array(session_N),
        contract_N=np.array(contract_N),
        contract=("A", "B"),
    )


def test_an_overnight_session_belongs_to_the_day_on_which_it_closes() -> None:
    chicago = at("2024-01-01 17:01", "2024-01-02 00:00", "2024-01-02 16:00", "2024-01-02 17:01", zone="America/Chicago")
    assert days(chicago, CME) == ["2024-01-02", "2024-01-02", "2024-01-02", "2024-01-03"]


def test_early_and_late_prints_belong_to_the_day_they_surround() -> None:
    new_york = at(
        "2024-01-02 04:01", "2024-01-02 16:00", "2024-01-02 20:00", "2024-01-03 04:01", zone="America/New_York"
    )
    assert days(new_york, NYSE) == ["2024-01-02", "2024-01-02", "2024-01-02", "2024-01-03"]


def test_a_bar_that_ends_at_midnight_closes_its_utc_day() -> None:
    assert days(at("2024-01-01 23:59", "2024-01-02 00:00", "2024-01-02 00:01"), PERP) == [
        "2024-01-01",
        "2024-01-01",
        "2024-01-02",
    ]


@pytest.mark.parametrize("date", ["2024-03-08", "2024-03-11", "2024-11-01", "2024-11-04"])
def test_hours_follow_the_exchange_clock_across_daylight_saving(date: str) -> None:
    edges = at(f"{date} 09:30", f"{date} 09:31", f"{date} 16:00", f"{date} 16:01", zone="America/New_York")
    assert calendar.within_hours(edges, NYSE).tolist() == [False, True, True, False]


def test_hours_are_those_that_held_at_the_time() -> None:
    # ES closed at 15:15 and reopened at 15:30 for the next day's session until 2012-11-16, closed at 16:15 until
    # 2015-09-18, and at 16:00 since; 2012-11-19 is a Monday that opened on Sunday evening.
    def inside(*stamps: str) -> list[bool]:
        return calendar.within_hours(at(*stamps, zone="America/Chicago"), CME).tolist()

    assert inside("2012-11-15 15:15", "2012-11-15 15:16", "2012-11-15 15:31") == [True, False, True]
    assert inside("2012-11-19 16:15", "2012-11-19 16:16", "2015-09-18 16:15") == [True, False, True]
    assert inside("2015-09-21 16:00", "2015-09-21 16:01", "2015-09-20 17:01") == [True, False, True]
    evenings = at(
        "2012-11-15 15:15", "2012-11-15 15:31", "2012-11-18 17:01", "2012-11-19 15:31", "2012-11-19 16:15",
        zone="America/Chicago",
    )  # fmt: skip
    assert days(evenings, CME) == ["2012-11-15", "2012-11-16", "2012-11-19", "2012-11-19", "2012-11-19"]
    _, last_S = calendar.edge_offsets(at("2013-10-08 16:15", "2016-08-17 16:00", zone="America/Chicago"), CME)
    assert last_S.tolist() == [0, 0]


def test_an_overnight_session_across_the_clock_change_is_one_session() -> None:
    # Chicago springs forward at 2 h on Sunday 2024-03-10; the session opens that evening at 17 h, which is 22 h UTC.
    sunday = at("2024-03-10 22:01")[0] + np.arange(0, 23 * 60, 59) * MINUTE
    time_N = np.concatenate([at("2024-03-08 22:00"), sunday, at("2024-03-11 22:01")])
    assert calendar.session_numbers(time_N, CME).tolist() == [0, *[1] * len(sunday), 2]


def test_a_silence_longer_than_the_halt_limit_starts_a_new_session() -> None:
    start = at("2024-01-02 12:00")[0]
    time_N = start + np.array([0, 180, 361]) * MINUTE
    assert calendar.session_numbers(time_N, PERP).tolist() == [0, 0, 1]


def test_special_sessions_outside_the_hours_are_kept_whole() -> None:
    nse = load_instrument("nse-stock")
    india = at("2019-10-25 15:30", "2019-10-25 15:41", "2019-10-27 18:16", "2019-10-27 19:15", zone="Asia/Kolkata")
    assert calendar.regular_bars(india, nse).tolist() == [True, False, True, True]


def test_bars_left_counts_down_to_zero_in_each_session() -> None:
    assert calendar.bars_left(np.array([0, 0, 0, 1, 3, 3])).tolist() == [2, 1, 0, 0, 1, 0]


def test_flat_at_session_ends_rolls_long_silences_and_the_end_of_data() -> None:
    start = at("2024-01-02 12:00")[0]
    time_N = start + np.array([0, 1, 2, 25, 26, 27, 500, 501]) * HOUR
    bars = table(time_N, [0, 0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1, 1, 1], [1.0] * 8)
    daily = calendar.flat_bars(bars, allow_overnight=False, max_gap_hours=120.0)
    nightly = calendar.flat_bars(bars, allow_overnight=True, max_gap_hours=120.0)
    assert daily.tolist() == [False, False, True, True, False, True, False, True]
    assert nightly.tolist() == [False, False, False, True, False, True, False, True]


def test_a_roll_takes_effect_only_after_the_volume_has_moved() -> None:
    """Lean #7868: the next contract's prices must not appear before the roll."""
    session_N = np.repeat(np.arange(5), 2)
    contract_N = np.tile([0, 1], 5)
    volume_N = np.array([9.0, 1.0, 4.0, 6.0, 3.0, 7.0, 8.0, 2.0, 8.0, 2.0])  # B leads session 1, A session 3 again
    keep_N = calendar.front_contract(session_N, contract_N, volume_N)
    assert contract_N[keep_N].tolist() == [0, 0, 1, 1, 1]  # and never back to A


def test_the_front_contract_of_a_session_does_not_depend_on_its_own_volume() -> None:
    session_N = np.repeat(np.arange(3), 2)
    contract_N = np.tile([0, 1], 3)
    volume_N = np.array([9.0, 1.0, 4.0, 6.0, 5.0, 5.0])
    other_N = volume_N.copy()
    other_N[4:] = [0.0, 100.0]
    same = calendar.front_contract(session_N, contract_N, volume_N)
    assert same.tolist() == calendar.front_contract(session_N, contract_N, other_N).tolist()


def test_a_roll_gap_is_reported_as_a_roll_and_not_as_a_night() -> None:
    """mlfinlab #72: the step between two contracts is no return."""
    start = at("2024-01-02 12:00")[0]
    bars = table(start + np.array([0, 1, 25, 26]) * HOUR, [0, 0, 1, 1], [0, 0, 1, 1], [10.0, 10.0, 12.0, 12.0])
    found = calendar.survey(bars, PERP)
    assert found.nights == ()
    assert found.rolls == (calendar.Roll(1, "A", "B", 2.0),)


def test_gaps_inside_a_session_have_their_length_and_nights_their_move() -> None:
    start = at("2024-01-02 12:00")[0]
    bars = table(start + np.array([0, 1, 2, 5, 1440]) * MINUTE, [0, 0, 0, 0, 1], [0] * 5, [10.0, 10.0, 10.0, 10.0, 9.0])
    found = calendar.survey(bars, PERP)
    assert found.gaps == (calendar.Gap(2, 180.0),)
    assert [night.bar for night in found.nights] == [3]
    assert found.nights[0].open_move == pytest.approx(-0.1)
    assert found.bars_per_session == (1, 2, 4)


def test_dates_far_apart_are_found_with_and_without_a_roll() -> None:
    start = at("2024-01-02 12:00")[0]
    bars = table(start + np.array([0, 1, 200, 400]) * HOUR, [0, 0, 1, 2], [0, 0, 0, 1], [10.0] * 4)
    assert [gap.bar for gap in calendar.survey(bars, PERP).far_apart] == [1, 2]


def test_funding_is_due_at_each_multiple_of_the_interval_and_not_before_the_first_bar() -> None:
    start = at("2024-01-01 07:59")[0]
    funding_N = calendar.funding_column(start + np.array([0, 1, 2, 481, 482, 1442]) * MINUTE, PERP)
    assert funding_N.tolist() == pytest.approx([0.0, 1e-4, 0.0, 1e-4, 0.0, 2e-4])
    assert not calendar.funding_column(at("2024-01-01 08:00", "2024-01-01 16:00"), NYSE).any()


def shifted_year(shift_hours: int) -> Ints:
    """30-minute bars of 2024, labelled at the end, whose summer sessions are off by some hours."""
    bars: list[Any] = []
    for day in pd.bdate_range("2024-01-01", "2024-12-31"):
        opens = pd.Timestamp(f"{day.date()} 09:30", tz="America/New_York")
        shift = shift_hours if opens.dst() else 0
        bars += [opens + pd.Timedelta(minutes=30 * i, hours=shift) for i in range(1, 14)]
    return pd.DatetimeIndex(bars).tz_convert("UTC").as_unit("ns").asi8.astype(np.int64)


@pytest.mark.parametrize(("hours", "word"), [(1, "late"), (-1, "early")])
def test_a_fixed_shift_across_daylight_saving_is_refused(hours: int, word: str) -> None:
    """TorchTrade #320: an hour leaks when local times are shifted by a constant."""
    with pytest.raises(UserError, match=rf"x\.csv: sessions begin and end 1 h {word} .* America/New_York .*2024-03-11"):
        calendar.check_clock(shifted_year(hours), 30 * MINUTE, NYSE, "x.csv")


def test_times_on_the_exchange_clock_pass_the_daylight_saving_check() -> None:
    calendar.check_clock(shifted_year(0), 30 * MINUTE, NYSE, "x.csv")
    calendar.check_clock(shifted_year(1), 30 * MINUTE, PERP, "x.csv")


@given(opens=st.integers(0, 23), length=st.integers(1, 22), offset=st.integers(1, 22 * 60), date=st.integers(0, 2000))
def test_every_bar_within_hours_is_in_the_session_that_closes_next(
    opens: int, length: int, offset: int, date: int
) -> None:
    closes = (opens + length) % 24
    hours = NYSE.model_copy(update={"open": time(opens), "close": time(closes), "timezone": "UTC"})
    inside = 1 + (offset - 1) % (length * 60)  # minutes after the open
    time_N = np.array([date * 24 * HOUR + opens * HOUR + inside * MINUTE])
    close_day = date + (1 if opens + length >= 24 else 0)
    assert calendar.within_hours(time_N, hours)[0]
    assert calendar.session_days(time_N, hours)[0] == close_day


def test_edge_offsets_are_zero_and_negative_before_the_close() -> None:
    first_S, last_S = calendar.edge_offsets(at("2024-01-02 09:31", "2024-01-02 15:55", zone="America/New_York"), NYSE)
    assert (first_S.tolist(), last_S.tolist()) == ([MINUTE], [-5 * MINUTE])


def test_the_bar_length_is_the_commonest_step() -> None:
    assert calendar.bar_length(np.array([0, 60, 120, 300, 360])) == 60
    with pytest.raises(UserError, match="bar_seconds"):
        calendar.bar_length(np.array([0]))


def test_late_opens_and_half_days_are_counted() -> None:
    minutes = np.arange(1, 391)
    full = at("2024-01-02 09:30", zone="America/New_York")[0] + minutes * MINUTE
    late = at("2024-01-03 10:30", zone="America/New_York")[0] + minutes[:330] * MINUTE
    half = at("2024-01-04 09:30", zone="America/New_York")[0] + minutes[:210] * MINUTE
    time_N = np.concatenate([full, late, half])
    session_N = np.repeat([0, 1, 2], [390, 330, 210]).tolist()
    bars = table(time_N, session_N, [0] * len(time_N), [1.0] * len(time_N))
    found = calendar.survey(replace(bars), NYSE)
    assert (found.late_opens, found.early_closes) == (1, 1)
