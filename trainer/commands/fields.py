"""``python -m trainer fields``: every field of a profile with its value, bounds, unit, kind and meaning."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from pydantic.fields import FieldInfo

from trainer.config import load_config
from trainer.fields import field_kind, walk

_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"), ("multiple_of", "multiple of"))


def fields(options: argparse.Namespace) -> int:
    """Print one line per field whose dotted name begins with ``options.prefix``."""
    config = load_config(options.profile, options.set)
    for path, field, value in walk(config):
        if path.startswith(options.prefix):
            print(describe(path, field, value))
    return 0


def describe(path: str, field: FieldInfo, value: Any) -> str:
    """One line for a person: ``name = value [kind; unit; bounds] meaning``."""
    extra = field.json_schema_extra
    unit = extra.get("unit") if isinstance(extra, dict) else None
    notes = [str(each) for each in (field_kind(field), unit, _bounds(field)) if each]
    return f"{path} = {value!r}  [{'; '.join(notes)}]  {field.description}"


def _bounds(field: FieldInfo) -> str:
    found = [
        f"{sign} {getattr(rule, name):g}"
        for rule in field.metadata
        for name, sign in _BOUNDS
        if getattr(rule, name, None) is not None
    ]
    choices = [repr(each) for each in get_args(field.annotation) if isinstance(each, str)]
    return ", ".join(found) if found else " | ".join(choices)
