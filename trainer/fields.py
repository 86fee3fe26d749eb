"""Field kinds of the configuration models.

Every number in a config says whether it is *dynamic* (lives in an ``[L]`` tensor and may differ between the lanes of
one group) or *static* (shapes tensors or fixes control flow: lanes that differ in it belong to different groups), and
in which unit it is counted. No torch here: thin clients read configs too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

NUMBERS = (int, float, int | None, float | None)
"""Annotations of the fields that hold a number."""


class Frozen(BaseModel):
    """Base of all config models: immutable, unknown keys refused, defaults validated, NaN and infinity refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name].annotation if info.field_name is not None else None
        if isinstance(value, bool) and kind in NUMBERS:
            raise ValueError("a number is right, not a flag")
        return value


def dynamic(default: float | int, *, unit: str, doc: str, **bounds: Any) -> Any:
    """A number held per lane; ``bounds`` are pydantic's ``ge``, ``gt``, ``le``, ``lt``."""
    return Field(default, description=doc, json_schema_extra={"kind": "dynamic", "unit": unit}, **bounds)


def static(default: Any, *, doc: str, unit: str = "", **bounds: Any) -> Any:
    """A value shared by all lanes of a group (number, flag or choice)."""
    return Field(default, description=doc, json_schema_extra={"kind": "static", "unit": unit}, **bounds)


def field_kind(field: FieldInfo) -> str | None:
    """``"dynamic"``, ``"static"`` or None for a nested model."""
    extra = field.json_schema_extra
    kind = extra.get("kind") if isinstance(extra, dict) else None
    return kind if isinstance(kind, str) else None


def walk(model: Frozen, prefix: str = "") -> Iterator[tuple[str, FieldInfo, Any]]:
    """Yield ``(dotted path, field, value)`` of every leaf field of ``model`` and the models nested in it."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        path = f"{prefix}{name}"
        if isinstance(value, Frozen):
            yield from walk(value, f"{path}.")
        else:
            yield path, field, value
