"""Files are written beside training: in order, in bounds, with errors told, and nobody hears of what is not there."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from cluster.protocol import RungReport
from cluster.trial_folder import TrialFolder
from cluster.writer import Writer
from tests.trainer.training.conftest import CPU
from trainer.errors import UserError

from .conftest import request_of
from .test_trainer_loop import Link, results


def nothing() -> None:
    """Follows from a job."""


def test_without_threads_a_job_is_done_at_once() -> None:
    seen: list[str] = []
    writer = Writer(0, CPU)
    writer.put("a", [partial(seen.append, "job")], partial(seen.append, "then"))
    assert seen == ["job", "then"]
    assert not writer.busy


def test_jobs_of_a_trial_keep_their_order_and_what_follows_is_done_by_the_caller() -> None:
    seen: list[tuple[str, int]] = []
    writer, caller = Writer(2, CPU), threading.get_ident()

    def note(what: str) -> None:
        time.sleep(0.01)
        seen.append((what, threading.get_ident()))

    for index in range(3):
        writer.put(
            "a", [partial(note, f"{index} first"), partial(note, f"{index} second")], partial(note, f"{index} then")
        )
    writer.finish("a")
    assert [what for what, _ in seen] == [
        f"{index} {part}" for index in range(3) for part in ("first", "second", "then")
    ]
    assert all((thread == caller) == what.endswith("then") for what, thread in seen)
    assert not writer.busy


def test_trials_are_written_side_by_side_and_one_waits_for_itself_alone() -> None:
    writer, both, go = Writer(2, CPU), threading.Barrier(2, timeout=20), threading.Event()

    def meet() -> None:
        both.wait()
        go.wait(20)

    writer.put("a", [meet], nothing)
    writer.put("b", [meet], nothing)  # neither could pass the barrier alone
    third = threading.Thread(target=writer.put, args=("a", [], nothing))
    third.start()
    third.join(0.2)
    assert third.is_alive()
    go.set()
    third.join(20)
    assert not third.is_alive()
    writer.finish()


def test_an_error_is_raised_where_the_trainer_settles_and_other_jobs_go_on() -> None:
    writer, seen = Writer(1, CPU), []

    def broken() -> None:
        raise UserError("disk full")

    writer.put("a", [broken, partial(seen.append, "never")], partial(seen.append, "never"))
    with pytest.raises(UserError, match="disk full"):
        writer.finish()
    writer.put("b", [partial(seen.append, "b")], nothing)
    writer.finish()
    assert seen == ["b"]


def test_settling_waits_no_longer_than_it_is_told() -> None:
    writer, go = Writer(1, CPU), threading.Event()
    writer.put("a", [partial(go.wait, 20)], nothing)
    began = time.monotonic()
    writer.settle(wait_s=0.1)
    assert time.monotonic() - began < 5.0
    assert writer.busy
    go.set()
    writer.finish()


def test_a_trainer_that_writes_beside_training_reports_the_same_and_only_what_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, save = Link(tmp_path / "waiting"), TrialFolder.save
    for link in (waiting, Link(tmp_path / "beside")):
        for index in range(2):
            link.state.submit(request_of(f"t{index}", seed=index))
        if link is waiting:
            link.run()
            continue
        link.loop.writer = Writer(2, CPU)
        monkeypatch.setattr(TrialFolder, "save", lambda *given: time.sleep(0.2) or save(*given))
        heard: list[RungReport] = []

        def told(link: Link = link, heard: list[RungReport] = heard) -> bool:
            new = [r for entry in link.state.entries.values() for r in entry.reports if r not in heard]
            for report in new:
                folder = link.sweep_dir / "trials" / report.trial_id
                assert (folder / f"epoch_{report.epoch:06d}" / "manifest.json").is_file()
                assert not report.final or (folder / "policies" / "best").is_dir()
            heard.extend(new)
            return not any(entry.live for entry in link.state.entries.values())

        link.run(until=told, turns=2_000)
        for index in range(2):
            assert results(link.reports(f"t{index}")) == results(waiting.reports(f"t{index}"))


def test_who_leaves_has_written_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, save = Link(tmp_path / "sweep"), TrialFolder.save
    link.loop.writer = Writer(2, CPU)
    monkeypatch.setattr(TrialFolder, "save", lambda *given: time.sleep(0.3) or save(*given))
    link.state.submit(request_of("t0", rungs=(8,)))
    for _ in range(2):
        link.turn()
    link.state.drain()
    link.turn()
    news = link.loop.news()
    assert [report.parked for _, report in news.reports] == [True]
    assert (link.sweep_dir / "trials" / "t0" / "epoch_000002" / "manifest.json").is_file()
    assert link.loop.idle
