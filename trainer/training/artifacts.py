"""Files on disk that are found by a fingerprint, whole or not there: one per part, and a manifest with their digests.

As in the cache of market tables each file appears under its name in one rename, the manifest last; an entry of which a
part is damaged or missing counts as absent. Parts have their digest in their name, so processes that write the same
entry at once do not mix theirs. Entries that nobody used for a month are removed when another is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

UNUSED_S = 30 * 86_400.0


def load(folder: Path, key: str, parts: Sequence[str]) -> dict[str, Path] | None:
    """Files of an entry by part; None where one is absent or damaged."""
    manifest = folder / f"{key}.json"
    try:
        digests = json.loads(manifest.read_bytes())
        files = {part: _file(folder, key, digests[part], part) for part in parts}
        if any(_digest(file) != digests[part] for part, file in files.items()):
            return None
        os.utime(manifest)  # it was used
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return files


def store(folder: Path, key: str, parts: Mapping[str, Callable[[Path], object]]) -> None:
    """Write an entry; each part's function writes the file it is given.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _remove_unused(folder)
    digests = {}
    for part, write in parts.items():
        temporary = folder / f".{key}.{part}.{os.getpid()}.tmp"
        try:
            write(temporary)
            digests[part] = _digest(temporary)
            temporary.replace(_file(folder, key, digests[part], part))
        finally:
            temporary.unlink(missing_ok=True)
    temporary = folder / f".{key}.json.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(digests), encoding="utf-8")
    temporary.replace(folder / f"{key}.json")


def _file(folder: Path, key: str, digest: str, part: str) -> Path:
    return folder / f"{key}.{digest[:16]}.{part}"


def _remove_unused(folder: Path) -> None:
    for manifest in folder.glob("*.json"):
        try:
            if time.time() - manifest.stat().st_mtime > UNUSED_S:
                for file in folder.glob(f"{manifest.stem}.*"):
                    file.unlink(missing_ok=True)
        except OSError:
            continue


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
