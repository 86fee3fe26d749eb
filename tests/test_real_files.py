"""Real market files through ``python -m trainer``: described as their README does, trained on, cached.

The default tests cut the files short by a large holdout, so that each takes seconds; the slow ones take them whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import matplotlib.image
import pandas as pd
import pytest

from .command_line import run

BOOK = ("--set", "folds.unit=block", "--set", "folds.block_bars=16")
FILES: dict[str, tuple[str, ...]] = {
    "bars/yesbank_nse_1m_2019.parquet": (),
    "bars/es_front_1m": (),
    "bars/spy_5m_2018_2020.parquet": ("--set", "market.files.shift_seconds=60"),
    "bars/btc-perp-20211231-20220201_1m.csv.gz": (),
    "dbn": ("--set", "market.bar.symbol=ESH4", "--set", "market.bar.size=10", *BOOK),
    "book/usdm_btcusdt_20240808.gz": ("--set", "market.bar.kind=tick", "--set", "market.bar.size=5", *BOOK),
}
SHORT = {
    "bars/yesbank_nse_1m_2019.parquet": 0.98,
    "bars/es_front_1m": 0.95,
    "bars/spy_5m_2018_2020.parquet": 0.98,
    "bars/btc-perp-20211231-20220201_1m.csv.gz": 0.97,
    "dbn": 0.2,
    "book/usdm_btcusdt_20240808.gz": 0.8,
}
"""Share of each file that the default test leaves out as holdout."""

PAGES: dict[str, tuple[str, ...]] = {
    "bars/yesbank_nse_1m_2019.parquet": (
        "rows: 92017 read",
        "labelled by their start (244 session edges to 0)",
        "-10.22% at the open, -15.20% at the first close, -26.07% after 5 min, 89.8 h after 2019-04-26 10:00 UTC",
        "gaps inside sessions: 2 (5 bars missing)",
        "contract rolls: 0",
        "all of it: 91557 bars to 2019-12-31 10:00 UTC, 245 sessions on 245 UTC dates",
    ),
    "bars/es_front_1m": (
        "pair: es_front_1m_trade.parquet, es_front_1m_quote.parquet",
        "rows: 23098 read",
        "es_front_1m_quote.parquet: 23867 quotes read",
        "repaired 2650: fixed-point prices, divided by 1e+06",
        "17:00 to 16:00 America/Chicago",
        "201312 to 201403 after 2013-12-04 00:00 UTC, step of -18 points not booked",
        "970.1 days after 2013-12-20 22:15 UTC",
        "25 sessions on 19 UTC dates",
        "7 between dates far apart, 4 rolls (201312 to 201403, 201403 to 201609, 201609 to 202003, 202003 to 20201218)",
    ),
    "bars/spy_5m_2018_2020.parquet": (
        "rows: 58020 read, 58014 kept",
        "dropped 6: zero volume: nothing traded",
        "labelled by their end",
        "756 sessions on 756 UTC dates",
        "bars in a session: 42 shortest, 78 median, 78 longest",
    ),
    "bars/btc-perp-20211231-20220201_1m.csv.gz": (
        "rows: 45031 read, 45031 kept",
        "round the clock (sessions are UTC days)",
        "gaps inside sessions: 0 (0 bars missing)",
        "funding: 76 times",
        "33 sessions on 33 UTC dates, 0 gaps inside sessions",
    ),
    "dbn": (
        "pair: esh4-glbx-mdp3-20231225.trades.derived.dbn.zst, esh4-glbx-mdp3-20231225.mbp-10.derived.dbn.zst",
        "rows: 46753 read",  # 43,780 book records and 2,973 trades
        "dropped 143: crossed book state",
        "book records in the middle of an event are not states of the book",
        "test_data.mbo.dbn: schema mbo passed over",
        "span: 2023-12-25 23:00",
        "book: yes",
        "bars of uneven length",
        "ofi_1",
        "to 2023-12-25 23:59:56 UTC, 1 sessions on 1 UTC dates",
    ),
    "book/usdm_btcusdt_20240808.gz": (
        "BTCUSDT perpetual, tick 0.1",
        "book: yes",
        "bars of uneven length",
        "1 sessions on 1 UTC dates",
    ),
}


def at(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists() and not list(path.parent.glob(f"{path.name}_*")):
        pytest.skip(f"no {path}: set PACELINE_DATA to a folder that has it")
    return path


@pytest.fixture(scope="module", autouse=True)
def _one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.mark.parametrize("name", FILES)
def test_inspect_says_what_the_readme_of_the_data_says(
    data_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    picture = tmp_path / "picture.png"
    ended = run(capfd, "inspect", "short", "--data", at(data_dir, name), "--out", picture, *FILES[name])
    assert (ended.code, ended.err) == (0, "")
    for part in PAGES[name]:
        assert part in ended.out, f"{part}\n{ended.out}"
    assert "fold 1 validation: bars" in ended.out
    assert matplotlib.image.imread(picture).shape == (825, 1430, 4)


@pytest.mark.parametrize("name", FILES)
def test_a_short_trial_runs_on_it(data_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    cut = ("--set", "folds.unit=block", "--set", "folds.block_bars=64", "--set", f"folds.holdout={SHORT[name]}")
    out = tmp_path / "trial"
    ended = run(capfd, "short", "--data", at(data_dir, name), "--out", out, "--device", "cpu", *cut, *FILES[name])
    assert (ended.code, ended.err) == (0, "")
    check_trial(out)


def check_trial(out: Path) -> None:
    """Both folds have a result and a whole equity curve in the order of time."""
    result = json.loads((out / "result.json").read_text())
    assert len(result["folds"]) == 2
    for fold in result["folds"]:
        frame = pd.read_parquet(out / "equity" / f"fold_{fold['fold']}.parquet")
        assert len(frame) > 32
        assert frame["equity"].notna().all()
        assert frame["time"].is_monotonic_increasing


def test_an_alias_of_one_file_is_enough(data_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The beginning of a trade and quote pair and its trade file are the same data."""
    at(data_dir, "bars/es_front_1m")
    pages = [
        run(capfd, "inspect", "short", "--data", data_dir / "bars" / name, "--out", tmp_path / "x.png").out
        for name in ("es_front_1m", "es_front_1m_trade.parquet")
    ]
    assert pages[0] == pages[1]


