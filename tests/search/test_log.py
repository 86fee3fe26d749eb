from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.log import SweepLog, read_events, whole_bytes
from trainer.errors import UserError


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    log = SweepLog(tmp_path / "log.jsonl")
    events = [{"kind": "ask", "trial_id": f"t{n:05d}", "point": [0.1 * n]} for n in range(5)]
    for event in events:
        log.append(event)
    assert list(log.events()) == events


def test_a_torn_last_line_is_left_out_by_readers_and_cut_off_by_the_next_driver(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"kind":"start"}\n{"kind":"ask","tri')
    assert list(read_events(path)) == [{"kind": "start"}]
    log = SweepLog(path)
    log.append({"kind": "stop"})
    assert path.read_bytes() == b'{"kind":"start"}\n{"kind":"stop"}\n'


@given(st.lists(st.binary(max_size=200).map(lambda b: b.replace(b"\n", b"x")), max_size=5), st.binary(max_size=20))
def test_whole_bytes_ends_at_the_last_line_end(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], tail: bytes
) -> None:
    torn = tail.replace(b"\n", b"x")
    whole = b"".join(line + b"\n" for line in lines)
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(whole + torn)
    assert whole_bytes(path) == len(whole)


def test_a_long_torn_line_is_cut_off_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"kind":"start"}\n' + b"x" * 200_000)
    assert whole_bytes(path) == len(b'{"kind":"start"}\n')


def test_a_second_driver_is_refused_while_the_first_is_there(tmp_path: Path) -> None:
    first = SweepLog(tmp_path / "log.jsonl")
    with pytest.raises(UserError, match="another process runs this sweep"):
        SweepLog(tmp_path / "log.jsonl")
    first.close()
    SweepLog(tmp_path / "log.jsonl").close()


def test_damage_inside_the_log_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"kind": "start"}) + "\nnot json\n" + json.dumps({"kind": "stop"}) + "\n")
    with pytest.raises(UserError, match="line 2"):
        list(read_events(path))


def test_a_folder_without_a_log_is_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sweep here"):
        list(read_events(tmp_path / "log.jsonl"))
