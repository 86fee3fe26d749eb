"""One episode at a time as a Gymnasium environment with 108 flat actions, for agents like stable-baselines3's.

A thin adapter: every bar is :func:`trainer.env.step.env_step` of one lane and one episode.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from trainer.env.actions import ACTIONS, DIRECTION, Direction, unflatten_action
from trainer.env.state import EnvState
from trainer.env.step import env_step
from trainer.env.task import Task, begin, look, observation_limit, observation_size, start_bars

Observed = NDArray[np.float32]


class TradingEnv(gymnasium.Env[Observed, np.int64]):
    """Lane 0 of a task. Observations are the window's features, then the portfolio's, as one vector.

    ``reset(options={"bar": 120, "mirror": False})`` starts where asked; else start and mirror are drawn.
    """

    def __init__(self, task: Task) -> None:
        limit = observation_limit(task)
        self.metadata = {"render_modes": []}
        self.observation_space = Box(-limit, limit, (observation_size(task),), np.float32)
        self.action_space = Discrete(ACTIONS)
        self._task = task
        self._starts = start_bars(task)
        self._state: EnvState | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        super().reset(seed=seed)
        drawn = {
            "bar": self.np_random.choice(self._starts),
            "mirror": self._task.mirror and bool(self.np_random.integers(2)),
        }
        chosen = drawn if options is None else {**drawn, **options}
        state = begin(self._task, torch.tensor([[int(chosen["bar"])]]), torch.tensor([[bool(chosen["mirror"])]]))
        self._state = state
        return self._look(state), self._report(state)

    def step(self, action: np.int64) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        taken = unflatten_action(torch.tensor([[int(action)]]))
        step = env_step(self._task.params, self._task.market, self._state, taken)
        self._state = step.state
        info = self._report(step.state) | {"cost": step.info.cost_LE.item(), "turnover": step.info.turnover_LE.item()}
        reward, terminated, truncated = step.reward_LE.item(), step.terminated_LE.item(), step.truncated_LE.item()
        return self._look(step.state), float(reward), bool(terminated), bool(truncated), info

    def action_masks(self) -> NDArray[np.bool_]:
        """``[108]``, false where an action would be ignored (the name that maskable agents ask for)."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset() before action_masks()")
        hold_only = bool(self._task.market.flat_N[self._state.bar_LE])
        directions = unflatten_action(torch.arange(ACTIONS))[:, DIRECTION].numpy()
        mask: NDArray[np.bool_] = (directions == Direction.HOLD) | (not hold_only)
        return mask

    def _look(self, state: EnvState) -> Observed:
        seen: Observed = look(self._task, state)[0, 0].cpu().numpy()
        return seen

    def _report(self, state: EnvState) -> dict[str, Any]:
        return {
            "bar": int(state.bar_LE),
            "equity": float(state.equity_LE),
            "position": float(state.position_LE),
            "hold_only": bool(self._task.market.flat_N[state.bar_LE]),
        }
