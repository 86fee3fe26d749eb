"""All lanes and episodes of a task as one Gymnasium vector environment, four action branches each.

Sub-environment ``lane * episodes + episode``. A finished episode restarts in the next step (Gymnasium's NEXT_STEP),
whose action it ignores and whose reward is 0.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from trainer.env.actions import BRANCHES
from trainer.env.state import EnvState
from trainer.env.step import env_step
from trainer.env.task import Task, begin, look, observation_limit, observation_size, start_bars
from trainer.lanes.tree import map_tensors

Observed = NDArray[np.float32]


class TradingVectorEnv(VectorEnv[Observed, NDArray[np.int64], NDArray[Any]]):
    """``num_envs`` is lanes x ``episodes``; observations are ``[num_envs, W * F + P]``."""

    def __init__(self, task: Task, episodes: int) -> None:
        limit = observation_limit(task)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self._task = task
        self._starts = start_bars(task)
        self._shape = (task.params.capital_L.shape[0], episodes)
        self._state: EnvState | None = None
        self.num_envs = self._shape[0] * episodes
        self.single_observation_space = Box(-limit, limit, (observation_size(task),), np.float32)
        self.single_action_space = MultiDiscrete(np.array(BRANCHES))
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Start every episode anew; ``options`` may give ``bar`` and ``mirror`` for all of them."""
        super().reset(seed=seed[0] if isinstance(seed, list) else seed)
        self._state = self._fresh(options)
        return self._look(self._state), self._report(self._state)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Observed, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        over_LE = self._state.done_LE
        device = over_LE.device
        action_LE4 = torch.as_tensor(actions, dtype=torch.int64, device=device).reshape(*self._shape, len(BRANCHES))
        step = env_step(self._task.params, self._task.market, self._state, action_LE4)
        fresh = self._fresh(None)

        def restart(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
            return torch.where(over_LE.unsqueeze(-1) if old.dim() == 3 else over_LE, new, old)

        self._state = map_tensors(restart, fresh, step.state)
        return (
            self._look(self._state),
            step.reward_LE.flatten().cpu().numpy(),
            step.terminated_LE.flatten().cpu().numpy(),
            step.truncated_LE.flatten().cpu().numpy(),
            self._report(self._state),
        )

    def _fresh(self, options: dict[str, Any] | None) -> EnvState:
        asked = {} if options is None else options
        device = self._task.market.close_N.device
        bars = self.np_random.choice(self._starts, self._shape)
        mirrors = self.np_random.integers(2, size=self._shape).astype(bool) & self._task.mirror
        bar_LE = torch.from_numpy(np.full(self._shape, asked.get("bar", bars), np.int64)).to(device)
        mirror_LE = torch.from_numpy(np.full(self._shape, asked.get("mirror", mirrors), bool)).to(device)
        return begin(self._task, bar_LE, mirror_LE)

    def _look(self, state: EnvState) -> Observed:
        seen: Observed = look(self._task, state).flatten(0, 1).cpu().numpy()
        return seen

    def _report(self, state: EnvState) -> dict[str, Any]:
        return {
            "bar": state.bar_LE.flatten().cpu().numpy(),
            "equity": state.equity_LE.flatten().cpu().numpy(),
            "position": state.position_LE.flatten().cpu().numpy(),
            "hold_only": self._task.market.flat_N[state.bar_LE].flatten().cpu().numpy(),
        }
