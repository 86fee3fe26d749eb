"""A search space: dotted config fields, each mapped to one axis of the unit cube.

Searchers think in points of the unit cube ``[D]``; trials get values. Logarithms are warped, whole numbers are rounded
when decoded (each has its own equal cell), a categorical's cell is ``1 / choices`` wide. A dimension with ``when`` is
left out of the values where its condition does not hold; its coordinate stays in the point.

Everything a person can get wrong in a space is found when it is loaded, against the bounds of the fields themselves.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from search.space_config import DimensionConfig
from trainer.errors import UserError
from trainer.fields import Frozen, walk

Value = bool | int | float | str
Point = tuple[float, ...]

_PROBES = 512
_PROBE_SEED = 20_231


@dataclass(frozen=True)
class Dimension:
    """One axis. ``kind`` says what a value is; ``log`` how the axis is warped."""

    name: str
    kind: Literal["float", "integer", "categorical"]
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[Value, ...] = ()
    when: tuple[tuple[str, tuple[Value, ...]], ...] = ()

    @property
    def span(self) -> str:
        """The range for people."""
        if self.kind == "categorical":
            return " | ".join(str(choice) for choice in self.choices)
        return f"{self.low:g} to {self.high:g}{' (log)' if self.log else ''}"

    @property
    def cells(self) -> int | None:
        """How many different values the axis has, None for a continuum."""
        if self.kind == "float":
            return None
        return len(self.choices) if self.kind == "categorical" else int(self.high) - int(self.low) + 1

    def decode(self, unit: float) -> Value:
        """The value at ``unit`` in [0, 1]."""
        if self.kind == "categorical":
            return self.choices[min(int(unit * len(self.choices)), len(self.choices) - 1)]
        low, high = self._warped_ends()
        warped = low + unit * (high - low)
        value = float(f"{math.exp(warped) if self.log else warped:.12g}")  # 0.003, not 0.002999999999999999
        if self.kind == "integer":
            return int(min(max(round(value), self.low), self.high))
        return float(min(max(value, self.low), self.high))

    def encode(self, value: Value) -> float:
        """The coordinate of ``value``, the middle of its cell if it has one. UserError for a value the axis lacks."""
        if self.kind == "categorical":
            for index, choice in enumerate(self.choices):
                if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                    return (index + 0.5) / len(self.choices)
            raise UserError(f"{self.name} = {value!r} is not one of its choices {list(self.choices)}")
        if isinstance(value, str | bool) or not self.low <= value <= self.high:
            raise UserError(f"{self.name} = {value!r} is outside the space's {self.low} to {self.high}")
        if self.kind == "integer" and value != round(value):
            raise UserError(f"{self.name} = {value!r} is not a whole number")
        low, high = self._warped_ends()
        return min(max(((math.log(value) if self.log else value) - low) / (high - low), 0.0), 1.0)

    def _warped_ends(self) -> tuple[float, float]:
        margin = 0.5 if self.kind == "integer" else 0.0
        low, high = self.low - margin, self.high + margin
        return (math.log(low), math.log(high)) if self.log else (low, high)


@dataclass(frozen=True)
class Space:
    """Dimensions in an order in which every ``when`` looks backwards only, and the config they vary.

    ``base`` is None for spaces that are not about a config (benchmarks, tests): then any values are admitted.
    """

    dimensions: tuple[Dimension, ...]
    base: Frozen | None = None

    def __len__(self) -> int:
        return len(self.dimensions)

    def active(self, values: Mapping[str, Value], dimension: Dimension) -> bool:
        """Whether the dimension's condition holds, given the values of the dimensions before it."""
        return all(name in values and values[name] in allowed for name, allowed in dimension.when)

    def decode(self, point: Sequence[float]) -> dict[str, Value]:
        """Values of the active dimensions at ``point`` ``[D]``."""
        values: dict[str, Value] = {}
        for dimension, unit in zip(self.dimensions, point, strict=True):
            if self.active(values, dimension):
                values[dimension.name] = dimension.decode(unit)
        return values

    def encode(self, values: Mapping[str, Value]) -> Point:
        """The point of ``values``: dimensions that are absent sit at 0.5. UserError for a value the space lacks."""
        names = [dimension.name for dimension in self.dimensions]
        for name in values:
            if name not in names:
                raise UserError(f"{name} is not a dimension of the space{_nearest(name, names)}")
        return tuple(d.encode(values[d.name]) if d.name in values else 0.5 for d in self.dimensions)

    def key(self, values: Mapping[str, Value]) -> str:
        """A short name of these values: two points with the same key are the same trial."""
        return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).hexdigest()

    def config(self, values: Mapping[str, Value]) -> Frozen:
        """``base`` with these values in it. UserError if the config's own checks refuse the combination."""
        if self.base is None:
            raise UserError("this space has no base config to set values in")
        return with_values(self.base, values)

    def admits(self, values: Mapping[str, Value]) -> bool:
        """Whether the config accepts this combination."""
        if self.base is None:
            return True
        try:
            self.config(values)
        except UserError:
            return False
        return True

    def fingerprint(self) -> str:
        """Changes when a dimension does; kept in saved searcher states."""
        return hashlib.blake2b(repr(self.dimensions).encode(), digest_size=8).hexdigest()

    def configurations(self, limit: int) -> list[dict[str, Value]] | None:
        """Every different set of values, or None if there are more than ``limit`` (or a continuum)."""
        found: list[dict[str, Value]] = []
        for values in self._enumerate({}, 0, limit):
            found.append(values)
            if len(found) > limit:
                return None
        return found

    def _enumerate(self, values: dict[str, Any], index: int, limit: int) -> Iterator[dict[str, Any]]:
        if index == len(self.dimensions):
            yield dict(values)
            return
        dimension = self.dimensions[index]
        if not self.active(values, dimension):
            yield from self._enumerate(values, index + 1, limit)
            return
        cells = dimension.cells
        options: Sequence[Any]
        if cells is None or cells > limit:
            options = [None] * (limit + 1)
        elif dimension.kind == "categorical":
            options = dimension.choices
        else:
            options = range(int(dimension.low), int(dimension.high) + 1)
        for option in options:
            yield from self._enumerate({**values, dimension.name: option}, index + 1, limit)


