"""A space names config fields, maps them to the unit cube, and says what is wrong with it when it is loaded."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from search.space import Dimension, Space, load_space
from trainer.errors import UserError
from trainer.fields import Frozen, dynamic, static


class Agent(Frozen):
    lr: float = dynamic(1e-5, unit="1", doc="learning rate", gt=0.0, le=1e-2)
    gamma: float = dynamic(0.99, unit="1", doc="discount", ge=0.0, lt=1.0)
    width: int = static(64, doc="hidden width", unit="units", ge=1, le=1024)
    head: Literal["c51", "iqn"] = static("c51", doc="head")
    dueling: bool = static(True, doc="duelling")


class Root(Frozen):
    agent: Agent = Field(default_factory=Agent)
    batch: int = static(64, doc="batch", unit="rows", ge=1)

    @model_validator(mode="after")
    def batch_fits_width(self) -> Root:
        if self.batch > 8 * self.agent.width:
            raise ValueError("batch above 8 widths")
        return self


def load(**table: Any) -> Space:
    return load_space({name.replace("__", "."): entry for name, entry in table.items()}, Root(), "s.toml [space]")


def problem(**table: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(**table)
    assert "\n" not in str(caught.value)
    return str(caught.value)


LR = {"type": "log", "low": 1e-7, "high": 1e-4}
SMALL = {"type": "integer", "low": 1, "high": 8}
HEAD = {"type": "categorical", "choices": ["c51", "iqn"]}


def test_a_log_axis_is_even_in_the_exponent() -> None:
    lr = load(agent__lr=LR).dimensions[0]
    assert lr.decode(0.0) == pytest.approx(1e-7)
    assert lr.decode(1 / 3) == pytest.approx(1e-6)
    assert lr.decode(1.0) == 1e-4
    assert lr.encode(1e-5) == pytest.approx(2 / 3)


def test_whole_numbers_have_equal_cells_and_never_leave_the_range() -> None:
    width = load(agent__width={"type": "integer", "low": 1, "high": 4}, batch=SMALL).dimensions[0]
    assert [width.decode(u) for u in (0.0, 0.2, 0.3, 0.49, 0.51, 0.74, 0.76, 1.0)] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [width.encode(v) for v in (1, 2, 3, 4)] == [0.125, 0.375, 0.625, 0.875]


def test_log_on_a_field_of_whole_numbers_searches_whole_numbers() -> None:
    width = load(agent__width={"type": "log", "low": 16, "high": 1024}).dimensions[0]
    assert width.kind == "integer"
    assert width.decode(0.5) == pytest.approx(128, abs=3)
    assert all(isinstance(width.decode(u / 10), int) for u in range(11))


def test_a_categorical_has_one_cell_per_choice() -> None:
    head = load(agent__head=HEAD).dimensions[0]
    assert [head.decode(u) for u in (0.0, 0.49, 0.5, 1.0)] == ["c51", "c51", "iqn", "iqn"]
    assert head.encode("iqn") == 0.75


def test_true_is_not_the_number_one() -> None:
    flag = load(agent__dueling={"type": "categorical", "choices": [False, True]}).dimensions[0]
    assert flag.decode(0.9) is True
    with pytest.raises(UserError, match="not one of its choices"):
        flag.encode(1)


@given(
    unit=st.floats(0.0, 1.0),
    low=st.floats(1e-9, 1e3),
    ratio=st.floats(1.001, 1e6),
    log=st.booleans(),
    kind=st.sampled_from(["float", "integer"]),
)
def test_decoding_what_was_encoded_gives_the_value_back(
    unit: float, low: float, ratio: float, log: bool, kind: Any
) -> None:
    high = low * ratio
    if kind == "integer":
        low, high = math.ceil(low), math.ceil(high) + 1
    dimension = Dimension("x", kind, low, high, log=log)
    value = dimension.decode(unit)
    assert low <= float(value) <= high
    again = dimension.decode(dimension.encode(value))
    assert again == value if kind == "integer" else again == pytest.approx(value, rel=1e-9, abs=1e-12 * high)


def test_a_conditional_dimension_is_there_only_when_its_condition_holds() -> None:
    space = load(
        agent__gamma={"type": "uniform", "low": 0.9, "high": 0.99, "when": {"agent.head": ["iqn"]}}, agent__head=HEAD
    )
    assert [d.name for d in space.dimensions] == ["agent.head", "agent.gamma"], "parents come first"
    assert space.decode((0.1, 0.5)) == {"agent.head": "c51"}
    assert space.decode((0.9, 0.5)) == {"agent.head": "iqn", "agent.gamma": pytest.approx(0.945)}
    assert space.encode({"agent.head": "c51"}) == (0.25, 0.5)


def test_values_become_a_validated_config() -> None:
    space = load(agent__lr=LR, batch={"type": "integer", "low": 16, "high": 1024})
    config = space.config({"agent.lr": 1e-6, "batch": 32})
    assert isinstance(config, Root)
    assert (config.agent.lr, config.batch, config.agent.width) == (1e-6, 32, 64)
    assert space.admits({"batch": 512})
    assert not space.admits({"batch": 513})


def test_an_unknown_field_is_named_with_the_nearest_one() -> None:
    assert "Root has no field agent.lrr; the nearest is agent.lr" in problem(agent__lrr=LR)
    assert "no field gamma; the nearest is agent.gamma" in problem(gamma={"type": "uniform", "low": 0.1, "high": 0.2})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "log", "low": 1e-7, "high": 1.0}, r"high 1.0 is outside the field's bounds \(> 0.0 and <= 0.01\)"),
        ({"type": "uniform", "low": 0.0, "high": 1e-3}, "low 0.0 is outside the field's bounds"),
        ({"type": "log", "low": 0.0, "high": 1e-4}, "needs low above 0"),
        ({"type": "log", "low": 1e-4, "high": 1e-4}, "low 0.0001 must be below high 0.0001"),
        ({"type": "log", "low": 1e-4, "high": 1e-7}, "must be below"),
        ({"type": "log", "low": 1e-4}, "needs both low and high"),
        ({"type": "log", "low": 1e-7, "high": float("nan")}, "high"),
        ({"type": "lognormal", "low": 1e-7, "high": 1e-4}, "type: Input should be 'uniform'"),
        ({"type": "log", "low": 1e-7, "hihg": 1e-4}, "hihg: Extra inputs"),
        ({"type": "log", "low": 1e-7, "high": 1e-4, "choices": [1]}, "choices belong to"),
        (3, "valid dictionary"),
    ],
)
def test_a_bad_range_is_one_clear_line(entry: Any, message: str) -> None:
    import re

    text = problem(agent__lr=entry)
    assert re.search(message, text), text
    assert text.startswith('s.toml [space]."agent.lr"')


@pytest.mark.parametrize(
    ("name", "entry", "message"),
    [
        ("agent.width", {"type": "uniform", "low": 1, "high": 64}, 'use type = "integer"'),
        ("agent.width", {"type": "integer", "low": 1.5, "high": 64}, "must be whole"),
        ("agent.width", {"type": "integer", "low": 0, "high": 64}, "low 0 is outside the field's bounds"),
        ("agent.gamma", {"type": "uniform", "low": 0.9, "high": 1.0}, "high 1.0 is outside the field's bounds"),
        ("agent.head", {"type": "categorical", "choices": ["c51", "qr"]}, "choice 'qr' is not a value of the field"),
        ("agent.head", {"type": "categorical", "choices": []}, "at least one choice"),
        ("agent.head", {"type": "categorical", "choices": ["c51", "c51"]}, "repeat a value"),
        ("agent.head", {"type": "categorical", "low": 1, "high": 2}, "takes choices"),
        ("agent.head", {"type": "uniform", "low": 1.0, "high": 2.0}, "outside the field's bounds"),
        ("agent.dueling", {"type": "categorical", "choices": [0, 1]}, "would become False"),
    ],
)
def test_a_dimension_that_does_not_fit_its_field_is_refused(name: str, entry: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_space({name: entry}, Root())


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({"agent.heat": ["iqn"]}, "agent.heat is not a dimension of this space; the nearest is agent.head"),
        ({"agent.head": ["qr"]}, "never holds"),
        ({"agent.head": []}, "lists no values"),
        ({"agent.lr": [1e-5]}, "is a continuum"),
        ({"agent.gamma": [0.9]}, "is a continuum"),
    ],
)
def test_a_condition_that_cannot_hold_is_refused(when: Any, message: str) -> None:
    assert message in problem(
        agent__head=HEAD, agent__lr=LR, agent__gamma={"type": "uniform", "low": 0.9, "high": 0.99, "when": when}
    )


def test_circular_conditions_are_refused() -> None:
    assert "form a circle" in problem(
        agent__head={**HEAD, "when": {"agent.dueling": [True]}},
        agent__dueling={"type": "categorical", "choices": [True, False], "when": {"agent.head": ["c51"]}},
    )


def test_a_space_without_any_valid_config_is_refused() -> None:
    text = problem(batch={"type": "integer", "low": 600, "high": 800})
    assert "admits no valid config" in text
    assert "batch above 8 widths" in text


def test_an_empty_space_is_refused() -> None:
    assert "is empty" in problem()


def test_every_configuration_of_a_small_space_is_listed() -> None:
    space = Space(
        (
            Dimension("a", "categorical", choices=("x", "y")),
            Dimension("n", "integer", 1, 3, when=(("a", ("y",)),)),
        )
    )
    assert space.configurations(10) == [{"a": "x"}, {"a": "y", "n": 1}, {"a": "y", "n": 2}, {"a": "y", "n": 3}]
    assert space.configurations(3) is None
    assert Space((Dimension("c", "float"),)).configurations(10) is None


@pytest.mark.parametrize("value", [3e-3, 1e-2, 7.5e-4])
def test_a_number_that_a_person_wrote_comes_back_as_it_was(value: float) -> None:
    for log in (False, True):
        dimension = Dimension("x", "float", 3e-4, 1e-2, log=log)
        assert dimension.decode(dimension.encode(value)) == value
