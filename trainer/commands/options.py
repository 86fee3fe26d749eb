"""What the commands share: device, data path, overrides."""

from __future__ import annotations

from pathlib import Path

import torch

from trainer.errors import UserError


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


def data_overrides(data: Path | None) -> list[str]:
    """``--set`` overrides that a ``--data`` path stands for.

    Raises:
        UserError: there is nothing.
    """
    if data is None:
        return []
    if not data.exists():
        raise UserError(f"--data {data}: no such file or folder")
    inside = list(data.iterdir()) if data.is_dir() else [data]
    is_dbn = any(".dbn" in path.name for path in inside)
    return [f"market.source={'dbn' if is_dbn else 'bars'}", f"market.files.path='{data.resolve()}'"]
