"""Records of tensors: frozen dataclasses, possibly nested, whose tensors all have the lanes on axis 0.

Legend: L lanes. A *record* is a dataclass whose fields are tensors or records. These few functions are all that the
trainer needs to stack, select, copy and save lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

import torch
from torch import Tensor

R = TypeVar("R")


def map_tensors(function: Callable[..., Tensor], record: R, *others: R) -> R:
    """Apply ``function`` to the tensors at the same place of one or several records of the same type."""
    if isinstance(record, Tensor):
        return function(record, *others)  # type: ignore[return-value]
    if not is_dataclass(record):
        raise TypeError(f"a record holds tensors and records only, not {type(record).__name__}")
    values = {
        f.name: map_tensors(function, getattr(record, f.name), *(getattr(other, f.name) for other in others))
        for f in fields(record)
    }
    return type(record)(**values)  # type: ignore[misc]


def concat(records: Sequence[R]) -> R:
    """Join records along the lane axis."""
    return map_tensors(lambda *parts: torch.cat(parts, dim=0), *records)


def take(record: R, lanes: Tensor) -> R:
    """Copy out the lanes with these indices (``[K]`` int64), in their order."""
    return map_tensors(lambda tensor: tensor.index_select(0, lanes), record)


def put_(record: R, lanes: Tensor, source: R) -> None:
    """Overwrite the lanes with these indices (``[K]`` int64) by the K lanes of ``source``, in place."""
    map_tensors(lambda tensor, new: tensor.index_copy_(0, lanes, new), record, source)


def flatten(record: Any, prefix: str = "") -> dict[str, Tensor]:
    """Name every tensor of a record by its dotted path, for saving."""
    if isinstance(record, Tensor):
        return {prefix: record}
    named: dict[str, Tensor] = {}
    for f in fields(record):
        named.update(flatten(getattr(record, f.name), f"{prefix}.{f.name}" if prefix else f.name))
    return named


def unflatten(like: R, named: dict[str, Tensor], prefix: str = "") -> R:
    """Inverse of :func:`flatten`: a record shaped like ``like`` with the tensors of ``named``.

    Raises:
        KeyError: a tensor is missing.
    """
    if isinstance(like, Tensor):
        return named[prefix]  # type: ignore[return-value]
    values = {
        f.name: unflatten(getattr(like, f.name), named, f"{prefix}.{f.name}" if prefix else f.name)
        for f in fields(like)  # type: ignore[arg-type]
    }
    return type(like)(**values)


def names_of(record_type: type[Any], prefix: str = "") -> list[str]:
    """Dotted paths of the tensors of a type of records, in :func:`flatten`'s order."""
    if record_type is Tensor:
        return [prefix]
    hints = get_type_hints(record_type)
    return [
        name
        for f in fields(record_type)
        for name in names_of(hints[f.name], f"{prefix}.{f.name}" if prefix else f.name)
    ]


def build(record_type: type[R], named: Mapping[str, Tensor], prefix: str = "") -> R:
    """A record of a given type from its tensors by dotted path: :func:`unflatten` where there is no other record.

    Raises:
        KeyError: a tensor is missing.
    """
    if record_type is Tensor:
        return named[prefix]  # type: ignore[return-value]
    hints = get_type_hints(record_type)
    values = {
        f.name: build(hints[f.name], named, f"{prefix}.{f.name}" if prefix else f.name)
        for f in fields(record_type)  # type: ignore[arg-type]
    }
    return record_type(**values)


def stack_dynamic(record_type: type[R], configs: Sequence[Any], device: torch.device, **given: Tensor) -> R:
    """Build a record whose fields ``name_L`` are ``[L]`` float64 tensors of the configs' dynamic field ``name``.

    ``given`` supplies the record's other tensors ready made.
    """
    values: dict[str, Tensor] = {}
    for f in fields(record_type):  # type: ignore[arg-type]
        if f.name in given:
            values[f.name] = given[f.name]
        else:
            column = [float(getattr(config, f.name.removesuffix("_L"))) for config in configs]
            values[f.name] = torch.tensor(column, dtype=torch.float64, device=device)
    return record_type(**values)


def copy_(record: R, source: R) -> None:
    """Overwrite every tensor of ``record`` by that of ``source``, in place, where a captured graph expects them."""
    map_tensors(lambda tensor, new: tensor.copy_(new), record, source)
