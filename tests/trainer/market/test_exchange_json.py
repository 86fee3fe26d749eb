"""Raw exchange messages: the replayed book against hand-worked messages and the exchange's own best quotes."""

from __future__ import annotations

import bisect
import gzip
import json
from datetime import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from trainer.errors import UserError
from trainer.market.bar_config import BarConfig
from trainer.market.calendar import SECOND
from trainer.market.instrument import Instrument, load_instrument
from trainer.market.sources.exchange_json import read_exchange_json

BTC: Instrument = load_instrument("btc-perp")
NOON = 1_704_153_600 * SECOND


def snapshot(update: int, bids: dict[str, str], asks: dict[str, str]) -> dict[str, Any]:
    return {"lastUpdateId": update, "bids": list(bids.items()), "asks": list(asks.items())}


def depth(first: int, last: int, before: int, bids: dict[str, str], asks: dict[str, str]) -> dict[str, Any]:
    data = {"e": "depthUpdate", "U": first, "u": last, "pu": before, "b": list(bids.items()), "a": list(asks.items())}
    return {"stream": "x@depth", "data": data}


def trade(price: str, size: str, buyer_waited: bool, kind: str = "MARKET") -> dict[str, Any]:
    return {"stream": "x@trade", "data": {"e": "trade", "p": price, "q": size, "X": kind, "m": buyer_waited}}


def write(path: Path, messages: list[dict[str, Any]]) -> Path:
    text = "".join(
        f"{NOON + i * SECOND} {json.dumps(message, separators=(',', ':'))}\n" for i, message in enumerate(messages)
    )
    path.write_text(text)
    return path


def test_snapshot_and_differences_make_the_book(tmp_path: Path) -> None:
    messages = [
        depth(1, 4, 0, {"40000": "9"}, {}),  # older than the snapshot
        depth(5, 8, 4, {"40000": "3"}, {}),  # waits for the snapshot that it continues
        snapshot(6, {"40000": "2", "39999": "1"}, {"40001": "5", "40002": "6"}),
        trade("40001", "0.5", False),
        depth(9, 9, 8, {"40000": "0"}, {"40001": "4"}),
        trade("39999", "0.25", True),
        trade("0", "0", True, kind="INSURANCE_FUND"),
    ]
    for piece in (1, 100):
        path = write(tmp_path / "a", messages)
        table, report = read_exchange_json(path, BarConfig(kind="tick", size=1, piece_records=piece), BTC)
        assert table.close_N.tolist() == [40000.5, 40000.0]
        assert table.spread_N.tolist() == [1.0, 2.0]
        assert table.buy_volume_N is not None
        assert table.buy_volume_N.tolist() == [0.5, 0.0]
        assert table.extra["ofi_1"].tolist() == [0.0, -2.0]  # the bid queue of 3 goes, the ask queue loses 1
        assert report.dropped == {"trade outside the market (insurance fund, deleveraging)": 1}


def test_after_a_gap_there_is_no_book_until_the_next_snapshot(tmp_path: Path) -> None:
    messages = [
        snapshot(6, {"40000": "2"}, {"40001": "5"}),
        depth(6, 8, 4, {"40000": "3"}, {}),
        depth(20, 21, 19, {"40000": "4"}, {}),
        depth(22, 25, 21, {"40000": "5"}, {}),
        trade("40001", "1", False),
        snapshot(23, {"41000": "2"}, {"41001": "5"}),
        trade("41001", "1", False),
    ]
    table, report = read_exchange_json(write(tmp_path / "a", messages), BarConfig(kind="tick", size=1), BTC)
    assert table.close_N.tolist() == [40000.5, 41000.5]  # the difference of 22 to 25 adds a bid at 40,000 only
    assert table.extra["ofi_1"][1] == 0.0
    assert report.dropped == {"depth difference that does not continue the book": 1}


