"""The alternatives an agent has to beat: who acts when, on hand-worked slots."""

from __future__ import annotations

import torch

from trainer.env.actions import Direction
from trainer.env.state import EnvState
from trainer.evaluation.backtest import Happened, Rollout, Slots, joined
from trainer.evaluation.baselines import buy_and_hold, displaced


def slots(*lengths_by_lane: list[int]) -> Slots:
    """Slots of these lengths, one list per lane; a length of 0 is an empty slot."""
    end_LV = torch.tensor(lengths_by_lane)
    return Slots(torch.zeros_like(end_LV), end_LV)


def run_of(slots_: Slots, steps: int) -> Rollout:
    """A run whose action names its place: columns are step, lane, slot, 0."""
    lanes, width = slots_.start_LV.shape
    zero = torch.zeros(steps, lanes, width, dtype=torch.float64)
    grid = torch.meshgrid(torch.arange(steps), torch.arange(lanes), torch.arange(width), indexing="ij")
    action = torch.stack((*grid, torch.zeros_like(grid[0])), dim=-1).to(torch.uint8)
    happened = Happened(zero.bool(), zero.long(), zero, zero, zero, action)
    empty = torch.zeros(lanes, width)
    return joined(happened, EnvState(**{name: empty for name in EnvState.__dataclass_fields__}))


def played(slots_: Slots, steps: int, turns: int) -> torch.Tensor:
    """Actions of all random policies, ``[S, R, V, 4]``."""
    act = displaced(run_of(slots_, steps), slots_, turns)
    unused: EnvState = None  # type: ignore[assignment]
    return torch.stack([act(step, unused, lambda: None) for step in range(steps)])  # type: ignore[arg-type, return-value]


def test_a_random_policy_plays_each_session_as_the_agent_played_another() -> None:
    actions = played(slots([9, 9, 9, 0], [9, 9, 0, 0]), steps=2, turns=3)
    lane_0, lane_1 = actions[:, :2], actions[:, 2:]
    assert lane_0[1, 0, :3, 2].tolist() == [1, 2, 0]  # one third of three slots further on
    assert lane_0[1, 1, :3, 2].tolist() == [2, 0, 1]
    assert lane_1[1, :, :2, 2].tolist() == [[1, 0], [1, 0]]
    assert (lane_0[..., 1] == 0).all()
    assert (lane_1[..., 1] == 1).all()
    assert (actions[1, ..., 0] == 1).all()  # at the same step of the session


def test_a_random_policy_of_one_long_range_plays_its_actions_at_another_time() -> None:
    actions = played(slots([4, 0]), steps=4, turns=2)
    assert actions[:, 0, 0, 0].tolist() == [2, 3, 0, 1]


def test_no_session_is_played_as_itself() -> None:
    actions = played(slots([5] * 7), steps=1, turns=17)
    assert (actions[0, ..., 2] != torch.arange(7)).all()


def test_buy_and_hold_buys_once() -> None:
    act = buy_and_hold(slots([3, 3]))
    unused: EnvState = None  # type: ignore[assignment]
    see = lambda: None  # noqa: E731
    assert act(0, unused, see)[0, :, 0].tolist() == [Direction.LONG, Direction.LONG]  # type: ignore[arg-type]
    assert act(1, unused, see)[0, :, 0].tolist() == [Direction.HOLD, Direction.HOLD]  # type: ignore[arg-type]