def load_space(table: Mapping[str, Any], base: Frozen, where: str = "space") -> Space:
    """Build a space from its TOML ``table`` and check it against the fields of ``base``.

    ``base`` is the root config that trials vary; ``where`` names the file in messages. Raises UserError, one line, for
    an unknown or misspelt field, bounds the field does not have, an empty range, a condition that cannot hold, and a
    space none of whose probed points makes a valid config.
    """
    if not table:
        raise UserError(f"{where}: the space is empty; give it at least one dimension")
    fields = {path: field for path, field, _ in walk(base)}
    dimensions = {}
    for name, entry in table.items():
        at = f'{where}."{name}"'
        if name not in fields:
            raise UserError(f"{at}: {type(base).__name__} has no field {name}{_nearest(name, list(fields))}")
        dimensions[name] = _dimension(name, _parse(entry, at), fields[name], at)
    space = Space(_ordered(dimensions, where), base)
    _probe(space, where)
    return space


def with_values(base: Frozen, values: Mapping[str, Value]) -> Frozen:
    """A copy of ``base`` with dotted fields replaced and everything validated again. UserError if that fails."""
    tree = base.model_dump()
    for path, value in values.items():
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            node = node[parent]
        node[leaf] = value
    try:
        return type(base).model_validate(tree)
    except ValidationError as error:
        raise UserError(_first(error)) from None


