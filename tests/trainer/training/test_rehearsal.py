"""What a rehearsal does to a lane group's tensors is undone, the ring's rows included."""

from __future__ import annotations

import pytest
import torch

from trainer.lanes.tree import flatten, map_tensors
from trainer.training.capture import Parts, Steps
from trainer.training.group import LaneGroup
from trainer.training.prepare import Prepared
from trainer.training.rehearsal import undone

from .conftest import CPU, tiny


def trained(prepared: Prepared, epochs: int) -> tuple[LaneGroup, Steps]:
    """Two trials that joined at different epochs, so that their rings' cursors differ."""
    group = LaneGroup(tiny(), prepared, CPU)
    group.admit("a", tiny(), folds=[0])
    group.advance()
    group.admit("b", tiny(seed=2), folds=[1])
    for _ in range(epochs):
        group.advance()
    return group, Steps(Parts(group.setting), group.state, group.validation_steps, capture=False)


@pytest.mark.parametrize("epochs", [1, 3])
def test_steps_inside_leave_nothing_behind(prepared: Prepared, epochs: int) -> None:
    group, steps = trained(prepared, epochs)
    before = map_tensors(torch.clone, group.state)
    with undone(group.state, 3):
        steps.collect(3)
        steps.learn(2)
        changed = differing(before, group.state)
    assert {"replay.ring.bar_LTE", "replay.ring.cursor_L", "params_LD", "counters.learn_L"} <= set(changed)
    assert differing(before, group.state) == []


def test_what_an_exception_breaks_off_is_undone_too(prepared: Prepared) -> None:
    group, steps = trained(prepared, 1)
    before = map_tensors(torch.clone, group.state)

    def broken() -> None:
        with undone(group.state, 1):
            steps.collect(1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert differing(before, group.state) == []


def test_more_steps_than_the_ring_is_long_are_undone(prepared: Prepared) -> None:
    group, steps = trained(prepared, 1)
    more = group.state.replay.ring.length + 1
    before = map_tensors(torch.clone, group.state)
    with undone(group.state, more):
        steps.collect(more)
    assert differing(before, group.state) == []


def differing(one: object, other: object) -> list[str]:
    named = flatten(other)
    return [name for name, tensor in flatten(one).items() if not torch.equal(tensor, named[name])]
