"""Who may import whom (docs/design.md): trainer knows nothing of Ray or Optuna, configs and tracking none of torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = {
    "trainer": {"ray", "optuna", "search", "cluster", "mlflow"},
    "cluster": {"optuna", "search"},
    "search": {"torch"},
}
EXCEPTIONS = {("trainer/tracking.py", "mlflow")}
TORCH_FREE = ["trainer", "trainer.config", "trainer.tracking", "trainer.fields", "trainer.errors", "search", "cluster"]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_package_imports_only_what_the_design_allows(package: str) -> None:
    offences = [
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / package).rglob("*.py")
        for name in set(imported(path)) & FORBIDDEN[package]
        if (str(path.relative_to(ROOT)), name) not in EXCEPTIONS
    ]
    assert offences == []


@pytest.mark.parametrize("module", TORCH_FREE)
def test_thin_clients_start_without_torch(module: str) -> None:
    code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
