"""The trading environment as stable-baselines3's kind of vector environment, so that its agents run at their fastest.

What: the same :func:`trainer.env.step.env_step` and observations as the Gymnasium adapters, for many episodes at once.
Stable-baselines3 wants finished episodes restarted within the step, with the true last observation beside it, where
Gymnasium's vector environments restart in the next one; hence this bridge.

Legend: E parallel episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from trainer.env.actions import ACTIONS, unflatten_action
from trainer.env.state import EnvState
from trainer.env.step import env_step
from trainer.env.task import Task, begin, look, observation_limit, observation_size, start_bars
from trainer.lanes.tree import map_tensors


class PeerVectorEnv(VecEnv):
    """Lane 0 of a task, ``episodes`` at a time, 108 flat actions."""

    def __init__(self, task: Task, episodes: int, seed: int) -> None:
        limit = observation_limit(task)
        super().__init__(episodes, Box(-limit, limit, (observation_size(task),), np.float32), Discrete(ACTIONS))
        self._task = task
        self._starts = start_bars(task)
        self._random = np.random.default_rng(seed)
        self._actions = np.zeros(episodes, np.int64)
        self._state = self._fresh()

    def reset(self) -> NDArray[np.float32]:
        self._state = self._fresh()
        return self._look()

    def step_async(self, actions: NDArray[np.int64]) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        step = env_step(
            self._task.params, self._task.market, self._state, unflatten_action(torch.from_numpy(self._actions)[None])
        )
        self._state = step.state
        seen, over = self._look(), step.state.done_LE[0].numpy()
        infos: list[dict[str, Any]] = [{} for _ in over]
        if over.any():
            cut = step.truncated_LE[0].numpy()
            for episode in over.nonzero()[0]:
                infos[episode] = {
                    "terminal_observation": seen[episode],
                    "TimeLimit.truncated": bool(cut[episode]),
                }
            over_LE = step.state.done_LE

            def restart(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
                return torch.where(over_LE.unsqueeze(-1) if old.dim() == 3 else over_LE, new, old)

            self._state = map_tensors(restart, self._fresh(), step.state)
            seen = self._look()
        return seen, step.reward_LE[0].float().numpy(), over, infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        value = None if attr_name == "render_mode" else getattr(self, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        raise NotImplementedError("episodes share one state; none has attributes of its own")

    def env_method(
        self, method_name: str, *args: Any, indices: int | Iterable[int] | None = None, **kwargs: Any
    ) -> list[Any]:
        raise NotImplementedError("episodes share one state; none has methods of its own")

    def env_is_wrapped(self, wrapper_class: type, indices: int | Iterable[int] | None = None) -> list[bool]:
        del wrapper_class  # nothing is wrapped, in whatever
        return [False for _ in self._get_indices(indices)]

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        self._random = np.random.default_rng(seed)
        return [seed] * self.num_envs

    def _fresh(self) -> EnvState:
        bars = self._random.choice(self._starts, (1, self.num_envs))
        mirrors = self._random.integers(2, size=bars.shape).astype(bool) & self._task.mirror
        return begin(self._task, torch.from_numpy(bars), torch.from_numpy(mirrors))

    def _look(self) -> NDArray[np.float32]:
        seen: NDArray[np.float32] = look(self._task, self._state)[0].numpy()
        return seen