def _parse(entry: Any, at: str) -> DimensionConfig:
    try:
        return DimensionConfig.model_validate(entry)
    except ValidationError as error:
        raise UserError(f"{at}: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in problem["loc"])
    return f"{path}: {problem['msg']}" if path else str(problem["msg"])


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    same_leaf = [path for path in known if path.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    best = (same_leaf + close)[:1]
    return f"; the nearest is {best[0]}" if best else ""


def _dimension(name: str, config: DimensionConfig, field: FieldInfo, at: str) -> Dimension:
    when = tuple(config.when.items())
    if config.type == "categorical":
        return Dimension(name, "categorical", choices=_choices(config, field, at), when=when)
    if config.choices is not None:
        raise UserError(f'{at}: choices belong to type = "categorical"; {config.type} takes low and high')
    if config.low is None or config.high is None:
        raise UserError(f"{at}: type {config.type} needs both low and high")
    low, high = config.low, config.high
    if not low < high:
        raise UserError(f"{at}: low {low} must be below high {high}")
    if config.type == "log" and low <= 0:
        raise UserError(f"{at}: a log dimension needs low above 0, got {low}")
    whole = _holds_whole_numbers(field)
    if config.type == "uniform" and whole:
        raise UserError(f'{at}: the field holds whole numbers; use type = "integer" (or "log")')
    integer = config.type == "integer" or whole
    if integer and not (low == round(low) and high == round(high)):
        raise UserError(f"{at}: low and high of whole numbers must be whole, got {low} and {high}")
    for end, value in (("low", low), ("high", high)):
        problem = _refusal(field, int(value) if integer else float(value))
        if problem:
            raise UserError(f"{at}: {end} {value} is outside the field's bounds ({_bounds(field)}): {problem}")
    return Dimension(
        name, "integer" if integer else "float", float(low), float(high), log=config.type == "log", when=when
    )


def _choices(config: DimensionConfig, field: FieldInfo, at: str) -> tuple[Value, ...]:
    if config.low is not None or config.high is not None:
        raise UserError(f"{at}: a categorical takes choices, not low and high")
    if not config.choices:
        raise UserError(f"{at}: a categorical needs at least one choice")
    if len({(type(choice), choice) for choice in config.choices}) < len(config.choices):
        raise UserError(f"{at}: choices {list(config.choices)} repeat a value")
    for choice in config.choices:
        problem = _refusal(field, choice)
        if problem:
            raise UserError(f"{at}: choice {choice!r} is not a value of the field: {problem}")
    return config.choices


def _holds_whole_numbers(field: FieldInfo) -> bool:
    annotation = field.annotation
    members = get_args(annotation) or (annotation,)
    return int in members and float not in members


def _refusal(field: FieldInfo, value: Value) -> str | None:
    """Why the field would refuse ``value``, or None. A value that would be silently converted is refused too."""
    annotated: Any = Annotated[field.annotation, field]
    adapter: TypeAdapter[Any] = TypeAdapter(annotated)
    try:
        kept = adapter.validate_python(value)
    except ValidationError as error:
        return _first(error)
    if isinstance(kept, bool) != isinstance(value, bool) or isinstance(kept, str) != isinstance(value, str):
        return f"it would become {kept!r}"
    return None


def _bounds(field: FieldInfo) -> str:
    signs = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
    parts = [
        f"{sign} {getattr(item, name)}"
        for item in field.metadata
        for name, sign in signs
        if getattr(item, name, None) is not None
    ]
    return " and ".join(parts) if parts else "none declared"


def _ordered(dimensions: dict[str, Dimension], where: str) -> tuple[Dimension, ...]:
    """Parents before children, otherwise as written. UserError for conditions that cannot hold."""
    for dimension in dimensions.values():
        for parent, allowed in dimension.when:
            _check_condition(dimension, parent, allowed, dimensions, where)
    ordered: list[Dimension] = []
    waiting = list(dimensions.values())
    while waiting:
        placed = {dimension.name for dimension in ordered}
        ready = [d for d in waiting if all(parent in placed for parent, _ in d.when)]
        if not ready:
            raise UserError(f"{where}: the when conditions of {', '.join(d.name for d in waiting)} form a circle")
        ordered.extend(ready)
        waiting = [dimension for dimension in waiting if dimension not in ready]
    return tuple(ordered)


def _check_condition(
    dimension: Dimension, parent: str, allowed: tuple[Value, ...], dimensions: dict[str, Dimension], where: str
) -> None:
    at = f'{where}."{dimension.name}".when'
    if parent not in dimensions:
        raise UserError(f"{at}: {parent} is not a dimension of this space{_nearest(parent, list(dimensions))}")
    if dimensions[parent].kind == "float":
        raise UserError(f"{at}: {parent} is a continuum; a condition needs an integer or a categorical")
    if not allowed:
        raise UserError(f"{at}: {parent} lists no values, so {dimension.name} would never be searched")
    for value in allowed:
        try:
            dimensions[parent].encode(value)
        except UserError as error:
            raise UserError(f"{at}: never holds: {error}") from None


def _probe(space: Space, where: str) -> None:
    """Build configs at spread points: UserError if the config's own cross-checks refuse them all."""
    from scipy.stats import qmc

    engine = qmc.Sobol(len(space), scramble=True, rng=_PROBE_SEED)
    problem = ""
    for point in engine.random_base2(int(math.log2(_PROBES))):
        try:
            space.config(space.decode(point.tolist()))
        except UserError as error:
            problem = str(error)
        else:
            return
    raise UserError(f"{where}: the space admits no valid config ({_PROBES} points tried), for example: {problem}")
