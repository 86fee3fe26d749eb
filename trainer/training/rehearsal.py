"""Try a step on the tensors it will work on, and put them back as they were.

Why not on a copy: a lane group's replay is gigabytes, and a copy of it beside the original bounds how many lanes fit.
All other tensors are copied; of a ring only the rows that the coming collect steps overwrite are, and of the market,
which nobody writes, none.

Legend: L lanes, T ring length, R rows put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from trainer.market.market import Market
from trainer.replay.ring import Ring


@contextmanager
def undone(record: Any, steps: int) -> Iterator[None]:
    """Undo what is done to a record's tensors inside: at most ``steps`` collect steps where it holds a ring."""
    with torch.no_grad():
        restore = _saved(record, steps)
    try:
        yield
    finally:
        with torch.no_grad():
            for put_back in restore:
                put_back()


def _saved(record: Any, steps: int) -> list[Callable[[], object]]:
    if isinstance(record, Tensor):
        copy = record.clone()
        return [lambda: record.copy_(copy)]
    if isinstance(record, Market):
        return []
    if not isinstance(record, Ring):
        return [each for f in fields(record) for each in _saved(getattr(record, f.name), steps)]
    row_R = _next_rows(record, steps)
    counters = [each for tensor in (record.cursor_L, record.count_L) for each in _saved(tensor, steps)]
    stored = [getattr(record, f.name) for f in fields(record) if not f.name.endswith("_L")]
    return counters + [_saved_rows(tensor.flatten(0, 1), row_R) for tensor in stored]


def _saved_rows(stored: Tensor, row_R: Tensor) -> Callable[[], object]:
    rows = stored.index_select(0, row_R)
    return lambda: stored.index_copy_(0, row_R, rows)


def _next_rows(ring: Ring, steps: int) -> Tensor:
    """Where the next ``steps`` collect steps of every lane are stored, among the ``L T`` rows; each row once."""
    ahead = torch.arange(min(steps, ring.length), device=ring.cursor_L.device)
    first_L1 = (torch.arange(len(ring.cursor_L), device=ring.cursor_L.device) * ring.length).unsqueeze(-1)
    return (first_L1 + (ring.cursor_L.unsqueeze(-1) + ahead) % ring.length).flatten()
