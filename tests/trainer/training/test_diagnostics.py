"""Gradient norms by stage and the first tensor that is not finite (S45): right where on, free where off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trainer.agent.network import layout
from trainer.config import TrialConfig
from trainer.errors import UserError
from trainer.lanes.ops import lane_norm
from trainer.lanes.tree import flatten, map_tensors
from trainer.training import diagnostics
from trainer.training.diagnostics import first_not_finite, gradient_norms
from trainer.training.group import LaneGroup
from trainer.training.lane_state import LaneState
from trainer.training.learn import Narrow, draw, gradient
from trainer.training.prepare import Prepared

from .conftest import CPU, tiny


def group_of(prepared: Prepared, config: TrialConfig, epochs: int = 1) -> LaneGroup:
    group = LaneGroup(config, prepared, CPU)
    group.admit("subject", config)
    for _ in range(epochs):
        group.advance()
    return group


def assert_same_bits(one: LaneState, other: LaneState) -> None:
    others = flatten(other)
    assert [name for name, tensor in flatten(one).items() if not torch.equal(tensor, others[name])] == []


def test_the_norms_by_stage_make_up_the_gradients_norm(prepared: Prepared) -> None:
    group = group_of(prepared, tiny())
    norms = gradient_norms(group.setting, group.state)
    setting, state = group.setting, group.state
    _, grad_LD = gradient(setting, state, Narrow.of(setting, state), draw(setting, state))
    assert set(norms) == {f"gradient/{name.partition('.')[0]}" for name in layout(group.setting.shape).names}
    assert len(norms) >= 4
    whole_L = sum((norm_L.square() for norm_L in norms.values()), torch.zeros(3, dtype=torch.float64)).sqrt()
    torch.testing.assert_close(whole_L, lane_norm(grad_LD).double(), rtol=1e-5, atol=0.0)
    assert all(bool((norm_L > 0.0).all()) for norm_L in norms.values())


def test_a_stage_behind_zero_weights_gets_no_gradient(prepared: Prepared) -> None:
    """With the head's weights at zero in lane 1, nothing flows back to what lies before it, in that lane alone."""
    group = group_of(prepared, tiny())
    for name, view in layout(group.setting.shape).views(group.state.params_LD).items():
        if name.startswith(("value", "advantage", "head")):
            view[1].zero_()
    norms = gradient_norms(group.setting, group.state)
    before = [norm_L for stage, norm_L in norms.items() if stage in ("gradient/bottleneck", "gradient/bar_bias")]
    assert before
    for norm_L in before:
        assert norm_L[1] == 0.0
        assert norm_L[0] > 0.0


def test_norms_are_reported_where_they_are_asked_for_and_change_no_bit(prepared: Prepared) -> None:
    off, on = group_of(prepared, tiny()), group_of(prepared, tiny(**{"training.gradient_norms": True}))
    (off_report,), (on_report,) = off.advance(), on.advance()
    assert_same_bits(off.state, on.state)
    extra = set(on_report.metrics()) - set(off_report.metrics())
    assert {name.partition("/")[2].partition("/")[0] for name in extra} == {"gradient"}
    assert {name: value for name, value in on_report.metrics().items() if name not in extra} == off_report.metrics()


def test_switched_off_nothing_is_called(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*_: object) -> object:
        raise AssertionError("called")

    monkeypatch.setattr("trainer.training.group.gradient_norms", called)
    monkeypatch.setattr("trainer.training.group.learn_watched", called)
    group_of(prepared, tiny())
    for switch in ("training.gradient_norms", "training.find_not_finite"):
        with pytest.raises(AssertionError, match="called"):
            group_of(prepared, tiny(**{switch: True}))


def test_watching_a_healthy_trial_changes_no_bit(prepared: Prepared) -> None:
    plain, watched = group_of(prepared, tiny()), group_of(prepared, tiny(**{"training.find_not_finite": True}))
    (plain_report,), (watched_report,) = plain.advance(), watched.advance()
    assert watched_report.metrics() == plain_report.metrics()
    assert_same_bits(plain.state, watched.state)


def poison_weight(state: LaneState) -> Tensor:
    return state.params_LD[1]


def poison_support(state: LaneState) -> Tensor:
    return state.support.atoms_LA[1]


def poison_target(state: LaneState) -> Tensor:
    return state.target_LD[1]


@pytest.mark.parametrize(
    ("poisoned", "name"),
    [(poison_weight, "params_LD"), (poison_target, "target_LD"), (poison_support, "support.atoms_LA")],
)
def test_the_first_tensor_that_is_not_finite_is_named_with_its_trial_and_fold(
    prepared: Prepared, poisoned: Callable[[LaneState], Tensor], name: str
) -> None:
    group = group_of(prepared, tiny(**{"training.find_not_finite": True, "agent.support_start": "cold"}))
    poisoned(group.state).fill_(float("nan"))
    with pytest.raises(UserError, match=rf"subject, fold 1: {name} is the first tensor .* before the first learn step"):
        group.advance()


def test_what_goes_wrong_inside_a_step_is_named_by_what_it_was(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of(prepared, tiny(**{"training.find_not_finite": True}))
    real = diagnostics.gradient

    def exploding(*arguments: object) -> object:
        out, grad_LD = real(*arguments)  # type: ignore[arg-type]
        layout(group.setting.shape).views(grad_LD)["bottleneck"][2] = float("inf")
        return out, grad_LD

    monkeypatch.setattr(diagnostics, "gradient", exploding)
    message = r"subject, fold 2: gradient of bottleneck is the first tensor .* in learn step 1 of the epoch"
    with pytest.raises(UserError, match=message):
        group.advance()


def test_only_rows_with_an_owner_are_looked_at(prepared: Prepared) -> None:
    state = map_tensors(torch.clone, group_of(prepared, tiny()).state)
    state.params_LD[0, 5] = float("inf")
    named = [("params", state.params_LD), ("steps", state.counters.epoch_L)]
    assert first_not_finite(iter(named), {0: "a", 1: "b"}) == ("params", 0)
    assert first_not_finite(iter(named), {1: "b", 2: "c"}) is None
