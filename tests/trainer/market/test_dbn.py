"""DBN files: versions, compression, instruments, damage, and the real book and trades of ESH4."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import databento_dbn
import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.market.bar_config import BarConfig
from trainer.market.bars_table import BarTable, columns
from trainer.market.calendar import DAY, HOUR, SECOND
from trainer.market.instrument import Instrument, load_instrument
from trainer.market.microstructure import MICROSTRUCTURE_NAMES
from trainer.market.sources.dbn import read_dbn
from trainer.market.sources.dbn_file import SCHEMAS, open_dbn

dbn: Any = databento_dbn
pa: Any = pyarrow
TUESDAY = 19_724 * DAY  # 2024-01-02 00:00 UTC
NOON = TUESDAY + 18 * HOUR  # in Chicago
UNDEFINED = 2**63 - 1
ES: Instrument = load_instrument("es")
Row = dict[str, Any]


def write_dbn(
    path: Path, schema: str, rows: list[Row], symbols: dict[str, int] | None = None, day: date = date(2024, 1, 2)
) -> Path:
    """A DBN file of ``rows``, fields of the record by name; ``bid``, ``ask`` are lists of (price in points, size)."""
    layout = SCHEMAS[schema]
    dtype = layout.dtype(send_time=False)
    records = np.zeros(len(rows), dtype)
    records["length"], records["rtype"], records["instrument_id"] = dtype.itemsize // 4, layout.rtype, 7
    records["flags"], records["side"], records["action"] = 128, b"N", b"A"
    for record, row in zip(records, rows, strict=True):
        if layout.levels:
            record["levels"]["bid_px"] = record["levels"]["ask_px"] = UNDEFINED
        for name, value in row.items():
            if name in ("bid", "ask"):
                for level, (price, size) in enumerate(value):
                    record["levels"][level][f"{name}_px"] = round(price * 1e9)
                    record["levels"][level][f"{name}_sz"] = size
            else:
                record[name] = value
    metadata = dbn.Metadata(
        dataset="GLBX.MDP3",
        start=TUESDAY,
        end=TUESDAY + DAY,
        stype_in=dbn.SType.RAW_SYMBOL,
        stype_out=dbn.SType.INSTRUMENT_ID,
        schema=dbn.Schema.from_str(schema),
        symbols=list(symbols or {"ESH4": 7}),
        partial=[],
        not_found=[],
        mappings=[
            SimpleNamespace(
                raw_symbol=name,
                intervals=[SimpleNamespace(start_date=day, end_date=day + timedelta(days=1), symbol=str(number))],
            )
            for name, number in (symbols or {"ESH4": 7}).items()
        ],
    )
    path.write_bytes(metadata.encode() + records.tobytes())
    return path


def trade(at: int, price: float, size: int = 1, side: bytes = b"B", contract: int = 7) -> Row:
    return {
        "ts_event": NOON + at * SECOND,
        "ts_recv": NOON + at * SECOND + 1000,
        "price": round(price * 1e9),
        "size": size,
        "action": b"T",
        "side": side,
        "instrument_id": contract,
    }


def state(at: int, bid: float, ask: float, flags: int = 128, size: int = 5) -> Row:
    return {"ts_event": NOON + at * SECOND, "flags": flags, "bid": [(bid, size)], "ask": [(ask, size)]}


@pytest.fixture(scope="session")
def esh4(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real MBP-10 and trades of ESH4."""
    folder = tmp_path_factory.mktemp("esh4")
    for file in (data_dir / "dbn").glob("esh4-*"):
        (folder / file.name).symlink_to(file)
    return folder


def assert_same(left: BarTable, right: BarTable) -> None:
    assert left.contract == right.contract
    for name, column in columns(left).items():
        np.testing.assert_array_equal(columns(right)[name], column, err_msg=name)


