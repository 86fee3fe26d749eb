"""Mechanics of the comparison with processes: a common start, children that die or hang, MPS that does not answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu_processes
from benchmarks.gpu_processes import compare, mps, ours_of, parse


@pytest.mark.slow
def test_processes_train_together_and_those_that_die_or_hang_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu_processes.READY_S, "vmap compiled", 0.5)
    ours = tmp_path / "ours.json"
    ours.write_text(json.dumps({"learn bf16 compiled, 128 x 512": 30_000.0, "learn bf16 compiled, 8 x 512": 9.0}))
    asked = parse(f"--device cpu --tiny --seconds 0.3 --processes 1 2 --vmap 2 --out {tmp_path / 'o'}".split())
    asked.variants, asked.ours = ["plain", "nonsense"], ours
    found = compare(asked)
    assert {"plain, 1 processes", "plain, 2 processes", "vmap over 2 modules"} <= set(found.totals)
    assert all(total > 0.0 for total in found.totals.values())
    assert found.failures["nonsense"].startswith("died: --child nonsense")
    assert found.failures["vmap compiled over 2 modules"].startswith("nothing heard")
    written = json.loads((tmp_path / "o.json").read_text())
    assert written["learn, 128 lanes / plain, 2 processes ratio"] == 30_000.0 / found.totals["plain, 2 processes"]
    assert "nonsense: not measured" in (tmp_path / "o.md").read_text()


def test_our_rate_is_the_one_of_128_lanes() -> None:
    assert ours_of({"learn bf16 compiled, 128 x 512": 5.0, "learn bf16 compiled, 8 x 512": 9.0, "torch": "2"}) == 5.0
    with pytest.raises(SystemExit, match="128 x 512"):
        ours_of({"learn bf16, 8 x 512": 9.0})


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('echo "$CUDA_MPS_PIPE_DIRECTORY $1 $(cat)" >> LOG', ""),
        ('echo "no such device"; exit 1', "no such device"),
        ("sleep 60", "timed out"),
    ],
)
def test_mps_is_ended_and_what_hinders_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    control, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
    control.write_text("#!/bin/sh\n" + script.replace("LOG", str(log)) + "\n")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(gpu_processes, "ANSWER_S", 0.5)
    with mps() as (environment, because):
        assert reason in because
        assert bool(environment) == (reason == "")
        folder = environment.get("CUDA_MPS_PIPE_DIRECTORY")
    if folder is not None:
        said = [line.split() for line in log.read_text().splitlines()]
        assert said == [[folder, "-d"], [folder, "get_server_list"], [folder, "quit"]]
