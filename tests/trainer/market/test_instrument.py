from __future__ import annotations

from pathlib import Path

import pytest

from trainer.errors import UserError
from trainer.fields import field_kind
from trainer.market.instrument import Hours, Instrument, guess_instrument, known_instruments, load_instrument


def test_an_es_round_trip_costs_seventeen_dollars() -> None:
    es = load_instrument("es")
    spread = es.default_spread * es.multiplier
    fees = 2.0 * es.commission_bps * 1e-4 * 5000.0 * es.multiplier
    assert spread == 12.5
    assert spread + fees == pytest.approx(17.0, abs=1e-12)


def test_every_shipped_instrument_loads_and_is_found_by_its_name() -> None:
    assert {"es", "spy", "nse-stock", "6e", "btc-perp"} <= set(known_instruments())
    for name in known_instruments():
        assert load_instrument(name).default_spread > 0.0


def test_every_field_says_its_kind() -> None:
    assert {field_kind(field) for field in (Instrument.model_fields | Hours.model_fields).values()} == {"static"}


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("yesbank_nse_1m_2019.parquet", "NSE stock"),
        ("es_front_1m_trade.parquet", "ES"),
        ("spy_5m_2018_2020.parquet", "SPY"),
        ("6EH4.XCME_1min_bars_20240101_20240131.csv.gz", "6E"),
        ("btc-perp-20211231-20220201_1m.csv.gz", "BTC perpetual"),
        ("usdm_btcusdt_20240808.gz", "BTCUSDT perpetual"),
    ],
)
def test_the_file_name_tells_the_instrument(file: str, name: str) -> None:
    assert guess_instrument(Path("somewhere") / file).name == name


def test_the_symbol_or_the_files_of_a_folder_tell_the_instrument(tmp_path: Path) -> None:
    assert guess_instrument(Path("somewhere"), "ESH4").name == "ES"
    (tmp_path / "esh4.trades.dbn.zst").touch()
    (tmp_path / "test_data.dbn").touch()
    assert guess_instrument(tmp_path).name == "ES"
    (tmp_path / "spy.dbn").touch()
    with pytest.raises(UserError, match="cannot tell the instrument"):
        guess_instrument(tmp_path)


def test_an_unknown_file_name_asks_for_the_instrument() -> None:
    with pytest.raises(UserError, match=r"abc\.csv: cannot tell the instrument.*btc-perp"):
        guess_instrument(Path("abc.csv"))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'nq' not found; known are .*es"):
        load_instrument("nq")


HOURS = "open = 09:00:00, close = 15:00:00"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("tick = 0.0", "tick: Input should be greater than 0"),
        ('timezone = "Mars/Olympus"', "no time zone is called 'Mars/Olympus'"),
        ("open = 09:30:00", "`open` and `close` come together"),
        ("open = 09:30:00\nclose = 09:30:00", "`open` equals `close`"),
        (f"earlier = [{{ until = 2015-09-18, {HOURS} }}]", "need `open` and `close`"),
        ("open = 09:30:00\nclose = 16:00:00\nearlier = [{ until = 2015-09-18, open = 09:00:00 }]", "earlier.0.close"),
        (
            f"open = 09:30:00\nclose = 16:00:00\nearlier = [{{ until = 2015-09-18, {HOURS} }}, "
            f"{{ until = 2012-01-01, {HOURS} }}]",
            "oldest hours first",
        ),
        ("funding_rate = 0.01", "needs `funding_interval_hours`"),
        ("price_low = 1e9", "`price_low` must be below"),
        ("tik = 1.0", "tik: Extra inputs are not permitted"),
        ("tick = = 1", "not valid TOML"),
    ],
)
def test_a_bad_file_gives_one_line_with_the_key(tmp_path: Path, line: str, fault: str) -> None:
    good = {
        "name": '"X"',
        "tick": "0.5",
        "multiplier": "1.0",
        "currency": '"USD"',
        "timezone": '"UTC"',
        "sessions_per_year": "252.0",
        "commission_bps": "1.0",
        "margin_fraction": "0.1",
        "default_spread_ticks": "1.0",
        "price_low": "1.0",
        "price_high": "1000.0",
    }
    good.pop(line.split(" ")[0], None)
    path = tmp_path / "x.toml"
    path.write_text("\n".join([*(f"{key} = {value}" for key, value in good.items()), line]))
    with pytest.raises(UserError, match=fault) as raised:
        load_instrument(path)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("x.toml: ")