def test_records_are_what_the_reference_decoder_reads(data_dir: Path) -> None:
    """Every version and compression of every usable schema, field by field."""
    seen = set()
    for path in sorted((data_dir / "dbn").glob("test_data.*")):
        file = open_dbn(path)
        if file.schema not in SCHEMAS:
            continue
        seen.add((file.schema, file.version))
        compression = dbn.Compression.ZSTD if path.suffix == ".zst" else dbn.Compression.NONE
        expected = dbn.DBNDecoder(compression=compression).write_and_decode(path.read_bytes())[1:]
        records = np.concatenate(list(file.records(1)))
        assert len(records) == len(expected) == 2
        for record, message in zip(records, expected, strict=True):
            reference: Any = message
            for name in ("instrument_id", "ts_event", "price", "size", "depth", "ts_recv", "sequence", "ts_in_delta"):
                assert record[name] == getattr(reference, name)
            assert record["flags"] == int(reference.flags)
            assert record["side"].decode() == str(reference.side)
            for level, wanted in zip(
                record["levels"] if SCHEMAS[file.schema].levels else [], getattr(reference, "levels", []), strict=True
            ):
                for name in ("bid_px", "ask_px", "bid_sz", "ask_sz", "bid_ct", "ask_ct"):
                    assert level[name] == getattr(wanted, name)
    assert seen == {(schema, version) for schema in SCHEMAS for version in (1, 2, 3)}


@pytest.mark.parametrize("name", ["trades.dbn", "trades.v1.dbn.zst", "trades.v3.dbn.zst", "tbbo.dbn"])
def test_every_version_and_compression_gives_the_same_bars(data_dir: Path, name: str) -> None:
    table, _ = read_dbn(data_dir / "dbn" / f"test_data.{name}", BarConfig(kind="tick", size=1), ES)
    assert table.contract == ("ESH1",)
    assert table.volume_N.tolist() == [5.0, 21.0]
    assert table.has_book is False
    assert all((table.extra[name] == 0.0).all() for name in (*MICROSTRUCTURE_NAMES, "has_book"))
    assert (table.spread_N == ES.default_spread).all()


@pytest.mark.parametrize(("kind", "size"), [("time", 60.0), ("tick", 30.0), ("volume", 100.0), ("dollar", 500_000.0)])
def test_totals_of_the_real_trades_are_conserved(esh4: Path, kind: str, size: float) -> None:
    file = next(esh4.glob("*trades*"))
    raw = np.concatenate(list(open_dbn(file).records(10_000)))
    table, report = read_dbn(esh4, BarConfig.model_validate({"kind": kind, "size": size}), ES)
    assert table.volume_N.sum() == raw["size"].sum()
    bought = raw["size"][raw["side"] == b"B"].sum()
    unsided = raw["size"][raw["side"] == b"N"].sum()
    assert table.buy_volume_N is not None
    assert table.sell_volume_N is not None
    assert bought <= table.buy_volume_N.sum() <= bought + unsided
    np.testing.assert_allclose(table.buy_volume_N + table.sell_volume_N, table.volume_N)
    assert table.low_N.min() <= raw["price"].min() / 1e9
    assert table.high_N.max() >= raw["price"].max() / 1e9
    assert report.rows_read == 43_780 + 2_973
    assert len(np.unique(table.session_N)) == 1
    if kind == "volume":
        assert (table.volume_N[:-1] == size).all()


def test_the_crossed_auction_of_the_reopen_is_left_out_and_reported(esh4: Path) -> None:
    table, report = read_dbn(esh4, BarConfig(size=100), ES)
    assert report.dropped["crossed book state"] == 143
    assert any("6666 book records in the middle of an event" in note for note in report.notes)
    assert (table.spread_N >= ES.tick).all()
    assert (table.spread_N <= 8 * ES.tick).all()
    assert table.extra["has_book"].all()
    assert ((table.extra["vpin"] >= 0) & (table.extra["vpin"] <= 1)).all()


def test_order_flow_of_the_real_book_moves_its_mid(esh4: Path) -> None:
    """Cont, Kukanov and Stoikov report a linear relation that explains most of the variance."""
    table, _ = read_dbn(esh4, BarConfig(kind="time", size=10.0), ES)
    move_N = np.diff(table.close_N)
    assert np.corrcoef(table.extra["ofi_1"][1:], move_N)[0, 1] > 0.6


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(piece=st.integers(150, 60_000), kind=st.sampled_from([("volume", 50.0), ("time", 20.0), ("dollar", 3e5)]))
def test_pieces_of_any_size_give_the_same_bars(esh4: Path, piece: int, kind: tuple[str, float]) -> None:
    config = {"kind": kind[0], "size": kind[1]}
    whole, whole_report = read_dbn(esh4, BarConfig.model_validate(config), ES)
    pieces, report = read_dbn(esh4, BarConfig.model_validate(config | {"piece_records": piece}), ES)
    assert_same(whole, pieces)
    assert report == whole_report


def test_trades_inside_the_book_file_serve_where_there_is_no_trades_file(esh4: Path) -> None:
    config = BarConfig(size=100)
    both, _ = read_dbn(esh4, config, ES)
    alone, _ = read_dbn(next(esh4.glob("*mbp-10*")), config, ES)
    assert_same(both, alone)


