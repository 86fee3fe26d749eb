"""The peers' vector environment trades as the single Gymnasium one does, and tells a cut from an end."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed (extra: benchmark)")

from benchmarks.peers_env import PeerVectorEnv
from tests.trainer.env.test_gym import task_of
from trainer.env.config import EnvConfig
from trainer.env.gym_single import TradingEnv
from trainer.env.task import start_bars


def test_episodes_run_as_in_the_single_environment_and_restart_within_the_step() -> None:
    task = task_of(EnvConfig(episode_bars=6))
    peers = PeerVectorEnv(task, 3, seed=4)
    seen = peers.reset()
    starts = np.random.default_rng(4)
    starts.choice(start_bars(task), (1, 3))  # the constructor's own episodes, and their mirrors
    starts.integers(2, size=(1, 3))
    bars = starts.choice(start_bars(task), (1, 3))[0]
    singles = [TradingEnv(task) for _ in bars]
    alone = [env.reset(options={"bar": bar, "mirror": False})[0] for env, bar in zip(singles, bars, strict=True)]
    assert np.array_equal(seen, np.stack(alone))
    running, ended = [True] * 3, 0
    for step in range(7):
        actions = np.array([(7 * step + 31 * episode) % 108 for episode in range(3)])
        seen, rewards, over, infos = peers.step(actions)
        for episode, env in enumerate(singles):
            if not running[episode]:
                continue
            last, reward, terminated, truncated, _ = env.step(np.int64(actions[episode]))
            assert rewards[episode] == np.float32(reward)
            assert over[episode] == (terminated or truncated)
            if over[episode]:
                assert infos[episode]["TimeLimit.truncated"] == truncated
                assert np.array_equal(infos[episode]["terminal_observation"], last)
                assert not np.array_equal(seen[episode], last)
                running[episode], ended = False, ended + 1
            else:
                assert np.array_equal(seen[episode], last)
    assert ended == 3
