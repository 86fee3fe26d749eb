"""What collecting stores: the same trades as a backtest makes (S7), mirrored where the profile says so (S12)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.evaluation.backtest import make_slots, rollout
from trainer.lanes.tree import map_tensors, take
from trainer.training.group import LaneGroup
from trainer.training.prepare import Prepared

from .conftest import CPU, tiny

SESSION = 24
PLAIN = {"env.churn_penalty_scale": 0.0, "env.holding_cost_rate": 0.0, "training.collect_steps": SESSION}


def collected(prepared: Prepared, epochs: int = 1, **changes: Any) -> LaneGroup:
    config = tiny(**{**PLAIN, **changes})
    group = LaneGroup(config, prepared, CPU)
    group.admit("subject", config, folds=[1])
    for _ in range(epochs):
        group.advance()
    return group


def test_the_same_actions_give_the_same_equity_path_in_training_and_in_validation(prepared: Prepared) -> None:
    """First epoch, one lane: episodes start with their session in step 1 and are over when the ring stops."""
    fresh, group = (collected(prepared, epochs, **{"training.mirror": "off"}) for epochs in (0, 1))
    ring = group.state.replay.ring
    steps = SESSION - 1
    bar_TE, action_TE4 = ring.bar_LTE[0, 1 : steps + 1].long(), ring.action_LTE4[0, 1 : steps + 1].long()
    first_E = bar_TE[0]
    assert torch.equal(bar_TE, first_E + torch.arange(steps)[:, None])  # whole sessions, step by step
    slots = make_slots([[(int(bar), int(bar) + SESSION) for bar in first_E]], len(first_E), CPU)
    params = map_tensors(torch.clone, group.state.env_params)
    params.health_L.copy_(fresh.state.env_params.health_L)  # as it was while the first epoch collected

    def replayed(step: int, *_: object) -> Tensor:
        return action_TE4[step].unsqueeze(0)

    run = rollout(params, prepared.market, group.state.fold.normaliser, slots, steps, 1, replayed)
    assert bool(run.live_SLV.all())
    reward_TE = ring.reward_LTE[0, 1 : steps + 1]
    unit = params.reward_unit_L[0]
    torch.testing.assert_close((run.change_SLV[:, 0] / unit).float(), reward_TE, rtol=1e-6, atol=1e-7)
    assert bool((run.notional_SLV > 0.0).any())
    assert bool((run.change_SLV != 0.0).any())


def test_the_kelly_cap_of_training_acts_in_validation_too(prepared: Prepared) -> None:
    """The same comparison would fail if one of the two callers knew no health: the cap doubles with it."""
    group = collected(prepared, **{"training.mirror": "off"})
    slots = map_tensors(lambda t: t, group.state.fold.validation)
    params = map_tensors(torch.clone, group.state.env_params)
    market_long = torch.tensor([2, 2, 0, 2])

    def long(_step: int, state: Any, _see: object) -> Tensor:
        return market_long.expand(*state.bar_LE.shape, 4)

    held = {}
    for health in (0.0, 1.0):
        params.health_L.fill_(health)
        held[health] = rollout(params, prepared.market, group.state.fold.normaliser, slots, 2, 1, long).held_SLV[0]
    assert bool((held[1.0] >= held[0.0]).all())
    torch.testing.assert_close(held[1.0].max(), 2.0 * held[0.0].max())


@pytest.mark.parametrize(("rule", "share"), [("off", 0.0), ("episode", 0.5)])
def test_mirrored_episodes_are_as_many_as_the_profile_says(prepared: Prepared, rule: str, share: float) -> None:
    ring = collected(prepared, epochs=3, **{"training.mirror": rule}).state.replay.ring
    started = ring.mirror_LTE[0, 1 : 3 * SESSION].float()
    assert float(started.mean()) == pytest.approx(share, abs=0.15)


def test_an_episode_keeps_its_side_of_the_mirror(prepared: Prepared) -> None:
    ring = collected(prepared).state.replay.ring
    mirror_TE, cut_TE = ring.mirror_LTE[0, 1:SESSION], ring.cut_LTE[0, 1:SESSION]
    goes_on_TE = ~cut_TE[:-1]
    assert torch.equal(mirror_TE[1:][goes_on_TE], mirror_TE[:-1][goes_on_TE])


def test_by_epoch_every_other_epoch_is_mirrored(prepared: Prepared) -> None:
    """An episode keeps the side it began on, so an epoch's side is settled once its first episodes are over."""
    steps = 2 * SESSION
    changes = {"training.mirror": "epoch", "training.collect_steps": steps, "replay.capacity": 64 * 4 * steps}
    mirror_T = collected(prepared, epochs=4, **changes).state.replay.ring.mirror_LTE[0].float().mean(-1)
    assert [float(mirror_T[epoch * steps + SESSION + 2]) for epoch in range(4)] == [0.0, 1.0, 0.0, 1.0]


def test_validation_is_never_mirrored(prepared: Prepared) -> None:
    group = collected(prepared, epochs=2, **{"training.mirror": "epoch"})
    assert not bool(group.greedy_rollout(group.state).final.mirror_LE.any())


def test_no_step_is_taken_outside_the_train_range(prepared: Prepared) -> None:
    group = collected(prepared, epochs=3)
    ring, fold = group.state.replay.ring, prepared.folds[1]
    filled = take(ring.bar_LTE, torch.tensor([0]))[0, 1 : 3 * SESSION]
    assert int(filled.min()) >= fold.train.start
    assert int(ring.next_bar_LTE[0, 1 : 3 * SESSION].max()) < fold.train.end