def test_time_bars_agree_with_the_vendors_own(data_dir: Path) -> None:
    """The file of one-minute bars was made by Databento from the same trades."""
    folder = data_dir / "dbn"
    path = next(folder.glob("futures_ohlcv-1m*"))
    vendor: list[Any] = dbn.DBNDecoder(compression=dbn.Compression.ZSTD).write_and_decode(path.read_bytes())[1:]
    table, _ = read_dbn(next(folder.glob("futures_trades*")), BarConfig(kind="time", size=60.0), ES)
    expected = {bar.ts_event + 60 * SECOND: bar for bar in vendor if bar.instrument_id == 118}
    assert len(table) >= 3
    for row in range(len(table)):
        bar = expected[int(table.time_N[row])]
        assert table.volume_N[row] == bar.volume
        got = (table.open_N[row], table.high_N[row], table.low_N[row], table.close_N[row])
        assert got == tuple(price / 1e9 for price in (bar.open, bar.high, bar.low, bar.close))


def test_records_in_the_middle_of_an_event_are_not_states(tmp_path: Path) -> None:
    states = [
        state(0, 100, 101),
        state(1, 100, 101, flags=0, size=900),
        state(1, 101, 101, flags=0),
        state(1, 100, 101),
    ]
    write_dbn(tmp_path / "a.dbn", "mbp-10", [*states, state(8, 100, 101)])
    write_dbn(tmp_path / "b.dbn", "trades", [trade(1, 101), trade(5, 101)])
    table, report = read_dbn(tmp_path, BarConfig(kind="tick", size=2), low_priced())
    assert table.extra["ofi_1"].tolist() == [0.0]
    assert table.spread_N.tolist() == [1.0]
    assert report.dropped == {}
    assert report.notes == ("2 book records in the middle of an event are not states of the book",)


def low_priced() -> Instrument:
    return ES.model_copy(update={"price_low": 1.0})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (state(2, 105, 101), "crossed book state"),
        (state(2, 101, 101), "locked book state"),
        (state(2, 101, 102, flags=128 | 4), "book state marked as doubtful"),
        ({"ts_event": NOON + 2 * SECOND, "bid": [(100, 5)]}, "one-sided book state"),
    ],
)
def test_no_change_is_computed_across_a_state_left_out(tmp_path: Path, bad: Row, reason: str) -> None:
    write_dbn(tmp_path / "a.dbn", "mbp-1", [state(0, 100, 101), state(1, 100, 101, size=6), bad, state(3, 90, 91)])
    write_dbn(tmp_path / "b.dbn", "trades", [trade(1, 101), trade(4, 90.5)])
    for piece in (1, 100):
        table, report = read_dbn(tmp_path, BarConfig(kind="tick", size=2, piece_records=piece), low_priced())
        assert table.extra["ofi_1"].tolist() == [0.0]  # one more unit on both sides; then a fresh start
        assert table.close_N.tolist() == [90.5]
        assert report.dropped == {reason: 1}


def test_a_cleared_book_starts_afresh(tmp_path: Path) -> None:
    clear = {"ts_event": NOON + 2 * SECOND, "action": b"R", "flags": 0}
    write_dbn(tmp_path / "a.dbn", "mbp-1", [state(1, 100, 101), clear, state(3, 90, 91)])
    write_dbn(tmp_path / "b.dbn", "trades", [trade(1, 101), trade(4, 90.5)])
    table, _ = read_dbn(tmp_path, BarConfig(kind="tick", size=2), low_priced())
    assert table.extra["ofi_1"].tolist() == [0.0]


def test_two_instruments_in_one_file_are_told_apart(tmp_path: Path) -> None:
    rows = [trade(1, 4800, 3), trade(2, 17_000, 5, contract=8), trade(3, 4801, 4)]
    path = write_dbn(tmp_path / "two.dbn", "trades", rows, {"ESH4": 7, "NQH4": 8})
    with pytest.raises(UserError, match=r"ESH4 \(id 7\), NQH4 \(id 8\)"):
        read_dbn(path, BarConfig(), ES)
    with pytest.raises(UserError, match=r"no instrument 'CLH4'; there are: ESH4"):
        read_dbn(path, BarConfig(symbol="CLH4"), ES)
    for symbol in ("ESH4", "7"):
        table, report = read_dbn(path, BarConfig(symbol=symbol), ES)
        assert (table.volume_N.sum(), table.contract) == (7.0, ("ESH4",))
        assert report.dropped == {"record of another instrument": 1}
    assert read_dbn(path, BarConfig(symbol="NQH4"), ES)[0].volume_N.tolist() == [5.0]


