"""The pool's decisions, one call after the other, without Ray."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.config import PoolConfig
from cluster.pool_state import PoolState
from cluster.protocol import News, Offer, Orders, RungReport, TrialRequest
from trainer.config import TrialConfig, validate
from trainer.errors import UserError

from .conftest import request_of

ROOM = Offer(lanes=1_000)
LANES = 3  # of a tiny trial: one per fold


def pool(trials: int = 0, trainers: tuple[str, ...] = ("a",), **config: int) -> PoolState:
    state = PoolState(PoolConfig.model_validate(config))
    for trainer in trainers:
        state.joined(trainer)
    for index in range(trials):
        state.submit(request_of(f"t{index}"))
    return state


def signature(request: TrialRequest) -> str:
    return validate(TrialConfig, dict(request.config), where="test").static_signature()


SIGNATURE = signature(request_of("any"))
KNOWN = Offer(lanes=1_000, lane_bytes={SIGNATURE: 10}, groups=(SIGNATURE,))
"""An offer of a trainer that has held the tiny signature."""


def admitted(orders: Orders) -> list[str]:
    return [admission.request.trial_id for admission in orders.admit]


def ask(state: PoolState, trainer: str = "a", offer: Offer = KNOWN, trainers: int = 1) -> list[str]:
    return admitted(state.exchange(trainer, News(offer), trainers))


def tell(state: PoolState, *reports: RungReport, trainer: str = "a", attempt: int | None = None) -> Orders:
    numbered = tuple((attempt or state.entries[r.trial_id].attempt, r) for r in reports)
    return state.exchange(trainer, News(KNOWN, reports=numbered), 1)


def test_trials_are_given_out_in_the_order_in_which_they_came() -> None:
    assert ask(pool(3)) == ["t0", "t1", "t2"]


def test_a_signature_never_seen_is_tried_with_one_trial_first() -> None:
    state = pool(3)
    assert ask(state, offer=ROOM) == ["t0"]
    assert ask(state, offer=Offer(lanes=1_000, groups=(SIGNATURE,))) == []
    assert ask(state) == ["t1", "t2"]


def test_an_offer_is_not_exceeded_in_lanes_memory_or_the_limit_of_a_signature() -> None:
    assert ask(pool(4), offer=Offer(lanes=7, lane_bytes={SIGNATURE: 1})) == ["t0", "t1"]
    assert ask(pool(4), offer=Offer(lanes=99, bytes_free=95, lane_bytes={SIGNATURE: 10})) == ["t0", "t1", "t2"]
    assert ask(pool(4), offer=Offer(lanes=99, lane_bytes={SIGNATURE: 1}, lane_limit={SIGNATURE: 4})) == ["t0"]


def test_a_trial_larger_than_any_room_is_tried_alone_rather_than_kept_waiting_for_ever() -> None:
    state = pool(2)
    small = Offer(lanes=2, lane_bytes={SIGNATURE: 1})
    assert ask(state, offer=small) == ["t0"]
    assert ask(state, offer=small) == []


def test_lanes_are_spread_evenly_over_the_trainers_there_are() -> None:
    state = pool(5, ("a", "b"))
    assert len(ask(state, "a", trainers=2)) == 3
    assert len(ask(state, "b", trainers=2)) == 2


def test_what_a_full_trainer_cannot_take_goes_to_the_others() -> None:
    state = pool(6, ("a", "b"))
    small = Offer(lanes=3, lane_bytes={SIGNATURE: 1}, groups=(SIGNATURE,))
    assert len(ask(state, "a", offer=small, trainers=2)) == 1
    assert len(ask(state, "b", trainers=2)) == 5


def test_a_trainer_that_does_not_know_a_cost_yet_does_not_count_as_full() -> None:
    state = pool(8, ("a", "b"))
    assert ask(state, "a", offer=ROOM, trainers=2) == ["t0"]
    assert len(ask(state, "b", trainers=2)) == 4
    assert len(ask(state, "a", trainers=2)) == 3


def give_back(state: PoolState, trainer: str) -> tuple[str, ...]:
    return state.exchange(trainer, News(KNOWN), 2).give_back


def test_the_fullest_trainer_gives_back_for_one_that_has_far_less_to_do_once_none_wait() -> None:
    state = pool(6, ("a",))
    assert len(ask(state, "a")) == 6
    state.joined("b")
    state.submit(request_of("last"))
    assert give_back(state, "a") == ()  # the one that waits goes to b
    assert ask(state, "b", trainers=2) == ["last"]
    state.exchange("a", News(KNOWN, epochs={"t0": 2, "t1": 1}), 2)
    given = ("t2", "t3")  # 18 and 3 lanes become 12 and 9; those with the most left to do go
    assert {entry.request.trial_id for entry in state.entries.values() if entry.moved} == set(given)
    returned = tuple((state.entries[trial_id].attempt, trial_id) for trial_id in given)
    assert admitted(state.exchange("a", News(KNOWN, returned=returned), 2)) == []
    assert ask(state, "b", trainers=2) == list(given)
    assert give_back(state, "a") == give_back(state, "b") == ()


def test_a_trial_is_not_moved_twice_nor_in_its_last_epoch_nor_when_it_is_alone() -> None:
    state = pool(2, ("a",))
    assert len(ask(state, "a")) == 2
    state.joined("b")
    assert state.exchange("a", News(KNOWN, epochs={"t0": 3, "t1": 3}), 2).give_back == ()
    state.stop("t1")
    assert give_back(state, "a") == ()
    state.submit(request_of("t2"))
    assert ask(state, "a") == ["t2"]
    assert give_back(state, "a") == ("t2",)
    assert give_back(state, "a") == ()


def test_trials_of_a_resident_signature_come_before_older_ones_of_another() -> None:
    state = pool()
    state.submit(request_of("wide", **{"agent.hidden": 32}))
    state.submit(request_of("same"))
    assert ask(state) == ["same", "wide"]


def test_no_more_signatures_become_resident_than_configured() -> None:
    state = pool(groups=1)
    for index, hidden in enumerate((16, 32)):
        state.submit(request_of(f"t{index}", **{"agent.hidden": hidden}))
    assert ask(state, offer=ROOM) == ["t0"]
    assert ask(state) == []


def test_a_stopped_trial_is_told_once_and_its_lanes_are_given_away_in_the_same_answer() -> None:
    state = pool(2)
    full = Offer(lanes=3, lane_bytes={SIGNATURE: 1}, groups=(SIGNATURE,))
    assert ask(state, offer=full) == ["t0"]
    state.stop("t0")
    orders = state.exchange("a", News(Offer(lanes=0, lane_bytes={SIGNATURE: 1}, groups=(SIGNATURE,))), 1)
    assert (orders.stop, admitted(orders)) == (("t0",), ["t1"])
    assert state.exchange("a", News(KNOWN), 1).stop == ()


def test_reports_come_in_order_and_may_be_asked_for_twice() -> None:
    state = pool(1)
    ask(state)
    assert state.next_report("t0", 0) is None
    first, last = RungReport("t0", 1, 0.5), RungReport("t0", 4, 0.7, final=True)
    tell(state, first, last)
    assert [state.next_report("t0", after) for after in (0, 0, 1, 4)] == [first, first, last, last]


def test_a_rung_told_again_after_a_requeue_is_not_reported_twice() -> None:
    state = pool(1)
    ask(state)
    tell(state, RungReport("t0", 1, 0.5), RungReport("t0", 2, 0.6))
    tell(state, RungReport("t0", 1, 0.5), RungReport("t0", 2, 0.6))
    assert [report.epoch for report in state.entries["t0"].reports] == [1, 2]


def test_a_configuration_at_fault_comes_back_as_an_error_report() -> None:
    state = pool(1)
    bad = request_of("bad")
    state.submit(TrialRequest("bad", {**bad.config, "sede": 1}, bad.rungs))
    state.submit(TrialRequest("rungs", bad.config, (2, 1, 4)))
    wrong, unordered = state.next_report("bad", 0), state.next_report("rungs", 0)
    assert "unknown key 'sede'" in str(wrong)
    assert "rungs [2, 1, 4] must rise" in str(unordered)
    assert ask(state) == ["t0"]


def test_a_live_trial_cannot_be_submitted_again_but_a_stopped_one_can() -> None:
    state = pool(1)
    with pytest.raises(UserError, match="t0 is in the pool already"):
        state.submit(request_of("t0"))
    state.stop("t0")
    state.submit(request_of("t0"))
    assert ask(state) == ["t0"]


def test_asking_for_a_trial_that_nobody_submitted_is_an_error() -> None:
    with pytest.raises(UserError, match="no trial t9"):
        pool().next_report("t9", 0)


def test_trials_of_a_lost_trainer_go_back_to_their_old_places() -> None:
    state = pool(3, ("a", "b"))
    assert ask(state, "a", offer=ROOM, trainers=2) == ["t0"]
    state.lost("a")
    assert ask(state, "b") == ["t0", "t1", "t2"]


def test_a_trainer_given_up_for_dead_is_told_to_leave_and_changes_nothing() -> None:
    state = pool(1, ("a", "b"))
    ask(state, "a")
    old = state.entries["t0"].attempt
    state.lost("a")
    ask(state, "b")
    late = News(ROOM, reports=((old, RungReport("t0", 4, 9.0, final=True)),), returned=((old, "t0"),))
    assert state.exchange("a", late, 1).leave
    tell(state, RungReport("t0", 4, 9.0, final=True), trainer="b", attempt=old)
    assert state.next_report("t0", 0) is None
    assert state.entries["t0"].phase == "training"


def test_a_trial_that_costs_too_many_trainers_fails() -> None:
    state = pool(1, losses=2)
    ask(state)
    state.lost("a")
    state.joined("b")
    ask(state, "b")
    state.lost("b")
    assert "2 trainers died under this trial without finishing epoch 1" in str(state.next_report("t0", 0))


def test_progress_forgives_losses() -> None:
    state = pool(1, losses=2)
    for trainer, epoch in (("b", 1), ("c", 2), ("d", 3)):
        state.joined(trainer)
        ask(state, trainer)
        state.exchange(trainer, News(KNOWN, epochs={"t0": epoch}), 1)
        state.lost(trainer)
    assert state.entries["t0"].phase == "waiting"


def test_a_returned_trial_waits_until_somebody_has_room() -> None:
    state = pool(2, ("a", "b"))
    assert ask(state) == ["t0", "t1"]
    returned = News(Offer(lanes=0), returned=((state.entries["t1"].attempt, "t1"),))
    assert state.exchange("a", returned, 1) == Orders()
    assert state.entries["t1"].phase == "waiting"
    assert ask(state, "b", trainers=2) == ["t1"]


def test_draining_parks_what_waits_and_lets_trainers_leave() -> None:
    state = pool(2)
    ask(state, offer=ROOM)
    state.drain()
    assert state.next_report("t1", 0) == RungReport("t1", 0, None, parked=True)
    assert state.exchange("a", News(KNOWN), 1).leave
    assert state.training == ("t0",)
    tell(state, RungReport("t0", 1, None, parked=True))
    assert state.training == ()


def test_what_a_trainer_does_not_park_in_time_is_parked_for_it() -> None:
    state = pool(1)
    ask(state)
    state.drain()
    assert state.give_up() == ("t0",)
    assert state.next_report("t0", 0) == RungReport("t0", 0, None, parked=True)


def test_tracking_is_released_up_to_the_next_rung_nobody_has_judged() -> None:
    state = pool(1)
    ask(state)
    state.exchange("a", News(KNOWN, epochs={"t0": 4}), 1)
    state.next_report("t0", 1)
    assert state.exchange("a", News(KNOWN), 1).passed == {"t0": 1}
    state.lost("a")
    state.joined("b")
    (admission,) = state.exchange("b", News(KNOWN), 1).admit
    assert (admission.passed, admission.recorded) == (1, 2)


def test_a_trial_is_due_from_its_report_until_it_is_to_go_on() -> None:
    state = pool(2, losses=1)
    ask(state)
    assert state.due() == ()
    tell(state, RungReport("t0", 1, 0.5))
    assert state.due() == ("t0",)
    state.go_on("t0", 1)
    assert state.due() == ()
    assert state.exchange("a", News(KNOWN), 1).passed == {"t0": 1}
    tell(state, RungReport("t0", 4, 0.7, final=True))
    state.go_on("t0", 4)
    assert state.due() == ("t0",)  # what has ended is told until it is stopped
    state.stop("t0")
    assert state.due() == ()
    state.go_on("t0", 4)  # a late word does no harm


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["ask a", "ask b", "lose", "finish", "fail", "stop"]), max_size=40))
def test_whatever_happens_every_trial_ends_once_and_is_held_by_one_trainer(moves: list[str]) -> None:
    state, names = pool(6, ("a0", "b0"), losses=1_000), count(1)
    live = {"a": "a0", "b": "b0"}
    ends: Counter[str] = Counter()
    stopped: set[str] = set()
    for move in [*moves, *["ask a", "ask b", "finish"] * 20]:
        held = [entry for entry in state.entries.values() if entry.phase == "training"]
        if move.startswith("ask"):
            ask(state, live[move[-1]], trainers=2)
        elif move == "lose":
            state.lost(live["a"])
            live["a"] = f"a{next(names)}"
            state.joined(live["a"])
        elif held and move in ("finish", "fail"):
            entry = held[0]
            report = RungReport(entry.request.trial_id, 4, 1.0, final=True)
            if move == "fail":
                report = RungReport(entry.request.trial_id, 2, None, error="not finite")
            assert entry.trainer is not None
            tell(state, report, trainer=entry.trainer)
            ends[entry.request.trial_id] += 1
        elif held and move == "stop":
            stopped.add(held[0].request.trial_id)
            state.stop(held[0].request.trial_id)
        assert all((entry.trainer in live.values()) == (entry.phase == "training") for entry in state.entries.values())
    assert set(ends.values()) <= {1}
    assert set(ends) | stopped == {f"t{index}" for index in range(6)}


def test_what_trainers_said_of_themselves_outlives_them() -> None:
    state = pool(trainers=("a", "b"))
    state.exchange("a", News(KNOWN, place="host:1", device="GPU 0", busy=0.25), 2)
    state.exchange("b", News(KNOWN, place="host:2", device="GPU 1", busy=0.5), 2)
    state.exchange("a", News(KNOWN), 2)  # without news of itself
    state.lost("a")
    assert state.status()["trainers"] == {"b": 0}
    assert state.status()["accounts"] == {
        "a": {"place": "host:1", "device": "GPU 0", "busy": 0.25, "gone": True},
        "b": {"place": "host:2", "device": "GPU 1", "busy": 0.5, "gone": False},
    }


@pytest.mark.parametrize(("epoch", "refilled"), [(1, ["t2"]), (3, []), (None, [])])
def test_lanes_of_a_stopped_trial_are_given_out_once(epoch: int | None, refilled: list[str]) -> None:
    """The trainer's offer has them already where the trial is in its last epoch of four, or has ended meanwhile."""
    state = pool(3)

    def offer(lanes: int) -> Offer:
        return Offer(lanes=lanes, lane_bytes={SIGNATURE: 10}, groups=(SIGNATURE,))

    assert ask(state, offer=offer(2 * LANES)) == ["t0", "t1"]
    state.stop("t0")
    epochs = {"t1": 1} if epoch is None else {"t0": epoch, "t1": 1}
    orders = state.exchange("a", News(offer(0), epochs=epochs), 1)
    assert orders.stop == ("t0",)
    assert admitted(orders) == refilled
