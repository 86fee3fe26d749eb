from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from trainer.errors import UserError
from trainer.market.calendar import HOUR, MINUTE
from trainer.market.instrument import load_instrument
from trainer.market.loaded import LoadedBars
from trainer.market.sources.config import FileConfig
from trainer.market.sources.files import bar_files, read_bars

SPY = load_instrument("spy")
ES = load_instrument("es").model_copy(update={"price_low": 50.0})
PERP = load_instrument("btc-perp")
HEADER = "time,open,high,low,close,volume"
GOOD = [
    "2024-01-02T14:30:00Z,100,101,99,100.5,10",
    "2024-01-02T14:31:00Z,100.5,101,100,100.25,20",
    "2024-01-02T14:32:00Z,100.25,100.5,100,100.0,30",
]


def write(folder: Path, *lines: str, name: str = "spy.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def load(path: Path, **settings: Any) -> LoadedBars:
    return read_bars(FileConfig(path=str(path), **settings), SPY)


def ns(stamp: str) -> int:
    return int(pd.Timestamp(stamp, tz="UTC").value)


def test_bars_labelled_by_their_start_get_their_end(tmp_path: Path) -> None:
    """TorchTrade #93: a bar is known at its end."""
    table = load(write(tmp_path, HEADER, *GOOD)).table
    assert table.time_N.tolist() == [ns("2024-01-02 14:31") + i * MINUTE for i in range(3)]
    assert table.close_N.tolist() == [100.5, 100.25, 100.0]
    assert table.volume_N.tolist() == [10.0, 20.0, 30.0]
    assert table.spread_N.tolist() == [0.01] * 3


def test_bars_labelled_by_their_end_keep_it(tmp_path: Path) -> None:
    shifted = [line.replace(":32:", ":33:").replace(":31:", ":32:").replace(":30:", ":31:") for line in GOOD]
    bars = load(write(tmp_path, HEADER, *shifted))
    assert bars.table.time_N[0] == ns("2024-01-02 14:31")
    assert any("labelled by their end" in note for note in bars.report.notes)
    assert load(write(tmp_path, HEADER, *shifted), label="start").table.time_N[0] == ns("2024-01-02 14:32")


def test_a_shift_moves_every_label(tmp_path: Path) -> None:
    table = load(write(tmp_path, HEADER, *GOOD), label="end", shift_seconds=60.0).table
    assert table.time_N[0] == ns("2024-01-02 14:31")


def test_times_without_a_zone_are_on_the_exchange_clock_and_the_report_says_so(tmp_path: Path) -> None:
    local = [line.replace("T14:", " 09:").replace("Z", "") for line in GOOD]
    bars = load(write(tmp_path, HEADER, *local))
    assert bars.table.time_N[0] == ns("2024-01-02 14:31")
    assert "spy.csv: times name no zone: taken as America/New_York" in bars.report.notes
    assert load(write(tmp_path, HEADER, *local), timezone="UTC", hours="all").table.time_N[0] == ns("2024-01-02 09:31")


def test_a_column_named_utc_is_utc(tmp_path: Path) -> None:
    plain = [line.replace("Z", "") for line in GOOD]
    bars = load(write(tmp_path, HEADER.replace("time", "timestamp_utc"), *plain))
    assert bars.table.time_N[0] == ns("2024-01-02 14:31")


@pytest.mark.parametrize("unit", [1, 1_000, 1_000_000, 1_000_000_000])
def test_numbers_since_1970_are_read_in_their_unit(tmp_path: Path, unit: int) -> None:
    start = ns("2024-01-02 14:30") // 1_000_000_000
    lines = [f"{(start + 60 * i) * unit},100,101,99,100,1" for i in range(3)]
    assert load(write(tmp_path, HEADER, *lines)).table.time_N[0] == ns("2024-01-02 14:31")


def test_local_times_keep_their_place_in_both_hours_of_the_autumn_clock_change(tmp_path: Path) -> None:
    perp = PERP.model_copy(update={"timezone": "America/New_York"})
    clock = ["00:59", "01:00", "01:30", "01:00", "01:30", "02:00"]
    lines = [f"2024-11-03 {each}:00,100,101,99,100,1" for each in clock]
    config = FileConfig(path=str(write(tmp_path, HEADER, *lines)), bar_seconds=60.0, label="end")
    time_N = read_bars(config, perp).table.time_N
    assert (np.diff(time_N) // MINUTE).tolist() == [1, 30, 30, 30, 30]


@pytest.mark.parametrize(
    ("stamps", "fault"),
    [
        (["2024-03-10 01:59:00", "2024-03-10 02:30:00"], "line 3: time '2024-03-10 02:30:00' is no time; the clock"),
        (["2024-11-03 01:30:00", "2024-11-03 03:00:00"], "line 2: time 2024-11-03 01:30:00 happens twice"),
    ],
)
def test_local_times_that_the_clock_skips_or_repeats_are_refused(tmp_path: Path, stamps: list[str], fault: str) -> None:
    path = write(tmp_path, HEADER, *(f"{each},100,101,99,100,1" for each in stamps))
    with pytest.raises(UserError, match=f"^spy.csv: {fault}.* America/New_York"):
        load(path)


def test_csv_gz_and_parquet_give_the_same_table(tmp_path: Path) -> None:
    text = "\n".join([HEADER, *GOOD]) + "\n"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    plain = write(tmp_path, HEADER, *GOOD)
    raw = pd.read_csv(plain)
    raw.assign(time=pd.to_datetime(raw["time"])).set_index("time").to_parquet(tmp_path / "a.parquet")
    for other in ("a.csv.gz", "a.parquet"):
        table = load(tmp_path / other).table
        assert table.time_N.tolist() == load(plain).table.time_N.tolist()
        assert table.close_N.tolist() == load(plain).table.close_N.tolist()


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "when,open,high,low,px,volume", *GOOD)
    assert load(path, columns={"time": "when", "close": "px"}).table.close_N[0] == 100.5


def test_volume_in_lots_becomes_units(tmp_path: Path) -> None:
    assert load(write(tmp_path, HEADER, *GOOD), volume_in_lots=True).table.volume_N.tolist() == [1000.0, 2000.0, 3000.0]


def test_bars_outside_the_hours_are_dropped_and_counted_or_kept(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, "2024-01-02T14:29:00Z,100,101,99,100,5", *GOOD)
    bars = load(path, label="start")
    assert (len(bars.table), dict(bars.report.dropped)) == (3, {"outside session hours": 1})
    assert len(load(path, label="start", hours="all").table) == 4


def test_quotes_in_the_same_file_give_mid_and_spread(tmp_path: Path) -> None:
    lines = [
        f"{line},{bid},{ask}"
        for line, bid, ask in zip(GOOD, (100.9, 100.2, 100.0), (101.3, 100.24, 100.0), strict=True)
    ]
    table = load(write(tmp_path, f"{HEADER},bid,ask", *lines)).table
    assert table.close_N.tolist() == pytest.approx([101.1, 100.22, 100.0])
    assert table.spread_N.tolist() == pytest.approx([0.4, 0.04, 0.01])
    assert table.high_N[0] == pytest.approx(101.1)  # widened to hold the mid


def test_a_pair_is_joined_by_time_and_contract_and_never_filled(tmp_path: Path) -> None:
    lines = [f"{line},{name}" for line, name in zip(GOOD, "AAB", strict=True)]
    trades = write(tmp_path, f"{HEADER},contract", *lines, name="es_trade.csv")
    write(
        tmp_path,
        "time,contract,bo,bc,ao,ac",
        "2024-01-02T14:29:00Z,A,90,90,91,91",
        "2024-01-02T14:31:00Z,A,100.25,100.5,100.75,101",
        "2024-01-02T14:32:00Z,A,100,100.25,100.25,100.5",
        name="es_quote.csv",
    )
    bars = read_bars(FileConfig(path=str(trades), label="start"), ES)
    assert bars.table.close_N.tolist() == [100.5, 100.75, 100.0]
    assert bars.table.open_N.tolist() == [100.0, 100.5, 100.25]
    assert bars.table.spread_N.tolist() == [0.25, 0.5, 0.25]
    assert bars.report.repaired == {"no quote at the close: last trade and default spread": 2}
    for spelling in (tmp_path / "es", tmp_path):
        assert bar_files(FileConfig(path=str(spelling))) == (trades, tmp_path / "es_quote.csv")


def test_contracts_are_kept_as_numbers_and_names(tmp_path: Path) -> None:
    lines = [f"{line},{name}" for line, name in zip(GOOD, (202403, 202403, 202406), strict=True)]
    table = read_bars(FileConfig(path=str(write(tmp_path, f"{HEADER},contract", *lines))), ES).table
    assert table.contract == ("202403", "202406")
    assert table.contract_N.tolist() == [0, 0, 1]


def test_of_two_contracts_at_once_only_the_front_one_is_kept(tmp_path: Path) -> None:
    lines = [f"{line},{name}" for line in GOOD for name in "AB"]
    path = write(tmp_path, f"{HEADER},contract", *lines)
    bars = read_bars(FileConfig(path=str(path)), ES)
    assert bars.table.contract == ("A",)
    assert bars.report.dropped == {"not the front contract": 3}
    with pytest.raises(UserError, match=r"line 3: a second contract at the same time"):
        read_bars(FileConfig(path=str(path)), ES.model_copy(update={"roll": "column"}))
    with pytest.raises(UserError, match=r"line 3: a second contract, B, but SPY has no rolls"):
        load(path)


def test_sides_and_funding_are_taken_where_the_file_has_them(tmp_path: Path) -> None:
    lines = [f"{line},{i + 1},{i + 2},0.0001" for i, line in enumerate(GOOD)]
    path = write(tmp_path, f"{HEADER},buy_volume,sell_volume,funding_rate", *lines)
    table = read_bars(FileConfig(path=str(path)), PERP).table
    assert table.buy_volume_N is not None
    assert table.buy_volume_N.tolist() == [1.0, 2.0, 3.0]
    assert table.funding_N.tolist() == [1e-4] * 3


def test_copies_and_disorder_are_repaired_and_reported(tmp_path: Path) -> None:
    bars = load(write(tmp_path, HEADER, GOOD[1], GOOD[0], GOOD[2], GOOD[0]))
    assert bars.table.close_N.tolist() == [100.5, 100.25, 100.0]
    assert bars.report.dropped == {"exact copies of an earlier row": 1}
    assert bars.report.repaired == {"rows out of order, sorted by time": 1}


def test_later_rows_change_nothing_that_came_before(tmp_path: Path) -> None:
    more = [f"2024-01-02T{15 + i // 60:02d}:{i % 60:02d}:00Z,100,130,80,{90 + i % 30},7" for i in range(100)]
    short = load(write(tmp_path, HEADER, *GOOD, *more[:50])).table
    long = load(write(tmp_path, HEADER, *GOOD, *more)).table.rows(slice(0, len(short)))
    assert short.close_N.tolist() == long.close_N.tolist()
    assert short.time_N.tolist() == long.time_N.tolist()


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([], "the file is empty"),
        ([HEADER], "no rows"),
        (GOOD, "line 1 has data instead of a header"),
        (
            ["time,open,high,low,volume", *(line.rpartition(",")[0] for line in GOOD)],
            "no close column .* among time, open",
        ),
        (["a,b,c,d,e,f", *GOOD], "no time column"),
        (["time,ts,open,high,low,close", *GOOD], "time and ts could both be time"),
        ([HEADER, *GOOD, GOOD[0] + ",9,9"], "not a table: .* line 5"),
        ([HEADER, GOOD[0], GOOD[1].replace("100.25", "abc")], "line 3: close is 'abc'; it must be a number"),
        ([HEADER, GOOD[0], GOOD[1].replace("100.25", "")], "line 3: close is missing or not finite"),
        ([HEADER, GOOD[0], GOOD[1].replace("100.25", "nan")], "line 3: close is missing or not finite"),
        ([HEADER, GOOD[0], GOOD[1].replace("100.25", "inf")], "line 3: close is missing or not finite"),
        ([HEADER, GOOD[0], GOOD[1].replace("100.25", "0")], "line 3: close is 0.0; prices must be positive"),
        ([HEADER, GOOD[0], GOOD[1].replace("100.25", "150")], "line 3: high 101.0 is below open 100.5 or close 150.0"),
        ([HEADER, GOOD[0], GOOD[1].replace("2024-01-02T14:31:00Z", "soon")], "line 3: time 'soon' is no time"),
        ([HEADER, GOOD[0], GOOD[1].replace("Z", "")], "line 3: .* some times name a zone and some do not"),
        (
            [HEADER, GOOD[0], GOOD[0].replace("100.5", "100.75")],
            "line 2 and line 3 are different bars of the same time",
        ),
        ([HEADER, GOOD[0], ",,,,,", GOOD[1]], "line 3: time nan is no time"),
        ([HEADER, GOOD[0], "", GOOD[1]], "line 3: time nan is no time"),
        ([HEADER, "12,100,101,99,100,1"], "line 2: time 12 is no time"),
        (
            [HEADER, GOOD[0], GOOD[1].replace("100.25", "3.2").replace(",100,", ",3,")],
            "line 3: prices .* are out of range",
        ),
        ([HEADER, GOOD[0], GOOD[1].replace("101", "190")], "line 3: high 190.0 is more than 50% away"),
        ([HEADER, GOOD[0]], "bar_seconds"),
        ([f"{HEADER},contract", GOOD[0] + ",A", GOOD[1] + ","], "line 3: no contract"),
    ],
)
def test_bad_files_give_one_line_with_file_and_row(tmp_path: Path, lines: list[str], fault: str) -> None:
    path = write(tmp_path, *lines) if lines else tmp_path / "spy.csv"
    if not lines:
        path.touch()
    with pytest.raises(UserError, match=fault) as raised:
        load(path)
    assert "\n" not in str(raised.value)


