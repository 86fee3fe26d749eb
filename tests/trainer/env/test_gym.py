"""Both Gymnasium adapters: they pass Gymnasium's checks and trade exactly as ``env_step`` does (S7)."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from tests.trainer.env.builders import instrument, random_actions, random_market
from trainer.env.actions import DIRECTION, Direction, flatten_action, unflatten_action
from trainer.env.config import EnvConfig
from trainer.env.gym_single import TradingEnv
from trainer.env.gym_vector import TradingVectorEnv
from trainer.env.step import env_step
from trainer.env.task import Task, begin, look, make_task, start_bars
from trainer.errors import UserError
from trainer.market.folds import Range
from trainer.market.normalise import Scaling

SCALING = Scaling(np.zeros(3, np.float32), np.full(3, 2.0, np.float32), 20.0)
CONFIG = EnvConfig(episode_bars=15, max_position=2.0)


def task_of(*configs: EnvConfig, mirror: bool = False, bars: Range | None = None, window: int = 5) -> Task:
    market = random_market(9)
    where = Range(0, market.bars) if bars is None else bars
    return make_task(market, where, instrument(), configs, SCALING, 2.0, window=window, mirror=mirror)


def test_the_single_environment_passes_gymnasiums_checks() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*Box.*")
        check_env(TradingEnv(task_of(CONFIG, mirror=True)), skip_render_check=True)


def test_the_single_environment_trades_as_env_step_does() -> None:
    """Training through the adapter and the trainer's own steps: same actions, same equity path, same observations."""
    task = task_of(EnvConfig(episode_bars=100))
    env = TradingEnv(task)
    env.reset(seed=1, options={"bar": 3, "mirror": True})
    state = begin(task, torch.tensor([[3]]), torch.tensor([[True]]))
    ended = False
    for action in random_actions(5, 56):
        seen, reward, terminated, truncated, info = env.step(np.int64(flatten_action(action)[0, 0]))
        step = env_step(task.params, task.market, state, action)
        state = step.state
        assert reward == float(step.reward_LE)
        assert info["equity"] == float(state.equity_LE)
        assert (terminated, truncated) == (bool(step.terminated_LE), bool(step.truncated_LE))
        assert np.array_equal(seen, look(task, state)[0, 0].numpy())
        ended = ended or terminated
    assert ended  # at the end of the data


def test_masks_leave_only_hold_where_positions_must_end_flat() -> None:
    env = TradingEnv(task_of(CONFIG))
    env.reset(options={"bar": 3})
    assert env.action_masks().sum() == 108
    env.reset(options={"bar": 19})
    allowed = torch.from_numpy(np.flatnonzero(env.action_masks()))
    assert (unflatten_action(allowed)[:, DIRECTION] == Direction.HOLD).all()
    assert allowed.numel() == 27


def test_the_vector_environment_agrees_with_env_step() -> None:
    task = task_of(CONFIG, EnvConfig(episode_bars=15, max_position=3.0, cost_scale=2.0))
    env = TradingVectorEnv(task, episodes=4)
    seen, _ = env.reset(seed=2, options={"bar": 4, "mirror": False})
    state = begin(task, torch.full((2, 4), 4), torch.zeros(2, 4, dtype=torch.bool))
    assert env.observation_space.contains(seen)
    for t, action in enumerate(random_actions(6, 15, 8)):
        seen, reward, terminated, truncated, info = env.step(action[0].numpy())
        step = env_step(task.params, task.market, state, action.view(2, 4, 4))
        state = step.state
        assert np.array_equal(reward, step.reward_LE.flatten().numpy())
        assert np.array_equal(info["equity"], state.equity_LE.flatten().numpy())
        assert np.array_equal(seen, look(task, state).flatten(0, 1).numpy())
        assert truncated.tolist() == [t == 14] * 8
        assert not terminated.any()


def test_finished_episodes_restart_clean_in_the_next_step() -> None:
    env = TradingVectorEnv(task_of(EnvConfig(episode_bars=2)), episodes=3)
    env.reset(seed=3, options={"bar": 4})
    longs = np.tile(np.array([Direction.LONG, 2, 0, 0]), (3, 1))
    env.step(longs)
    _, _, _, truncated, _ = env.step(longs)
    assert truncated.all()
    _, reward, terminated, truncated, info = env.step(longs)
    assert not (terminated | truncated).any()
    assert (reward == 0.0).all()
    assert (info["position"] == 0.0).all()
    assert (info["equity"] == 100_000.0).all()
    _, _, _, _, info = env.step(longs)
    assert (info["position"] != 0.0).all()


def test_seeds_decide_the_starts() -> None:
    env = TradingEnv(task_of(CONFIG, mirror=True))
    drawn = [env.reset(seed=seed)[1]["bar"] for seed in (1, 1, *range(20))]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 5


def test_episodes_stay_in_their_range_and_start_where_orders_are_allowed() -> None:
    task = task_of(CONFIG, bars=Range(10, 30))
    assert start_bars(task).tolist() == [n for n in range(10, 29) if n != 19]
    env = TradingEnv(task)
    env.reset(options={"bar": 25})
    steps = 0
    truncated = False
    while not truncated:
        _, _, terminated, truncated, info = env.step(np.int64(30))
        steps += 1
        assert not terminated
        assert info["bar"] <= 29
    assert steps == 4


def test_session_episodes_start_with_the_session() -> None:
    task = task_of(EnvConfig(session_episodes=True))
    assert start_bars(task).tolist() == [0, 20, 40]


def test_a_range_without_a_tradable_bar_is_refused() -> None:
    for bars in (Range(0, 61), Range(19, 20), Range(19, 21), Range(5, 5)):
        with pytest.raises(UserError, match="bars"):
            task_of(CONFIG, bars=bars)


def test_stepping_before_reset_is_refused() -> None:
    task = task_of(CONFIG)
    with pytest.raises(gymnasium.error.ResetNeeded):
        TradingEnv(task).step(np.int64(0))
    with pytest.raises(gymnasium.error.ResetNeeded):
        TradingEnv(task).action_masks()
    with pytest.raises(gymnasium.error.ResetNeeded):
        TradingVectorEnv(task, 2).step(np.zeros((2, 4), np.int64))
