"""Processes that are measured side by side: started, told to begin at one moment, heard, ended. Every wait has an end.

A child says what it has to say as JSON lines on its standard output (:func:`say`) and takes :func:`orders` from its
standard input, until the parent closes that. What it writes to standard error is kept and quoted when it dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
END_S = 20.0
"""A child that should go has this long to do so."""


class ChildError(RuntimeError):
    """A child did not do what it was started for."""


class Child:
    """One process.

    Args:
        arguments: of ``python -m``.
        log: where its error output goes.
        environment: variables of its own.
    """

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def tell(self, **what: float) -> None:
        """Give one order."""
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    def hear(self, timeout_s: float) -> dict[str, float]:
        """Its next line.

        Raises:
            ChildError: it died, or said nothing in time.
        """
        try:
            line = self._lines.get(timeout=max(timeout_s, 0.0))
        except queue.Empty as error:
            raise ChildError(f"nothing heard for {timeout_s:.0f} s") from error
        if line is None:
            last = [text for text in self.log.read_text(errors="replace").splitlines() if text.strip()][-1:]
            raise ChildError(f"died: {last[0].strip()[:200] if last else 'no word'}")
        said: dict[str, float] = json.loads(line)
        return said

    def end(self) -> None:
        """Ask it to go, then see to it."""
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=END_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put(None)


def together(children: Sequence[Child], timeout_s: float, **order: float) -> list[dict[str, float]]:
    """Let all of them follow one order from one moment on; returns what each says then.

    Raises:
        ChildError: one of them died, or was not done in time.
    """
    begin = time.monotonic() + 0.3
    for each in children:
        each.tell(begin=begin, **order)
    deadline = begin + timeout_s
    return [each.hear(deadline - time.monotonic()) for each in children]


def end_all(children: Sequence[Child]) -> None:
    """End them at the same time."""
    enders = [threading.Thread(target=each.end) for each in children]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()


def say(**what: float) -> None:
    """A child's word to its parent."""
    print(json.dumps(what), flush=True)


def orders() -> Iterator[dict[str, float]]:
    """A child's orders, each when the moment for it has come."""
    for line in sys.stdin:
        order: dict[str, float] = json.loads(line)
        time.sleep(max(order["begin"] - time.monotonic(), 0.0))
        yield order
