"""A sweep as its log: what a driver that was killed knew, the next one knows again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from search.course import Course, make_searcher
from search.log import LOG, read_events
from search.results import State
from search.searchers.base import Ending, Event, replay
from search.sweep_config import Profile, load_profile
from trainer.errors import UserError

Open = Callable[..., Course]
Report = Callable[..., Any]


def ask(course: Course) -> str:
    trial = course.ask()
    assert trial is not None
    course.begin(trial)
    return trial.trial_id


def results(course: Course) -> dict[str, Any]:
    course.write()
    content: dict[str, Any] = json.loads((course.folder / "sweep.json").read_text())
    return content


def run_half(course: Course, report: Report) -> None:
    first, second, third, fourth = (ask(course) for _ in range(4))
    course.rung(report(first, 1, 0.5))
    course.end(report(second, 1, 0.1), pruned=True)
    course.end(report(first, 4, 0.7, final=True), pruned=False)
    course.end(report(third, 2, None, error="fold 1: loss not finite"), pruned=False)
    course.rung(report(fourth, 1, 0.6))


def test_every_trial_is_in_the_results_once_with_how_it_ended(open_course: Open, report: Report) -> None:
    course = open_course()
    run_half(course, report)
    content = results(course)
    assert set(content) == {"sweep_id", "tracking_uri", "best_trial", "trials", "trainers"}
    assert [trial["trial_id"] for trial in content["trials"]] == ["t00000", "t00001", "t00002", "t00003"]
    assert [trial["state"] for trial in content["trials"]] == ["complete", "pruned", "failed", "running"]
    keys = {"trial_id", "state", "config", "score", "folds", "rungs", "mlflow_run_id", "ended_because"}
    assert all(set(trial) == keys for trial in content["trials"])
    first, second, third, fourth = content["trials"]
    assert first["score"] == 0.7
    assert first["rungs"] == [{"epoch": 1, "score": 0.5}, {"epoch": 4, "score": 0.7}]
    assert second["score"] == 0.1
    assert second["ended_because"] == "stopped by asha at epoch 1"
    assert third["score"] is None
    assert third["ended_because"] == "fold 1: loss not finite"
    assert fourth["rungs"] == [{"epoch": 1, "score": 0.6}]
    assert content["best_trial"] == "t00000"


def test_the_pool_hears_each_trial_once_and_gets_the_last_word_on_it(open_course: Open, report: Report) -> None:
    course = open_course()
    run_half(course, report)
    pool: Any = course.pool
    assert [request.trial_id for request in pool.submitted] == ["t00000", "t00001", "t00002", "t00003"]
    assert all(request.rungs == (1, 2, 4) for request in pool.submitted)
    assert pool.stopped == [("t00001", "pruned"), ("t00000", "complete"), ("t00002", "failed")]
    course.begin(course.ledger.trials["t00003"])
    assert len(pool.submitted) == 4


@pytest.mark.parametrize("searcher", ["pso", "optuna", "random"])
def test_a_killed_driver_s_successor_has_the_same_searcher(open_course: Open, report: Report, searcher: str) -> None:
    course = open_course(f"sweep.searcher={searcher}")
    run_half(course, report)
    before = course.searcher.state()
    again = open_course(f"sweep.searcher={searcher}")
    assert again.searcher.state() == before
    assert {trial.trial_id for trial in again.ledger.open_trials} == set(again.searcher.in_flight)
    ended = {trial_id for trial_id, trial in again.ledger.trials.items() if trial.ending is not None}
    assert set(again.searcher.finished) == ended


def test_the_searchers_history_equals_the_log(open_course: Open, report: Report) -> None:
    course = open_course()
    run_half(course, report)
    profile: Profile = course.profile
    fresh = make_searcher(profile, [])
    events = [e for e in read_events(course.folder / LOG) if e["kind"] in ("ask", "tell")]
    replay(fresh, (Event.from_json(event) for event in events))
    assert fresh.state() == course.searcher.state()


def test_a_resumed_sweep_asks_for_what_is_missing_and_continues_what_is_open(open_course: Open, report: Report) -> None:
    run_half(open_course(), report)
    again = open_course()
    assert [trial.trial_id for trial in again.ledger.open_trials] == ["t00003"]
    assert again.ledger.open_trials[0].epoch == 1
    assert ask(again) == "t00004"
    assert ask(again) == "t00005"
    assert again.ask() is None
    assert not again.finished
    for trial_id in ("t00003", "t00004", "t00005"):
        again.end(report(trial_id, 4, 0.2, final=True), pruned=False)
    assert again.finished


def test_a_sweep_that_has_ended_can_be_extended(open_course: Open, report: Report, tiny: Any) -> None:
    course = open_course("sweep.trials=1")
    course.end(report(ask(course), 4, 0.2, final=True), pruned=False)
    assert course.finished
    longer = open_course(profile=load_profile(str(tiny), ["sweep.trials=3"]))
    assert not longer.finished
    assert ask(longer) == "t00001"


def test_reports_heard_twice_late_or_after_the_end_change_nothing(open_course: Open, report: Report) -> None:
    course = open_course()
    trial = ask(course)
    for _ in range(3):
        course.rung(report(trial, 1, 0.5))
    course.end(report(trial, 4, 0.7, final=True), pruned=False)
    course.end(report(trial, 4, 0.7, final=True), pruned=False)
    course.end(report(trial, 2, 0.6), pruned=True)
    kinds = [event["kind"] for event in read_events(course.folder / LOG)]
    assert kinds == ["start", "ask", "rung", "rung", "tell"]
    assert course.ledger.trials[trial].ending is Ending.COMPLETE


def test_a_parked_trial_has_not_ended_and_says_why_it_waits(open_course: Open, report: Report) -> None:
    course = open_course()
    trial = ask(course)
    course.stop("SIGTERM")
    course.end(report(trial, 2, None, parked=True), pruned=False)
    (entry,) = results(course)["trials"]
    assert entry["state"] == State.PARKED
    assert entry["ended_because"] == "not ended: SIGTERM"
    assert trial in course.searcher.in_flight


def test_nothing_is_told_once_the_driver_has_said_that_it_stops(open_course: Open, report: Report) -> None:
    course = open_course()
    trial = ask(course)
    course.stop("SIGTERM")
    course.end(report(trial, 4, 0.9, final=True), pruned=False)
    assert course.ledger.trials[trial].ending is None
    assert course.ask() is None


def test_a_trial_with_mechanical_bias_is_never_selected(open_course: Open, report: Report) -> None:
    course = open_course()
    biased, honest, stopped = ask(course), ask(course), ask(course)
    folds = ({"fold": 0.0, "mechanical_bias": 0.0}, {"fold": 1.0, "mechanical_bias": 1.0})
    course.end(report(biased, 4, 9.0, final=True, folds=folds), pruned=False)
    course.end(report(stopped, 2, 5.0), pruned=True)
    assert results(course)["best_trial"] == stopped  # nothing else may be selected yet
    course.end(report(honest, 4, 0.1, final=True), pruned=False)
    content = results(course)
    assert content["best_trial"] == honest
    assert "mechanical bias in fold 1" in content["trials"][0]["ended_because"]


def test_a_trial_stopped_early_never_beats_one_of_full_budget(open_course: Open, report: Report) -> None:
    course = open_course()
    early, later, whole = ask(course), ask(course), ask(course)
    course.end(report(early, 1, 9.0), pruned=True)
    course.end(report(later, 2, 1.0), pruned=True)
    assert results(course)["best_trial"] == later  # it came further
    course.end(report(whole, 4, -3.0, final=True), pruned=False)
    assert results(course)["best_trial"] == whole


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_a_failure(open_course: Open, report: Report, score: float) -> None:
    course = open_course()
    trial = ask(course)
    course.end(report(trial, 4, score, final=True), pruned=False)
    (entry,) = results(course)["trials"]
    assert entry["state"] == "failed"
    assert entry["score"] is None


def test_numbers_of_folds_that_are_not_finite_are_null(open_course: Open, report: Report) -> None:
    course = open_course()
    folds = ({"fold": 0.0, "val_sharpe": float("nan")},)
    course.rung(report(ask(course), 1, 0.5, folds=folds))
    assert results(course)["trials"][0]["folds"] == [{"fold": 0.0, "val_sharpe": None}]


def test_a_log_of_another_seed_is_refused(open_course: Open) -> None:
    ask(open_course())
    with pytest.raises(UserError, match="replay gives"):
        open_course("sweep.seed=1")


def test_the_space_of_two_configurations_ends_after_two_trials(open_course: Open, report: Report, tiny: Any) -> None:
    text = tiny.read_text()
    head = text[: text.index('[sweep.space."agent.lr"]')]
    tiny.write_text(head + '[sweep.space."agent.hidden"]\ntype = "categorical"\nchoices = [32, 64]\n')
    course = open_course()
    trials = [ask(course), ask(course)]
    assert course.ask() is None
    for trial in trials:
        course.end(report(trial, 4, 0.5, final=True), pruned=False)
    assert course.finished
    assert open_course().finished