def test_files_that_are_not_what_their_name_says_are_refused(tmp_path: Path) -> None:
    for name, content in (("a.parquet", b"time,open"), ("a.csv.gz", b"time,open"), ("a.csv", b"\xff\xfe\x00\x01")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"^{name}: not ") as raised:
            load(path)
        assert "\n" not in str(raised.value)
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress("\n".join([HEADER, *GOOD * 50]).encode())[:-20])
    with pytest.raises(UserError, match=r"cut\.csv\.gz: not readable"):
        load(cut)


def test_paths_that_do_not_say_what_to_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.csv: no such file or folder"):
        load(tmp_path / "absent.csv")
    with pytest.raises(UserError, match=r"the folder has no \.parquet"):
        load(tmp_path)
    write(tmp_path, HEADER, *GOOD, name="a.csv")
    write(tmp_path, HEADER, *GOOD, name="b.csv")
    with pytest.raises(UserError, match=r"several files of bars \(a\.csv, b\.csv\)"):
        load(tmp_path)
    with pytest.raises(UserError, match=r"notes\.txt: not a file of bars"):
        load(write(tmp_path, "x", name="notes.txt"))
    with pytest.raises(UserError, match=r"q\.csv: no such quote file"):
        load(tmp_path / "a.csv", quotes=str(tmp_path / "q.csv"))
    with pytest.raises(UserError, match="give the `_trade` file"):
        load(write(tmp_path, HEADER, name="a_quote.csv"))
    with pytest.raises(UserError, match="no data path"):
        read_bars(FileConfig(), SPY)


def test_quotes_without_a_path_are_refused_by_the_config() -> None:
    with pytest.raises(ValidationError, match="`quotes` needs `path`"):
        FileConfig(quotes="q.csv")


def test_a_file_shifted_by_an_hour_in_summer_is_refused(tmp_path: Path) -> None:
    opens = [pd.Timestamp(f"{day.date()} 14:30", tz="UTC") for day in pd.bdate_range("2024-02-01", "2024-05-01")]
    lines = [f"{o + pd.Timedelta(minutes=30 * i)},100,101,99,100,1" for o in opens for i in range(13)]
    with pytest.raises(UserError, match="sessions begin and end 1 h late on the clock of America/New_York"):
        load(write(tmp_path, HEADER, *lines))
    assert HOUR == 60 * MINUTE
