from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trainer.market import cache
from trainer.market.bars_table import BarTable, columns
from trainer.market.loaded import LoadedBars
from trainer.market.quality import QualityReport


def bars(close: float = 100.0) -> LoadedBars:
    price_N = np.array([close, close + 0.1, 1.0 / 3.0])
    zero_N = np.zeros(3)
    table = BarTable(
        time_N=np.array([1, 2, 3], dtype=np.int64),
        open_N=price_N,
        high_N=price_N,
        low_N=price_N,
        close_N=price_N,
        volume_N=zero_N,
        spread_N=zero_N + 0.25,
        funding_N=zero_N,
        session_N=np.array([0, 0, 1]),
        contract_N=np.array([0, 1, 1]),
        contract=("A", "B"),
        buy_volume_N=zero_N + 1.0,
        extra={"flow": zero_N + 2.0},
        has_book=True,
    )
    return LoadedBars(table, QualityReport(("x.csv",), 5, 3, {"copies": 2}, {"crossed": 1}, ("a note",)))


def same(one: LoadedBars, other: LoadedBars) -> bool:
    first, second = columns(one.table), columns(other.table)
    return (
        first.keys() == second.keys()
        and all(first[name].tobytes() == second[name].tobytes() for name in first)
        and all(first[name].dtype == second[name].dtype for name in first)
        and one.report == other.report
        and (one.table.contract, one.table.has_book) == (other.table.contract, other.table.has_book)
    )


class Maker:
    """Counts how often it was asked."""

    def __init__(self, made: LoadedBars) -> None:
        self.made, self.calls = made, 0

    def __call__(self) -> LoadedBars:
        self.calls += 1
        return self.made


def test_an_entry_comes_back_bit_for_bit_and_is_made_once(tmp_path: Path) -> None:
    make = Maker(bars())
    first = cache.cached(tmp_path / "new" / "folder", "key", make)
    again = cache.cached(tmp_path / "new" / "folder", "key", make)
    assert make.calls == 1
    assert same(first, again)
    assert again.table.sell_volume_N is None


def test_nothing_but_whole_entries_is_left_behind(tmp_path: Path) -> None:
    cache.store(tmp_path, "key", bars())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key.json", "key.npz"]


@pytest.mark.parametrize(
    "damage", ["flip", "cut", "other table", "manifest", "no manifest", "no table", "other report"]
)
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: str) -> None:
    cache.store(tmp_path, "key", bars())
    table, manifest = tmp_path / "key.npz", tmp_path / "key.json"
    data = bytearray(table.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        table.write_bytes(data)
    elif damage == "cut":
        table.write_bytes(data[:-10])
    elif damage == "other table":
        cache.store(tmp_path, "other", bars(close=7.0))
        (tmp_path / "other.npz").replace(table)
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:-5])
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "no table":
        table.unlink()
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "report": {"rows": 1}}))
    assert cache.load(tmp_path, "key") is None
    make = Maker(bars())
    assert same(cache.cached(tmp_path, "key", make), bars())
    assert make.calls == 1
    assert cache.load(tmp_path, "key") is not None


def test_a_crash_before_the_manifest_leaves_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(path: Path, data: bytes) -> None:
        if path.suffix == ".json":
            raise OSError("disk full")
        path.write_bytes(data)

    monkeypatch.setattr(cache, "_replace", crash)
    with pytest.raises(OSError, match="disk full"):
        cache.store(tmp_path, "key", bars())
    assert cache.load(tmp_path, "key") is None


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    made = bars()
    objects = np.array([{"a": 1}, {"b": 2}, {"c": 3}], dtype=object)
    cache.store(tmp_path, "key", replace(made, table=replace(made.table, extra={"flow": objects})))
    assert cache.load(tmp_path, "key") is None


def test_the_fingerprint_follows_contents_and_settings_and_not_names(tmp_path: Path) -> None:
    for name, content in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).write_text(content)
    key = cache.fingerprint([tmp_path / "a"], {"label": "end", "tick": 0.25})
    assert key == cache.fingerprint([tmp_path / "b"], {"tick": 0.25, "label": "end"})
    assert key != cache.fingerprint([tmp_path / "c"], {"label": "end", "tick": 0.25})
    assert key != cache.fingerprint([tmp_path / "a"], {"label": "start", "tick": 0.25})
    assert key != cache.fingerprint([tmp_path / "a", tmp_path / "b"], {"label": "end", "tick": 0.25})
    assert cache.fingerprint([tmp_path / "a", tmp_path / "c"], {}) != cache.fingerprint(
        [tmp_path / "c", tmp_path / "a"], {}
    )
