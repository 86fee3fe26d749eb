"""What is measured before a working directory is uploaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.working_dir import check_size
from trainer.errors import UserError

MB = 2**20


def fill(root: Path, **megabytes: float) -> None:
    for name, size in megabytes.items():
        folder = root / name
        folder.mkdir()
        (folder / "file.bin").write_bytes(b"0" * int(size * MB))


def test_what_git_and_ray_ignore_does_not_count(tmp_path: Path) -> None:
    fill(tmp_path, code=1, runs=3, data=3)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "big").write_bytes(b"0" * 3 * MB)
    (tmp_path / ".gitignore").write_text("/data/\n")
    assert MB <= check_size(tmp_path) < 2 * MB


def test_a_directory_too_large_is_refused_naming_its_largest_folders(tmp_path: Path) -> None:
    fill(tmp_path, big=3, bigger=4, small=0.5)
    with pytest.raises(UserError, match=r"8 MB to upload, at most 5 MB may be; largest: bigger/ 4 MB, big/ 3 MB"):
        check_size(tmp_path, limit=5 * MB)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        check_size(tmp_path / "nowhere")
