"""Which Ray a sweep takes."""

from __future__ import annotations

import pytest
from ray._private import services, worker

from search import connect
from search.connect import LOCAL


@pytest.mark.parametrize(
    ("named", "started", "running", "taken"),
    [
        (None, None, set(), LOCAL),
        (None, None, {"1.1.1.1:1"}, LOCAL),  # another sweep's own
        (None, "1.1.1.1:2", {"1.1.1.1:1", "1.1.1.1:2"}, "1.1.1.1:2"),
        (None, "1.1.1.1:2", {"1.1.1.1:1"}, LOCAL),  # it was stopped
        ("auto", "1.1.1.1:2", {"1.1.1.1:2"}, "1.1.1.1:2"),
        ("2.2.2.2:3", "1.1.1.1:2", {"1.1.1.1:2"}, "2.2.2.2:3"),
        ("local", "1.1.1.1:2", {"1.1.1.1:2"}, LOCAL),
        ("", None, set(), LOCAL),
    ],
)
def test_a_sweep_joins_what_it_was_told_else_what_ray_start_began_else_nothing(
    named: str | None, started: str | None, running: set[str], taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", named)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _folder: started)
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: running)
    assert connect._address() == taken


def test_of_what_ray_says_only_its_count_of_processes_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    connect._hush()
    common = {"pid": "raylet", "is_err": True, "ip": "1.1.1.1", "job": None}
    lines = ["WARNING: 8 PYTHON worker processes have been started on node: ...", "the node is out of memory"]
    for line in lines:
        worker.print_to_stdstream({**common, "lines": [line]}, False)
    assert capsys.readouterr().err.strip().endswith("the node is out of memory")
