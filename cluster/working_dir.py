"""Whether a working directory may travel to a cluster: measured before it is packed, as Ray would pack it."""

from __future__ import annotations

import logging
from pathlib import Path

from trainer.errors import UserError

EXCLUDES = ("/.git/", "/.venv/", "/venv/", "/runs/", "/mlruns/", "/build/", "/mlflow.db", "__pycache__/", "*.egg-info/")
"""Never travels, beside what .gitignore and .rayignore name."""
_LARGEST = 3


def check_size(working_dir: Path, limit: int | None = None) -> int:
    """Bytes that would be uploaded.

    Args:
        working_dir: folder to upload.
        limit: most bytes; left out: what Ray's store takes.

    Raises:
        UserError: no such folder, or too large; names what is largest.
    """
    from ray._private.runtime_env import packaging  # the very walk and limit that the upload will use

    if not working_dir.is_dir():
        raise UserError(f"--working-dir {working_dir}: no such folder")
    root = working_dir.resolve()
    sizes: dict[str, int] = {}

    def measure(path: Path) -> None:
        if path.is_file():
            top = path.relative_to(root).parts
            name = top[0] + ("/" if len(top) > 1 else "")
            sizes[name] = sizes.get(name, 0) + path.stat().st_size

    quiet = logging.getLogger("cluster.working_dir")
    quiet.setLevel(logging.ERROR)
    excludes = [packaging._get_excludes(root, list(EXCLUDES))]
    packaging._dir_travel(root, excludes, measure, include_gitignore=True, logger=quiet)
    most, total = packaging.GCS_STORAGE_MAX_SIZE if limit is None else limit, sum(sizes.values())
    if total >= most:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:_LARGEST]
        named = ", ".join(f"{name} {_mega(size)}" for name, size in largest)
        raise UserError(
            f"--working-dir {working_dir}: {_mega(total)} to upload, at most {_mega(most)} may be; largest: {named}; "
            "name what the job does not need in .rayignore, and keep data on a shared disk"
        )
    return total


def _mega(size: int) -> str:
    return f"{size / 2**20:,.0f} MB" if size >= 2**20 else f"{size / 2**10:,.0f} kB"