def test_a_symbol_that_stands_for_two_contracts_rolls_between_them(tmp_path: Path) -> None:
    tomorrow = date(2024, 1, 3)
    later = trade(6, 4850, 2, contract=9) | {"ts_event": NOON + DAY}
    write_dbn(tmp_path / "a.dbn", "trades", [trade(1, 4800, 3)], {"ES.c.0": 7})
    write_dbn(tmp_path / "b.dbn", "trades", [later], {"ES.c.0": 9}, tomorrow)
    table, _ = read_dbn(tmp_path, BarConfig(), ES)
    assert table.contract == ("ES.c.0:7", "ES.c.0:9")
    assert table.contract_N.tolist() == [0, 1]
    assert table.session_N.tolist() == [0, 1]


def test_gateway_messages_and_send_times_are_passed_over(tmp_path: Path) -> None:
    path = write_dbn(tmp_path / "a.dbn", "trades", [trade(1, 4800), trade(2, 4801)])
    body = open_dbn(path).body
    raw = path.read_bytes()
    heartbeat = bytes([20, 0x17]) + bytes(78)
    path.write_bytes(raw[: body + 48] + heartbeat + raw[body + 48 :])
    for piece in (1, 2, 50):
        table, _ = read_dbn(path, BarConfig(kind="tick", size=1, piece_records=piece), ES)
        assert table.close_N.tolist() == [4800.0, 4801.0]


def test_times_that_go_back_are_moved_up_and_reported(tmp_path: Path) -> None:
    path = write_dbn(tmp_path / "a.dbn", "trades", [trade(1, 4800), trade(5, 4801), trade(3, 4802)])
    for piece in (1, 50):
        table, report = read_dbn(path, BarConfig(kind="tick", size=1, piece_records=piece), ES)
        assert table.close_N.tolist() == [4800.0, 4801.0, 4802.0]
        assert table.time_N.tolist() == [NOON + SECOND, NOON + 5 * SECOND, NOON + 5 * SECOND + 1]
        assert report.repaired == {"record timed before the one ahead of it, moved up": 1}


