"""Profiles load, every field is declared and read, and ``--set`` reaches every one of them (S44)."""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from trainer.config import PROFILES, TrialConfig, load_config, parse_value
from trainer.errors import UserError
from trainer.fields import Frozen, dynamic, field_kind, static, walk
from trainer.market.instrument import Instrument, known_instruments, load_instrument
from trainer.training.prepare import choose_instrument

ROOT = Path(__file__).resolve().parents[1]
NAMED = ("smoketest", "localdev", "hyperopt", "production", "h100", "short")
FIELDS = list(walk(TrialConfig()))
NUMBERS = (int, float)
UNITLESS = {
    "seed",
    *(f"market.synthetic.{name}" for name in ("seed", "phi", "regime_ratio", "tail_degrees", "open_gap")),
    *(f"env.{name}" for name in ("cost_scale", "transaction_cost_weight")),
    *(f"agent.adam_{name}" for name in ("beta1", "beta2", "epsilon")),
    *(f"agent.{name}" for name in ("clip_norm", "c51_alpha_max", "smoothing", "epsilon_start", "epsilon_end")),
    *(f"agent.support_{name}" for name in ("warm_quantile", "warm_scale", "growth")),
    *(f"agent.health_{name}" for name in ("diversity", "gradient_low", "gradient_high")),
}
"""Pure numbers: seeds, shares of themselves, ratios and norms. A new one is added here on purpose."""


@pytest.mark.parametrize("name", NAMED)
def test_every_profile_loads(name: str) -> None:
    config = load_config(name)
    assert load_config(str(PROFILES / f"{name}.toml")) == config
    assert choose_instrument(config.market).name == "Synthetic"


def test_no_profile_is_left_out_of_these_tests() -> None:
    assert {path.stem for path in PROFILES.glob("*.toml")} == set(NAMED)


@pytest.mark.parametrize("name", known_instruments())
def test_every_instrument_loads(name: str) -> None:
    assert load_instrument(name).tick > 0.0


# Declarations


def holds_a_number(field: FieldInfo) -> bool:
    kind: Any = field.annotation
    return kind in NUMBERS or any(each in NUMBERS for each in get_args(kind))


@pytest.mark.parametrize(("path", "field"), [(path, field) for path, field, _ in FIELDS], ids=[p for p, _, _ in FIELDS])
def test_every_field_says_what_it_is(path: str, field: FieldInfo) -> None:
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    assert extra["kind"] in ("dynamic", "static"), path
    assert field.description, path
    if holds_a_number(field):
        assert field.metadata, f"{path} has no bounds"
        assert extra["unit"] or path in UNITLESS, f"{path} has no unit"


def test_dynamic_fields_are_numbers() -> None:
    assert [path for path, field, _ in FIELDS if field_kind(field) == "dynamic" and not holds_a_number(field)] == []


def test_dynamic_values_may_differ_within_a_lane_group_and_static_ones_may_not() -> None:
    same = load_config("smoketest").static_signature()
    for path, field, value in walk(load_config("smoketest")):
        other = another_value(field, value)
        try:
            changed = load_config("smoketest", [f"{path}={toml(other)}"])
        except UserError:
            continue  # a value that needs company, as files.quotes needs files.path
        assert (changed.static_signature() == same) == (field_kind(field) == "dynamic"), path


# Reading: an attribute of a field's name, or of its tensor's name, somewhere outside the config models


def attributes_read(files: Iterable[Path]) -> set[str]:
    """Names read as attributes, or passed by name to getattr, in ``files``."""
    found = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr.removesuffix("_L"))
    return found


def sources() -> Iterator[Path]:
    """Code that may read fields; the config models declare them and do not count, but for properties they compute."""
    for path in (ROOT / "trainer").rglob("*.py"):
        if not path.stem.endswith("config"):
            yield path


def models_of(model: type[Frozen]) -> Iterator[type[Frozen]]:
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Frozen):
            yield from models_of(field.annotation)