def test_the_real_book_agrees_with_the_exchanges_own_best_quotes(data_dir: Path) -> None:
    path = data_dir / "book" / "usdm_btcusdt_20240808.gz"
    quotes: dict[int, float] = {}
    updates: list[tuple[int, int]] = []
    volume = 0.0
    with gzip.open(path, "rt") as stream:
        for line in stream:
            time, text = line.split(" ", 1)
            data = json.loads(text).get("data", {})
            if data.get("e") == "bookTicker":
                quotes[data["u"]] = float(data["a"]) - float(data["b"])
            elif data.get("e") == "depthUpdate":
                updates.append((int(time), data["u"]))
            elif data.get("e") == "trade":
                volume += float(data["q"])
    table, report = read_exchange_json(path, BarConfig(kind="time", size=1.0), BTC)
    assert table.volume_N.sum() == pytest.approx(volume, rel=1e-12)
    assert report.dropped == {}
    known, received = sorted(quotes), [time for time, _ in updates]
    for row in range(1, len(table)):
        update = updates[bisect.bisect_left(received, int(table.time_N[row])) - 1][1]
        quote = quotes[known[bisect.bisect_right(known, update) - 1]]
        assert table.spread_N[row] == pytest.approx(quote, abs=1e-6)
    assert np.corrcoef(table.extra["ofi_1"], table.close_N - table.open_N)[0, 1] > 0.5


@pytest.mark.parametrize(("kind", "size"), [("time", 10.0), ("volume", 20.0)])
def test_what_happens_outside_the_session_hours_is_left_out(data_dir: Path, kind: str, size: float) -> None:
    path = data_dir / "book" / "usdm_btcusdt_20240808.gz"
    # the recording runs from 23:54:14 to midnight
    short = BTC.model_copy(update={"open": time(23, 56), "close": time(23, 58)})
    config = BarConfig.model_validate({"kind": kind, "size": size})
    whole, _ = read_exchange_json(path, config, BTC)
    table, report = read_exchange_json(path, config, short)
    opens, closes = (pd.Timestamp(f"2024-08-08 23:{minute}").value for minute in (56, 58))
    assert opens < table.time_N[0]
    assert table.time_N[-1] <= closes
    assert set(report.dropped) == {"trade outside the session hours", "book state outside the session hours"}
    if kind == "time":
        inside_N = (whole.time_N > opens) & (whole.time_N <= closes)
        assert table.time_N.tolist() == whole.time_N[inside_N].tolist()
        assert table.volume_N.tolist() == pytest.approx(whole.volume_N[inside_N].tolist())
        assert table.close_N.tolist() == whole.close_N[inside_N].tolist()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('1 {"data":{"e":"trade"', r"line 2: expected '<receive ns> <JSON>'"),
        ('1 {"data":{"e":"trade","p":"x","q":"1","m":true}}', r"line 2: a trade without a readable p, q or m"),
        ('1 {"data":{"e":"trade","p":"-5","q":"1","m":true}}', r"line 2: a trade of 1 at -5 cannot be"),
        ('1 {"data":{"e":"depthUpdate","b":[]}}', r"line 2: a depth message without a readable field"),
    ],
)
def test_unreadable_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "a", [snapshot(6, {"40000": "2"}, {"40001": "5"})])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UserError, match=message):
        read_exchange_json(path, BarConfig(), BTC)


def test_a_damaged_or_missing_recording_is_named(tmp_path: Path) -> None:
    plain = write(tmp_path / "a", [trade(f"{40000 + i}", "1", True) for i in range(500)])
    path = tmp_path / "b.gz"
    path.write_bytes(gzip.compress(plain.read_bytes())[:-200])
    with pytest.raises(UserError, match=r"b\.gz: line \d+: the file is damaged or cut off"):
        read_exchange_json(path, BarConfig(), BTC)
    with pytest.raises(UserError, match="nowhere"):
        read_exchange_json(tmp_path / "nowhere", BarConfig(), BTC)


def test_a_crossed_book_is_left_out_and_starts_afresh(tmp_path: Path) -> None:
    messages = [
        snapshot(6, {"40000": "2"}, {"40001": "5"}),
        depth(6, 8, 4, {"40002": "3"}, {}),
        depth(9, 9, 8, {"40002": "0", "40000": "7"}, {}),
        trade("40001", "1", False),
    ]
    table, report = read_exchange_json(write(tmp_path / "a", messages), BarConfig(kind="time", size=3600), BTC)
    assert report.dropped == {"crossed or locked book state": 1}
    assert table.extra["ofi_1"].tolist() == [0.0]
    assert table.spread_N.tolist() == [1.0]