def test_a_folder_of_several_instruments_asks_for_one(data_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ended = run(capfd, "inspect", "short", "--data", at(data_dir, "dbn"))
    assert ended.code == 2
    assert "market.bar.symbol to one of: ESH1" in ended.err


@pytest.mark.parametrize("kind", ["time", "tick", "volume", "dollar"])
def test_an_order_book_becomes_bars_of_any_kind(
    data_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    size = {"time": "5", "tick": "4", "volume": "10", "dollar": "5e4"}[kind]
    bars = ("--set", "market.bar.symbol=ESH4", "--set", f"market.bar.kind={kind}", "--set", f"market.bar.size={size}")
    out = tmp_path / "x.png"
    ended = run(capfd, "inspect", "short", "--data", at(data_dir, "dbn"), "--out", out, *bars, *BOOK)
    assert ended.code == 0
    assert "fold 1 validation: bars" in ended.out


def test_prepared_data_are_read_from_the_cache_the_second_time(
    data_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    command = ("inspect", "short", "--data", at(data_dir, "bars/spy_5m_2018_2020.parquet"), "--out", tmp_path / "x.png")
    first = run(capfd, *command)

    def refuse(*_: object) -> object:
        raise AssertionError("read again")

    monkeypatch.setattr("trainer.market.sources.read.read_bars", refuse)
    assert run(capfd, *command) == first
    with pytest.raises(AssertionError, match="read again"):
        run(capfd, *command, "--set", "market.files.shift_seconds=60")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_short_trial_runs_on_the_whole_file(
    data_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    out = tmp_path / "trial"
    ended = run(capfd, "short", "--data", at(data_dir, name), "--out", out, "--device", "cpu", *FILES[name])
    assert (ended.code, ended.err) == (0, "")
    check_trial(out)
    policies = ("evaluate", out, "--data", at(data_dir, name), "--device", "cpu", *FILES[name])
    ended = run(capfd, *policies)
    assert ended.code == 0
    assert ended.out.count("1 bar late") == 2
