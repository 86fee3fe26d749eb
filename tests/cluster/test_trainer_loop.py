"""A trainer without Ray: it talks to a pool's decisions directly, one exchange after every epoch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from cluster.config import PoolConfig
from cluster.epoch_log import read_epochs
from cluster.pool_state import PoolState
from cluster.protocol import Admission, Offer, Orders, RungReport, TrialRequest
from cluster.trainer_loop import TrainerLoop
from tests.trainer.training.conftest import CPU
from trainer.training.group import LaneGroup
from trainer.training.report import TrialReport

from .conftest import request_of

Records = dict[tuple[str, int], list[tuple[dict[str, float], int]]]


class Link:
    """A pool and its trainers in one process."""

    def __init__(self, sweep_dir: Path, config: PoolConfig | None = None) -> None:
        self.sweep_dir, self.config = sweep_dir, PoolConfig() if config is None else config
        self.state = PoolState(self.config)
        self.records: Records = {}
        self.started = 0
        self.start()

    def start(self) -> None:
        """A new trainer takes the place of the one there was, if any."""
        self.started += 1
        self.name = f"trainer{self.started}"
        self.loop = TrainerLoop(self.sweep_dir, self.config, CPU, self._record)
        self.state.joined(self.name)

    def kill(self) -> None:
        """As kill -9: whatever was in memory is gone."""
        self.state.lost(self.name)
        self.start()

    def meet(self) -> Orders:
        """One exchange."""
        orders = self.state.exchange(self.name, self.loop.news(), 1)
        self.loop.obey(orders)
        return orders

    def turn(self) -> Orders:
        """One exchange, then one epoch where there is anything to train."""
        orders = self.meet()
        if not self.loop.idle:
            self.loop.step()
        return orders

    def run(self, until: Callable[[], bool] | None = None, turns: int = 200) -> None:
        """Turn until all trials have ended, or ``until`` says so."""
        for _ in range(turns):
            if until() if until is not None else not any(e.live for e in self.state.entries.values()):
                return
            self.turn()
        raise AssertionError(f"not done after {turns} turns: {self.state.status()}")

    def reports(self, trial_id: str) -> list[RungReport]:
        return self.state.entries[trial_id].reports

    def _record(self, trial_id: str, epoch: int, numbers: Mapping[str, float], time_ms: int) -> None:
        self.records.setdefault((trial_id, epoch), []).append((dict(numbers), time_ms))


def results(reports: list[RungReport]) -> list[RungReport]:
    """What must not depend on the company a trial had."""
    return [replace(report, capacities=()) for report in reports]


def alone(tmp_path: Path, request: TrialRequest) -> list[RungReport]:
    link = Link(tmp_path / "alone")
    link.state.submit(request)
    link.run()
    return results(link.reports(request.trial_id))


@pytest.fixture
def link(tmp_path: Path) -> Link:
    return Link(tmp_path / "sweep")


def test_a_trial_reports_its_rungs_and_leaves_its_result_and_policies(link: Link) -> None:
    link.state.submit(request_of("t0"))
    link.run()
    reports = link.reports("t0")
    assert [(r.epoch, r.final, r.error) for r in reports] == [(1, False, None), (2, False, None), (4, True, None)]
    assert reports[-1].capacities == (3, 3, 3, 3)
    assert [fold["fold"] for fold in reports[-1].folds] == [0, 1, 2]
    folder = link.sweep_dir / "trials" / "t0"
    result = json.loads((folder / "result.json").read_text())
    assert result["score"] == reports[-1].score
    assert [epoch["epoch"] for epoch in result["epochs"]] == [1, 2, 3, 4]
    assert {path.name for path in (folder / "policies").iterdir()} == {"fold_0", "fold_1", "fold_2", "best"}


def test_the_score_at_a_rung_is_that_of_the_single_trial_command(link: Link) -> None:
    link.state.submit(request_of("t0", rungs=(2, 4), **{"training.score_epochs": 2}))
    link.run()
    history = json.loads((link.sweep_dir / "trials" / "t0" / "result.json").read_text())["epochs"]
    sharpe_EF = [[fold["val_sharpe"] for fold in epoch["folds"]] for epoch in history]
    for report, (last, before) in zip(link.reports("t0"), ((1, 0), (3, 2)), strict=True):
        by_fold = [(a + b) / 2 for a, b in zip(sharpe_EF[before], sharpe_EF[last], strict=True)]
        assert report.score == sorted(by_fold)[1]


def test_a_trial_given_back_goes_on_with_another_trainer_where_it_was(tmp_path: Path, link: Link) -> None:
    request = request_of("t0", seed=5)
    link.state.submit(request)
    link.state.submit(request_of("t1"))
    link.run(until=lambda: link.state.entries["t0"].epoch == 2)
    link.loop.obey(Orders(give_back=("t0", "gone")))
    news = link.loop.news()
    assert news.returned == ((link.state.entries["t0"].attempt, "t0"),)
    assert set(news.epochs) == {"t1"}
    link.state.exchange(link.name, replace(news, offer=Offer(lanes=0)), 1)
    link.start()
    link.run(until=lambda: not link.state.entries["t0"].live)
    assert [epoch for trial, epoch in link.records if trial == "t0"] == [1, 2, 3, 4]
    assert results(link.reports("t0")) == alone(tmp_path, request)


def test_who_comes_for_the_lanes_of_a_last_epoch_waits_until_they_are_free(tmp_path: Path) -> None:
    link = Link(tmp_path / "sweep", PoolConfig(lanes=6))
    for index in range(5):
        link.state.submit(request_of(f"t{index}", rungs=(2,) if index < 2 else (4,), seed=index))
    link.run(until=lambda: "t2" in {admission.request.trial_id for admission in link.meet().admit})
    assert set(link.loop.news().epochs.items()) >= {("t2", 0)}
    link.run()
    (epochs,) = read_epochs(link.sweep_dir).values()
    assert max(epoch.lanes for epoch in epochs) == 6
    assert sum(epoch.lanes for epoch in epochs) == 3 * (2 * 2 + 3 * 4)


def test_who_waits_for_lanes_can_be_stopped_and_given_back_and_is_returned_when_the_pool_is_drained(
    tmp_path: Path,
) -> None:
    link = Link(tmp_path / "sweep", PoolConfig(lanes=9))
    for index in range(6):
        link.state.submit(request_of(f"t{index}", rungs=(2,) if index < 3 else (4,), seed=index))
    link.run(until=lambda: "t5" in {admission.request.trial_id for admission in link.meet().admit})
    link.state.stop("t3")
    link.loop.obey(Orders(stop=("t3",), give_back=("t4",)))
    news = link.loop.news()
    assert news.returned == ((link.state.entries["t4"].attempt, "t4"),)
    assert {"t3", "t4", "t5"} & set(news.epochs) == {"t5"}
    link.state.exchange(link.name, replace(news, offer=Offer(lanes=0)), 1)
    link.state.drain()
    link.turn()
    link.turn()
    assert not link.state.training
    assert link.reports("t5")[-1].parked


def test_a_trial_among_others_that_come_and_go_has_the_results_of_the_trial_alone(tmp_path: Path, link: Link) -> None:
    watched = request_of("t1", seed=5, **{"agent.lr": 2e-3})
    link.state.submit(request_of("t0", rungs=(2,)))
    link.state.submit(watched)
    link.state.submit(request_of("t2", rungs=(1, 3), seed=7))
    link.run(until=lambda: link.state.entries["t1"].epoch >= 2)
    link.state.submit(request_of("t3", seed=9))
    link.state.stop("t2")
    link.run()
    assert len(set(link.reports("t1")[-1].capacities)) > 1
    assert results(link.reports("t1")) == alone(tmp_path, watched)


def test_a_trial_whose_trainer_was_killed_has_the_results_of_the_trial_left_alone(tmp_path: Path, link: Link) -> None:
    request = request_of("t0", rungs=(2, 6), seed=3)
    link.state.submit(request)
    link.run(until=lambda: link.loop.news().epochs.get("t0") == 3)
    link.kill()
    link.run()
    assert results(link.reports("t0")) == alone(tmp_path, request)
    assert link.state.entries["t0"].attempt == 2


def test_a_drained_trial_submitted_to_another_pool_ends_as_if_nothing_had_been(tmp_path: Path, link: Link) -> None:
    request = request_of("t0", rungs=(2, 6), seed=3)
    link.state.submit(request)
    link.run(until=lambda: link.loop.news().epochs.get("t0") == 3)
    link.state.drain()
    link.run()
    assert link.reports("t0")[-1] == RungReport("t0", 3, None, parked=True)
    again = Link(link.sweep_dir)
    again.state.submit(request)
    again.run()
    assert results(again.reports("t0")) == alone(tmp_path, request)
    assert again.loop.idle


def test_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, link: Link) -> None:
    request = request_of("t0", rungs=(1, 2, 3, 6), seed=3)
    link.state.submit(request)
    link.run(until=lambda: link.loop.news().epochs.get("t0") == 4)
    link.kill()
    folders = sorted((link.sweep_dir / "trials" / "t0").glob("epoch_*"))
    assert [folder.name for folder in folders] == ["epoch_000002", "epoch_000003"]
    (folders[-1] / "tensors.safetensors").write_bytes(b"torn")
    link.run()
    assert results(link.reports("t0")) == alone(tmp_path, request)


def test_a_trial_that_ended_before_a_crash_tells_its_end_again_without_training(link: Link) -> None:
    request = request_of("t0")
    link.state.submit(request)
    link.run()
    again = Link(link.sweep_dir)
    again.state.submit(request)
    orders = again.turn()
    again.state.exchange(again.name, again.loop.news(), 1)
    assert len(orders.admit) == 1
    assert again.reports("t0") == link.reports("t0")


def test_a_trial_whose_numbers_explode_fails_and_leaves_its_neighbour_alone(tmp_path: Path, link: Link) -> None:
    neighbour = request_of("good", seed=5)
    link.state.submit(neighbour)
    link.state.submit(request_of("bad"))
    link.turn()
    link.turn()
    group = next(iter(link.loop._groups.values()))
    rows = list(group.resident("bad").lanes)
    group.state.params_LD[rows[0]] = torch.nan
    link.run()
    assert "fold 0" in str(link.reports("bad")[-1].error)
    assert "not finite" in str(link.reports("bad")[-1].error)
    assert link.reports("bad")[-1].score is None
    assert results(link.reports("good")) == alone(tmp_path, neighbour)


def test_a_trial_that_cannot_be_prepared_fails_and_the_trainer_goes_on(link: Link) -> None:
    link.state.submit(request_of("bad", **{"market.source": "bars", "market.files.path": "/nowhere.parquet"}))
    link.state.submit(request_of("good", rungs=(1,)))
    link.run()
    assert "/nowhere.parquet" in str(link.reports("bad")[-1].error)
    assert link.reports("good")[-1].final


def test_running_out_of_memory_halves_the_group_and_loses_no_trial(
    tmp_path: Path, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request_of(f"t{index}", rungs=(1, 3), seed=index) for index in range(4)]
    widest: list[int] = []
    advance = LaneGroup.advance

    def scarce(group: LaneGroup) -> tuple[TrialReport, ...]:
        if group.lanes > 6:
            advance(group)  # the state is half-way when memory runs out
            raise torch.OutOfMemoryError("no room for more than two trials")
        widest.append(group.lanes)
        return advance(group)

    with monkeypatch.context() as scarcity:
        scarcity.setattr(LaneGroup, "advance", scarce)
        for request in requests:
            link.state.submit(request)
        link.run()
    assert max(widest) <= 6
    for request in requests:
        assert results(link.reports(request.trial_id)) == alone(tmp_path / request.trial_id, request)


def test_a_trial_that_does_not_fit_even_alone_fails(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_fits(group: LaneGroup) -> tuple[TrialReport, ...]:
        raise torch.OutOfMemoryError(f"{group.lanes} lanes")

    monkeypatch.setattr(LaneGroup, "advance", nothing_fits)
    link.state.submit(request_of("t0"))
    link.run()
    assert "even alone" in str(link.reports("t0")[-1].error)
    assert link.loop.idle


def test_signatures_take_turns(link: Link) -> None:
    link.state.submit(request_of("narrow"))
    link.state.submit(request_of("wide", **{"agent.hidden": 32}))
    for _ in range(6):
        link.turn()
    epochs = link.loop.news().epochs
    assert abs(epochs["narrow"] - epochs["wide"]) <= 1
    link.run()
    assert all(link.reports(trial_id)[-1].capacities == (3,) * 4 for trial_id in ("narrow", "wide"))


def test_markets_are_prepared_once_for_the_signatures_that_share_them(link: Link) -> None:
    link.state.submit(request_of("narrow"))
    link.state.submit(request_of("wide", **{"agent.hidden": 32}))
    link.turn()
    link.turn()
    first, second = (group.prepared for group in link.loop._groups.values())
    assert first is second


def test_room_that_is_about_to_be_free_is_offered_before_it_is(tmp_path: Path) -> None:
    link = Link(tmp_path / "sweep", PoolConfig(lanes=3))
    link.state.submit(request_of("t0", rungs=(2,)))
    link.loop.obey(link.state.exchange(link.name, link.loop.news(), 1))
    assert link.loop.news().offer.lanes == 0
    link.loop.step()
    assert link.loop.news().offer.lanes == 3


def test_trials_keep_their_own_validations_when_their_rows_are_not_in_the_order_they_came(
    tmp_path: Path, link: Link
) -> None:
    requests = [request_of(f"t{index}", rungs=rungs, seed=index) for index, rungs in enumerate([(1,), (3,), (2,)])]
    for request in requests[:2]:
        link.state.submit(request)
    link.run(until=lambda: link.reports("t0") != [])
    link.state.submit(requests[2])  # into the rows that t0 left, before those of t1
    link.run()
    for request in requests:
        assert results(link.reports(request.trial_id)) == alone(tmp_path / request.trial_id, request)


def test_a_stopped_trial_leaves_at_the_next_boundary_and_what_it_did_beyond_its_rung_is_not_tracked(link: Link) -> None:
    link.state.submit(request_of("t0", rungs=(2, 9)))
    link.run(until=lambda: link.loop.news().epochs.get("t0") == 4)
    link.state.stop("t0")
    link.turn()
    assert link.loop.idle
    assert sorted(epoch for _, epoch in link.records) == [1, 2]


def test_what_a_trial_did_beyond_its_rung_is_tracked_once_it_may_go_on(link: Link) -> None:
    link.state.submit(request_of("t0", rungs=(2, 4)))
    link.run(until=lambda: link.loop.news().epochs.get("t0") == 3)
    assert sorted(epoch for _, epoch in link.records) == [1, 2]
    link.state.next_report("t0", 2)
    link.run()
    assert sorted(epoch for _, epoch in link.records) == [1, 2, 3, 4]
    assert all(len(times) == 1 for times in link.records.values())


def test_a_trial_that_ended_is_tracked_to_its_end_whoever_was_asked(link: Link) -> None:
    link.state.submit(request_of("t0", rungs=(1, 3)))
    link.run()
    assert sorted(epoch for _, epoch in link.records) == [1, 2, 3]


def test_tracking_after_a_restart_has_every_epoch_and_repeats_none_under_another_time(link: Link) -> None:
    request = request_of("t0", rungs=(4,), **{"training.checkpoint_every": 1})
    link.state.submit(request)
    link.run(until=lambda: link.loop.news().epochs.get("t0") == 2)
    link.state.drain()
    link.run()
    again = Link(link.sweep_dir)
    again.records = link.records
    again.state.submit(request)
    again.run()
    assert sorted(epoch for _, epoch in link.records) == [1, 2, 3, 4]
    assert all(len({time_ms for _, time_ms in seen}) == 1 for seen in link.records.values())
    names = set(link.records["t0", 4][0][0])
    assert {"fold_0/val_sharpe", "fold_2/loss", "score", "capacity"} <= names
    assert "score" not in link.records["t0", 3][0][0]


def test_an_order_to_stop_and_admit_the_same_trial_starts_it_anew_from_its_checkpoint(link: Link) -> None:
    request = request_of("t0", rungs=(2, 4))
    link.state.submit(request)
    link.run(until=lambda: link.loop.news().epochs.get("t0") == 3)
    link.loop.obey(Orders(admit=(Admission(request, 99),), stop=("t0",)))
    assert link.loop.news().epochs == {"t0": 2}


def test_a_trainer_says_on_what_and_for_how_much_of_its_time_it_trained(link: Link) -> None:
    link.loop.label = "GPU 3"
    assert (link.loop.news().device, link.loop.news().busy) == ("GPU 3", 0.0)
    link.state.submit(request_of("t0"))
    link.run()
    trained = link.loop.news().busy
    assert 0.0 < trained <= 1.0
    time.sleep(0.2)
    assert link.loop.news().busy < trained


def test_what_every_epoch_cost_is_left_in_the_sweeps_folder(link: Link) -> None:
    link.state.submit(request_of("t0", rungs=(3,)))
    link.state.submit(request_of("t1", rungs=(2,)))
    began = time.time()
    link.run()
    ((name, epochs),) = read_epochs(link.sweep_dir).items()
    assert name == "trainer"
    assert [(epoch.lanes, epoch.capacity, epoch.trials) for epoch in epochs] == [(3, 3, 1), (6, 6, 2), (6, 6, 2)]
    assert {epoch.learn_steps for epoch in epochs} == {6}
    for epoch, following in pairwise(epochs):
        assert sum(epoch.phases.values()) <= epoch.wall
        assert epoch.ended + following.between == pytest.approx(following.began, abs=0.05)
    assert began < epochs[0].began < epochs[-1].ended < time.time()
