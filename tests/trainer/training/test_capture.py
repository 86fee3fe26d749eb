"""Captured steps (S43): replays do what eager steps do, draw afresh and hear of changed hyperparameters."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from trainer.evaluation.metrics import BacktestMetrics
from trainer.lanes.tree import build, flatten, map_tensors, names_of
from trainer.training.capture import LADDER, Parts, Steps, _static_values, capacity_of, matmul_precision
from trainer.training.group import LaneGroup
from trainer.training.lane_state import LaneState
from trainer.training.prepare import Prepared, prepare

from .conftest import CPU, tiny
from .test_independence import neighbours

GPU = torch.device("cuda")
cuda = pytest.mark.cuda
LANES = 8


def test_a_gpu_group_takes_the_next_size_of_the_ladder_and_a_cpu_group_none() -> None:
    assert [capacity_of(lanes, GPU) for lanes in (0, 1, 2, 8, 9, 97, 129, 161)] == [0, 1, 8, 8, 16, 128, 160, 320]
    assert [capacity_of(lanes, CPU) for lanes in (0, 3, 129)] == [0, 3, 129]
    assert sorted(LADDER) == list(LADDER)


def test_code_is_looked_for_at_the_precision_that_it_is_made_for(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def is_kept(_argument: object, _name: str) -> bool:
        seen.append(torch.get_float32_matmul_precision())
        return True

    monkeypatch.setattr("trainer.training.capture.is_kept", is_kept)
    monkeypatch.setattr(Parts, "_compiles", True)
    config = tiny(**{"training.precision": "bf16"})
    group = LaneGroup(config, prepared, CPU)
    group.admit("a", config)
    steps = Steps(Parts(group.setting), group.state, group.validation_steps, capture=False)
    assert steps.kept
    with matmul_precision("bf16"):
        assert seen == [torch.get_float32_matmul_precision()] * 3
    assert seen[0] != torch.get_float32_matmul_precision()


def test_steps_on_the_cpu_backtest_like_the_eager_rollout(prepared: Prepared) -> None:
    group = LaneGroup(tiny(), prepared, CPU)
    group.admit("a", tiny())
    group.advance()
    run = Steps(Parts(group.setting), group.state, group.validation_steps, capture=False).rollout()
    assert_equal(run, group.greedy_rollout(group.state))


def test_captured_steps_are_summed_up_to_what_eager_ones_are(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def validations(*, captured: bool) -> list[BacktestMetrics | None]:
        monkeypatch.setattr(Steps, "captured", captured)
        group = LaneGroup(tiny(), prepared, CPU)
        group.admit("a", tiny())
        group.admit("b", tiny(seed=2), folds=[1])
        group.advance()
        return [fold.validation for report in group.advance() for fold in report.folds]

    ours, theirs = validations(captured=True), validations(captured=False)
    assert len(ours) == 4
    for one, other in zip(ours, theirs, strict=True):
        assert one is not None
        assert other is not None
        assert one.flag == other.flag
        numbers = [[value for name, value in asdict(each).items() if name != "flag"] for each in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-9, abs=1e-12)


def test_what_is_compiled_can_be_put_together_from_the_type_of_its_result(prepared: Prepared) -> None:
    group = LaneGroup(tiny(), prepared, CPU)
    group.admit("a", tiny())
    group.advance()
    steps = Steps(Parts(group.setting), group.state, group.validation_steps, capture=False)
    steps.rollout()
    assert steps._play is not None
    for result in (
        steps.parts._trade(steps._work),
        steps.parts._improve(steps._work),
        steps.parts._bar(steps._play),
    ):
        assert names_of(type(result)) == list(flatten(result))
        assert_equal(build(type(result), flatten(result)), result)


def test_what_is_compiled_is_told_apart_by_static_values_alone(prepared: Prepared) -> None:
    def about(**changes: object) -> str:
        return _static_values(LaneGroup(tiny(**changes), prepared, CPU).setting)

    assert about() == about(**{"training.epochs": 3, "agent.lr": 0.1})
    different = [about(), about(**{"training.window": 4}), about(**{"agent.hidden": 24}), about(**{"replay.n_step": 3})]
    assert len(set(different)) == len(different)
    assert "tensor" not in about()


@pytest.fixture(scope="module")
def on_gpu() -> Prepared:
    return prepare(tiny(), GPU)


def state_of(prepared: Prepared, **changes: object) -> tuple[LaneGroup, LaneState]:
    """A full group of lanes that have collected and learned for an epoch."""
    group = LaneGroup(tiny(**changes), prepared, GPU)
    for index, config in enumerate(neighbours(LANES)):
        group.admit(str(index), config.model_copy(update={"training": group.setting.training}), folds=[1])
    group.advance()
    return group, group.state


def assert_equal(one: object, other: object) -> None:
    named = flatten(other)
    assert [name for name, tensor in flatten(one).items() if not torch.equal(tensor, named[name])] == []


@cuda
def test_replays_have_the_bits_of_eager_steps(on_gpu: Prepared) -> None:
    group, state = state_of(on_gpu)
    copy = map_tensors(torch.clone, state)
    captured = Steps(Parts(group.setting), state, group.validation_steps, capture=True)
    eager = Steps(Parts(group.setting), copy, group.validation_steps, capture=False)
    assert_equal(state, copy)  # capturing changed nothing
    for steps in (captured, eager):
        with_precision(group, steps)
    assert_equal(state, copy)
    assert_equal(captured.rollout(), eager.rollout())


def with_precision(group: LaneGroup, steps: Steps) -> None:
    with matmul_precision(group.setting.training.precision):
        steps.collect(4)
        steps.learn(4)


@cuda
def test_each_replay_draws_fresh_numbers(on_gpu: Prepared) -> None:
    group, state = state_of(on_gpu)
    steps = Steps(Parts(group.setting), state, group.validation_steps, capture=True)
    with torch.no_grad():
        state.agent.epsilon_start_L.fill_(1.0)
        state.agent.epsilon_end_L.fill_(1.0)
    steps.collect(8)
    ring = state.replay.ring
    actions = ring.action_LTE4[:, 8:16].cpu()  # the first epoch filled eight rows
    assert len({actions[:, step].numpy().tobytes() for step in range(8)}) == 8
    assert len({actions[lane].numpy().tobytes() for lane in range(LANES)}) == LANES


@cuda
def test_a_hyperparameter_changed_between_replays_takes_effect(on_gpu: Prepared) -> None:
    group, state = state_of(on_gpu)
    steps = Steps(Parts(group.setting), state, group.validation_steps, capture=True)
    state.agent.lr_L[3] = 0.0
    before = state.params_LD.clone()
    steps.learn(2)
    moved_L = (state.params_LD != before).any(-1).tolist()
    assert moved_L == [lane != 3 for lane in range(LANES)]


@cuda
def test_lanes_that_fit_join_and_leave_without_another_capture(on_gpu: Prepared) -> None:
    group = LaneGroup(tiny(), on_gpu, GPU)
    group.admit("a", tiny(), folds=[0, 1])
    group.advance()
    assert group.capacity == 8
    first = group._steps[8]
    group.admit("b", tiny(seed=3))
    group.advance()
    group.evict("a")
    group.admit("c", tiny(seed=4))
    reports = group.advance()
    assert [report.trial_id for report in reports] == ["b", "c"]
    assert group._steps[8] is first
    group.evict("b")
    group.admit("d", tiny(seed=5), folds=[0])
    assert group.lanes == 4
    group.evict("c")
    group.advance()
    assert group.capacity == 1


@cuda
@pytest.mark.parametrize(("precision", "loose"), [("float32", 1e-3), ("bf16", 0.1)])
def test_a_compiled_step_agrees_with_the_eager_one(on_gpu: Prepared, precision: str, loose: float) -> None:
    """One step from the same state each time: a flipped action or draw, which rounding can cause, parts longer runs.

    The gradient of each lane is read off Adam's first moment; one lane of eight may have drawn another transition.
    """
    group, state = state_of(on_gpu, **{"training.precision": precision})
    compiled = group.setting.training.model_copy(update={"compile": True})
    parts = Parts(replace(group.setting, training=compiled))
    for _ in range(3):
        copy, before_LD = map_tensors(torch.clone, state), state.adam.moment1_LD.clone()
        fast = Steps(parts, copy, group.validation_steps, capture=True)
        slow = Steps(Parts(group.setting), state, group.validation_steps, capture=False)
        with matmul_precision(precision):
            for steps in (fast, slow):
                steps.learn(1)
        ours_LD, theirs_LD = (s.adam.moment1_LD - 0.9 * before_LD for s in (copy, state))
        error_L = (ours_LD - theirs_LD).norm(dim=-1) / theirs_LD.norm(dim=-1)
        assert (error_L < loose).sum() >= LANES - 1, error_L.tolist()
        slot = int(state.replay.ring.cursor_L[0])
        with matmul_precision(precision):
            for steps in (fast, slow):
                steps.collect(1)
        same = copy.replay.ring.action_LTE4[:, slot] == state.replay.ring.action_LTE4[:, slot]
        assert same.double().mean() > 0.99


@cuda
def test_bf16_learns_like_float32_over_a_few_steps(on_gpu: Prepared) -> None:
    def loss(precision: str) -> torch.Tensor:
        group, _ = state_of(on_gpu, **{"training.precision": precision})
        return torch.tensor([next(iter(r.folds)).training["loss"] for r in group.advance()])

    torch.testing.assert_close(loss("bf16"), loss("float32"), atol=5e-2, rtol=5e-2)