def test_trades_outside_the_session_and_of_no_size_are_counted(tmp_path: Path) -> None:
    closed = trade(0, 4800) | {"ts_event": TUESDAY + 22 * HOUR + HOUR // 2}  # 16:30 in Chicago
    table, report = read_dbn(
        write_dbn(tmp_path / "a.dbn", "trades", [trade(1, 4800), trade(2, 4800, 0), closed]), BarConfig(), ES
    )
    assert table.volume_N.tolist() == [1.0]
    assert report.dropped == {"trade of size 0": 1, "trade outside the session hours": 1}
    assert report.rows_kept == 1


def _cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _cut_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _zero_length(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-48] = 0
    path.write_bytes(raw)


def _future_version(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[3] = 9
    path.write_bytes(raw)


def _bad_header(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[4:8] = (64).to_bytes(4, "little")
    path.write_bytes(raw)


def _not_dbn(path: Path) -> None:
    path.write_text("time,price\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut_off, r"a\.dbn: byte \d+: the file ends 38 bytes into record 2"),
        (_cut_header, r"a\.dbn: byte 100: the file ends inside its header"),
        (_zero_length, r"a\.dbn: byte \d+: record 2 has type 0 and 0 bytes, expected type 0 and 48"),
        (_future_version, r"a\.dbn: byte 3: DBN version 9"),
        (_bad_header, r"a\.dbn: byte 8: the header cannot be read"),
        (_not_dbn, r"a\.dbn: byte 0: not a DBN file"),
    ],
)
def test_a_damaged_file_is_named_with_the_place(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    path = write_dbn(tmp_path / "a.dbn", "trades", [trade(1, 4800), trade(2, 4800), trade(3, 4801)])
    damage(path)
    for piece in (1, 2, 50):
        with pytest.raises(UserError, match=message):
            read_dbn(path, BarConfig(piece_records=piece), ES)


def test_compressed_data_cut_off_or_damaged_is_named(tmp_path: Path) -> None:
    plain = write_dbn(tmp_path / "a.dbn", "trades", [trade(i, 4800 + i % 3) for i in range(1, 2000)])
    packed = pa.compress(plain.read_bytes(), codec="zstd", asbytes=True)
    path = tmp_path / "b.dbn.zst"
    path.write_bytes(packed)
    assert read_dbn(path, BarConfig(), ES)[0].volume_N.sum() == 1999.0
    frames = [plain.read_bytes()[:5000], plain.read_bytes()[5000:]]
    path.write_bytes(b"".join(pa.compress(frame, codec="zstd", asbytes=True) for frame in frames))
    assert read_dbn(path, BarConfig(), ES)[0].volume_N.sum() == 1999.0  # as parallel compressors write it
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError, match=r"b\.dbn\.zst: byte \d+"):
        read_dbn(path, BarConfig(), ES)
    path.write_bytes(packed[:8] + b"\xff" * 50 + packed[58:])
    with pytest.raises(UserError, match=r"b\.dbn\.zst: byte \d+"):
        read_dbn(path, BarConfig(), ES)


def test_a_price_that_cannot_be_is_named_with_its_record(tmp_path: Path) -> None:
    for price, said in ((1e-3, "0.001"), (UNDEFINED / 1e9, "missing")):
        rows = [trade(1, 4800), trade(2, 4800), trade(3, 4800) | {"price": min(round(price * 1e9), UNDEFINED)}]
        path = write_dbn(tmp_path / "a.dbn", "trades", rows)
        with pytest.raises(UserError, match=rf"a\.dbn: record 2: trade price {said}"):
            read_dbn(path, BarConfig(piece_records=1), ES)


def test_schemas_that_cannot_be_used_are_named(data_dir: Path) -> None:
    folder = data_dir / "dbn"
    with pytest.raises(UserError, match=r"schema mbo; bars are made of trades"):
        read_dbn(folder / "test_data.mbo.dbn", BarConfig(), ES)
    with pytest.raises(UserError, match=r"schema ohlcv-1m"):
        read_dbn(next(folder.glob("futures_ohlcv-1m*")), BarConfig(), ES)
    with pytest.raises(UserError, match=r"several instruments; set market.bar.symbol to one of: ESH1"):
        read_dbn(folder, BarConfig(), ES)


def test_other_schemas_beside_usable_ones_are_passed_over_with_a_note(data_dir: Path, tmp_path: Path) -> None:
    for name in ("test_data.mbo.dbn", "test_data.trades.dbn"):
        shutil.copy(data_dir / "dbn" / name, tmp_path / name)
    _, report = read_dbn(tmp_path, BarConfig(), ES)
    assert "test_data.mbo.dbn: schema mbo passed over" in report.notes


def test_missing_empty_and_tradeless_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        read_dbn(tmp_path / "nowhere", BarConfig(), ES)
    with pytest.raises(UserError, match=r"no \.dbn or \.dbn\.zst file"):
        read_dbn(tmp_path, BarConfig(), ES)
    write_dbn(tmp_path / "a.dbn", "mbp-10", [state(0, 4800, 4801)])
    with pytest.raises(UserError, match="no trade of ESH4"):
        read_dbn(tmp_path, BarConfig(), ES)


def test_two_files_of_the_same_time_are_refused(tmp_path: Path) -> None:
    for name in ("a.dbn", "b.dbn"):
        write_dbn(tmp_path / name, "trades", [trade(1, 4800), trade(2, 4800)])
    with pytest.raises(UserError, match=r"b\.dbn: record 0: ESH4 begins before .*a\.dbn ends"):
        read_dbn(tmp_path, BarConfig(), ES)


def test_a_file_without_mappings_is_chosen_by_instrument_id(tmp_path: Path) -> None:
    path = write_dbn(tmp_path / "a.dbn", "trades", [trade(1, 4800), trade(2, 4900, 3, contract=8)])
    file = open_dbn(path)
    metadata = dbn.Metadata(
        dataset="GLBX.MDP3",
        start=TUESDAY,
        stype_in=None,
        stype_out=dbn.SType.INSTRUMENT_ID,
        schema=dbn.Schema.TRADES,
        symbols=[],
        partial=[],
        not_found=[],
        mappings=[],
    )
    path.write_bytes(metadata.encode() + path.read_bytes()[file.body :])
    with pytest.raises(UserError, match=r"one of: 7 \(id 7\), 8 \(id 8\)"):
        read_dbn(path, BarConfig(), ES)
    assert read_dbn(path, BarConfig(symbol="8"), ES)[0].volume_N.tolist() == [3.0]