def unread(model: type[Frozen], read: set[str]) -> list[str]:
    """``Model.field`` of every field that no code reads."""
    return sorted(f"{m.__name__}.{name}" for m in models_of(model) for name in m.model_fields if name not in read)


COMPUTED = {
    # read inside their model by a property that code reads instead: the property, and what it stands for
    "planted": ("preset", "signal", "phi", "flow_noise", "half_spread", "sessions"),
}


def read_by_code() -> set[str]:
    read = attributes_read(sources())
    for through, names in COMPUTED.items():
        if through in read:
            read |= set(names)
    return read


def test_every_field_is_read_by_code() -> None:
    assert unread(TrialConfig, read_by_code()) == []
    assert unread(Instrument, read_by_code()) == []


def test_a_field_that_nothing_reads_would_be_found() -> None:
    class Extra(Frozen):
        lr: float = dynamic(0.1, unit="", doc="read")
        never_read_by_anything: float = static(0.1, doc="forgotten")

    class Root(Frozen):
        extra: Extra = Extra()

    assert unread(Root, read_by_code() | {"extra"}) == ["Extra.never_read_by_anything"]


# --set


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml(each) for each in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    return f"'{value}'" if isinstance(value, str) else repr(value)


def bounded(field: FieldInfo, name: str) -> float | None:
    return next((getattr(m, name) for m in field.metadata if getattr(m, name, None) is not None), None)


def another_value(field: FieldInfo, value: Any) -> Any:
    """A valid value of the field that is not ``value``."""
    kind: Any = field.annotation
    options = get_args(kind)
    if get_origin(kind) is Literal:
        return next(each for each in options if each != value)
    if kind is bool:
        return not value
    if kind in NUMBERS or set(options) & set(NUMBERS):
        return another_number(field, value, whole=kind is int or int in options)
    if typing.get_origin(kind) is tuple:
        return value[:-1] if value else ("return_1",)
    if typing.get_origin(kind) is dict:
        return {"time": "stamp"}
    return "elsewhere"


def another_number(field: FieldInfo, value: Any, *, whole: bool) -> float:
    step = next((m.multiple_of for m in field.metadata if getattr(m, "multiple_of", None)), None)
    candidates = [64, 128, 192, 1, 2, 8, 16] if whole else [0.5, 0.25, 1.5, 3.0, 0.05, -0.5, 200.0]
    low, above = bounded(field, "ge"), bounded(field, "gt")
    high, below = bounded(field, "le"), bounded(field, "lt")
    for each in candidates:
        inside = (low is None or each >= low) and (above is None or each > above)
        inside &= (high is None or each <= high) and (below is None or each < below)
        if inside and each != value and (step is None or each % step == 0):
            return each
    raise AssertionError(f"no other value for {field}")


COMPANY = {
    "market.files.quotes": ["market.files.path='somewhere'"],
    "market.synthetic.bar_seconds": ["market.synthetic.bars_per_session=4"],
}


@pytest.mark.parametrize("path", [path for path, _, _ in FIELDS])
def test_set_reaches_every_field(path: str) -> None:
    base = load_config("smoketest", COMPANY.get(path, []))
    field, value = next((field, value) for each, field, value in walk(base) if each == path)
    other = another_value(field, value)
    if path == "market.source":
        other = "bars"
    company = ["market.files.path='somewhere'"] if path == "market.source" else COMPANY.get(path, [])
    changed = load_config("smoketest", [*company, f"{path}={toml(other)}"])
    values = {each: v for each, _, v in walk(changed)}
    expected = tuple(other) if isinstance(other, list) else other
    assert values[path] == expected
    differing = {each for each, _, v in walk(base) if values[each] != v}
    assert differing - {"market.files.path"} <= {path}


def test_bare_words_and_toml_values_are_both_understood() -> None:
    assert parse_value("bars") == "bars"
    assert parse_value("'bars'") == "bars"
    assert parse_value("1e-4") == 1e-4
    assert parse_value("true") is True
    assert parse_value("['a', 'b']") == ["a", "b"]
    assert parse_value("a/b c.parquet") == "a/b c.parquet"
    assert parse_value("") == ""
