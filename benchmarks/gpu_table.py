"""The table of the GPU benchmarks, as people and as programs read it: ours / peer / ratio / fraction of the limit."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Line:
    """One number of ours, beside a peer's where there is one and beside what counted work would allow."""

    what: str
    ours: float
    unit: str
    peer: str = ""
    theirs: float | None = None  # in the same unit
    limit: float | None = None  # rate in the same unit that the counted floors allow
    bar: float | None = None  # aimed at: a ratio where there is a peer, else a rate
    note: str = ""

    @property
    def name(self) -> str:
        """Key of the number in the JSON file."""
        return f"{self.what} / {self.peer}" if self.peer else self.what

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's."""
        return self.ours / self.theirs if self.theirs else None

    @property
    def fraction(self) -> float | None:
        """Of the limit."""
        return self.ours / self.limit if self.limit else None


def write(out: Path, title: str, about: str, lines: Sequence[Line], values: dict[str, Any]) -> None:
    """Write ``out`` as .md and .json: ``name -> value`` for every line and ``values``, with versions."""
    out.parent.mkdir(parents=True, exist_ok=True)
    made = {"versions": versions(), **values}
    for line in lines:
        made[line.what] = line.ours
        for suffix, value in (("", line.theirs), (" ratio", line.ratio), (" fraction of the limit", line.fraction)):
            if value is not None:
                made[f"{line.name}{suffix}"] = value
    text = f"# {title}\n\n{about}\n\n{markdown(lines)}"
    for path, content in ((".json", json.dumps(made, indent=1) + "\n"), (".md", text)):
        whole = out.with_name(out.name + path)
        temporary = whole.with_name(f".{whole.name}.tmp")
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(whole)


def markdown(lines: Sequence[Line]) -> str:
    """The table."""
    rows = ["| what | ours | unit | peer | theirs | ours / peer | of the limit | aimed at |"]
    rows.append("|---|---:|---|---|---:|---:|---:|---:|")
    for line in lines:
        aimed = "" if line.bar is None else f"{_number(line.bar)}{' x' if line.peer else ''}"
        cells = [line.what, _number(line.ours), line.unit, line.peer, _number(line.theirs), _number(line.ratio)]
        rows.append("| " + " | ".join([*cells, _number(line.fraction), aimed]) + " |")
    notes = [f"- {line.name}: {line.note}" for line in lines if line.note]
    return "\n".join(rows) + "\n" + ("\n" + "\n".join(notes) + "\n" if notes else "")


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": str(torch.version.cuda)}
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = "none"
    found["device"], found["driver"] = device_name()
    return found | {"cpus": str(os.cpu_count()), "date": time.strftime("%Y-%m-%d")}


def device_name() -> tuple[str, str]:
    """The first GPU and its driver, asked of ``nvidia-smi`` so that this process takes no memory there."""
    ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
        name, _, driver = answer.partition(",")
        return name.strip(), driver.strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return platform.processor() or platform.machine(), "none"


def default_out(suffix: str = "") -> Path:
    """``benchmarks/results/<hardware>_<date>``, with a suffix where one hardware and day has several files."""
    name = re.sub(r"[^a-z0-9]+", "-", device_name()[0].lower().replace("nvidia", "")).strip("-")
    return RESULTS / f"{name}_{time.strftime('%Y-%m-%d')}{suffix}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
