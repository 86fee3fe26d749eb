"""Records on disk: one safetensors file and one JSON manifest in a folder that appears whole or not at all.

A checkpoint holds everything its lanes need to continue bit for bit on the same kind of device. No pickle is ever read.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainer.errors import UserError
from trainer.lanes.tree import flatten, unflatten

R = TypeVar("R")
FORMAT = 1
_TENSORS, _MANIFEST = "tensors.safetensors", "manifest.json"


def save(folder: Path, record: Any, manifest: dict[str, Any]) -> None:
    """Write a record of tensors and a JSON manifest to ``folder``, replacing what is there in one rename.

    Raises:
        UserError: the disk is full or not writable.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in flatten(record).items()}
    try:
        save_file(tensors, temporary / _TENSORS)
        content = {"format": FORMAT, "sha256": _digest(temporary / _TENSORS), **manifest}
        (temporary / _MANIFEST).write_text(json.dumps(content), encoding="utf-8")  # indented it takes ten times as long
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(f"{folder}: cannot be written ({error}); nothing of it is left, what was there is") from error
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        UserError: there is none, it is of another format, or the tensors beside it are damaged.
    """
    try:
        manifest: Any = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{folder}: no checkpoint here (no {_MANIFEST})") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / _MANIFEST}: cannot be read as JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{folder / _MANIFEST}: not a manifest of format {FORMAT}, which this version reads")
    if not (folder / _TENSORS).is_file() or _digest(folder / _TENSORS) != manifest.get("sha256"):
        raise UserError(f"{folder / _TENSORS}: damaged or missing (its SHA-256 is not the manifest's)")
    return dict(manifest)


def load(folder: Path, like: R, device: torch.device) -> R:
    """Read a record shaped like ``like``.

    Raises:
        UserError: damaged, or written by a config of other shapes.
    """
    read_manifest(folder)
    try:
        tensors = load_file(folder / _TENSORS, device=str(device))
        record = unflatten(like, tensors)
    except (SafetensorError, KeyError) as error:
        raise UserError(f"{folder}: not a checkpoint of this version ({error})") from error
    for name, tensor in flatten(like).items():
        if tensors[name].shape[1:] != tensor.shape[1:]:
            raise UserError(f"{folder}: {name} is {list(tensors[name].shape)}; this config needs {list(tensor.shape)}")
    return record


def latest(parent: Path) -> Path | None:
    """The newest whole checkpoint in a folder of checkpoints, by name."""
    folders = sorted(p.parent for p in parent.glob(f"*/{_MANIFEST}") if not p.parent.name.startswith("."))
    return folders[-1] if folders else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
