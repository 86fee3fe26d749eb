"""What the commands share: device, data path, overrides."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from rich.console import Console

from trainer.errors import UserError
from trainer.market.sources.read import is_pair, kind_of


def choose_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one. On the CPU one thread: lanes are bit-identical at a fixed thread count.

    Raises:
        UserError: CUDA was asked for and is not there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: no usable CUDA device here; use --device cpu or auto")
    device = torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    return device


def make_console() -> Console:
    """Where people read: paths are printed as they are; tables keep their columns where nobody says how wide it is."""
    return Console(soft_wrap=True, markup=False, highlight=False, width=None if sys.stdout.isatty() else 120)


def data_overrides(data: Path | None) -> list[str]:
    """``--set`` overrides that a ``--data`` path stands for.

    Raises:
        UserError: there is nothing.
    """
    if data is None:
        return []
    if not (data.exists() or is_pair(data)):
        raise UserError(f"--data {data}: no such file or folder")
    return [
        f"market.source={kind_of(data)}",
        f"market.files.path={json.dumps(str(data.resolve()), ensure_ascii=False)}",
    ]
