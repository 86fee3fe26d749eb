"""A stretch of the market to trade on, for agents that are not Paceline's: what both Gymnasium adapters stand on.

Legend: L lanes, E episodes per lane, W window, F features, P portfolio features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.env.config import EnvConfig
from trainer.env.observe import PORTFOLIO_FEATURES, Normaliser, observe, portfolio_features, stack_normaliser
from trainer.env.state import EnvParams, EnvState, episode_end, make_params, reset, reward_unit
from trainer.errors import UserError
from trainer.market.folds import Range
from trainer.market.instrument import Instrument
from trainer.market.market import Market
from trainer.market.normalise import Scaling


@dataclass(frozen=True)
class Task:
    """Everything an adapter needs; one range of bars for all lanes."""

    market: Market
    params: EnvParams
    normaliser: Normaliser
    bars: Range
    window: int
    mirror: bool  # half of the episodes are mirrored


def make_task(
    market: Market,
    bars: Range,
    instrument: Instrument,
    configs: Sequence[EnvConfig],
    scaling: Scaling,
    bar_move: float,
    *,
    window: int,
    mirror: bool = False,
) -> Task:
    """Trade ``bars`` of ``market``, one lane per config. ``scaling`` and ``bar_move`` were fitted on a train range.

    Raises:
        UserError: the range is outside the market, or holds no bar at which an episode could start.
    """
    if not 0 <= bars.start < bars.end <= market.bars:
        raise UserError(f"bars {bars.start}..{bars.end} are not inside the market's {market.bars}")
    if bool(market.flat_N[bars.start : bars.end - 1].all()):
        raise UserError(f"bars {bars.start}..{bars.end}: no bar at which an order could be sent; give a longer range")
    units_L = torch.tensor([reward_unit(config, instrument, bar_move) for config in configs], dtype=torch.float64)
    device = market.close_N.device
    return Task(
        market=market,
        params=make_params(configs, instrument, units_L, device),
        normaliser=stack_normaliser([scaling] * len(configs), device),
        bars=bars,
        window=window,
        mirror=mirror,
    )


def observation_size(task: Task) -> int:
    """W * F + P."""
    return task.window * task.market.features_NF.shape[1] + len(PORTFOLIO_FEATURES)


def observation_limit(task: Task) -> float:
    """Largest absolute value of an observation."""
    return float(task.normaliser.clip_L.max())


def start_bars(task: Task) -> NDArray[np.int64]:
    """Bars at which episodes may start: where orders may be sent, or the first of each session."""
    rows = np.arange(task.bars.start, task.bars.end - 1)
    able = ~task.market.flat_N[task.bars.start : task.bars.end - 1].cpu().numpy()
    if bool(task.params.session_episodes_L.any()):
        session = task.market.session_N[task.bars.start : task.bars.end - 1].cpu().numpy()
        able &= np.concatenate(([True], session[1:] != session[:-1]))
    starts: NDArray[np.int64] = rows[able]
    return starts


def begin(task: Task, bar_LE: Tensor, mirror_LE: Tensor) -> EnvState:
    """Fresh episodes at these bars, each as long as the config says, inside the range."""
    last_L = torch.full_like(bar_LE[:, 0], task.bars.end - 1)
    end_LE = episode_end(task.params, task.market, bar_LE, last_L)
    return reset(task.params, task.market, bar_LE, end_LE, mirror_LE)


def look(task: Task, state: EnvState) -> Tensor:
    """What an agent sees, ``[L, E, W * F + P]`` float32, within :func:`observation_limit`."""
    portfolio_LEP = portfolio_features(task.params, task.market, state)
    seen = observe(task.market, task.normaliser, state.bar_LE, state.mirror_LE, portfolio_LEP, task.window)
    limit = observation_limit(task)
    return torch.cat((seen.features.flatten(2), seen.portfolio), dim=-1).clamp(-limit, limit)
