"""Small markets and params for the environment's tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.env.actions import Direction, Order, Urgency
from trainer.env.config import EnvConfig
from trainer.env.state import EnvParams, EnvState, make_params, reset
from trainer.env.step import Step, env_step
from trainer.market.instrument import Instrument, load_instrument
from trainer.market.market import Market, MirrorView

CPU = torch.device("cpu")
SHORT, HOLD, LONG, FLAT = Direction
MARKET, LIMIT, PEG = Order
PATIENT, NORMAL, URGENT = Urgency

# no penalty and a cap that is always all of max_position
PLAIN = {
    "churn_penalty_scale": 0.0,
    "drawdown_weight": 0.0,
    "holding_cost_rate": 0.0,
    "kelly_floor": 1.0,
    "kelly_minimum": 1.0,
}


def plain(**changes: object) -> EnvConfig:
    return EnvConfig.model_validate({**PLAIN, **changes})


def instrument(**changes: object) -> Instrument:
    return load_instrument("es").model_copy(update=changes)


FREE = instrument(multiplier=1.0, commission_bps=0.0, margin_fraction=0.01, tick=0.25)


def params_of(*configs: EnvConfig, of: Instrument = FREE, unit: float = 1.0) -> EnvParams:
    return make_params(configs, of, torch.full((len(configs),), unit, dtype=torch.float64), CPU)


def market_of(
    close: Sequence[float],
    *,
    open: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    low: Sequence[float] | None = None,
    spread: float | Sequence[float] = 0.0,
    funding: float | Sequence[float] = 0.0,
    sessions: Sequence[int] | None = None,
    flat: Sequence[int] = (),
    features: int = 3,
) -> Market:
    """A market whose bars open where the last one closed unless said otherwise; ``flat`` lists bar numbers."""
    n = len(close)
    closes = torch.tensor(close, dtype=torch.float64)
    opens = torch.cat((closes[:1], closes[:-1])) if open is None else torch.tensor(open, dtype=torch.float64)
    session = torch.zeros(n, dtype=torch.int64) if sessions is None else torch.tensor(sessions)
    last = torch.searchsorted(session, session, right=True) - 1
    flat_N = torch.zeros(n, dtype=torch.bool)
    flat_N[list(flat)] = True
    time_N = torch.arange(1, n + 1) * 60_000_000_000
    even_odd = torch.tensor([1.0, -1.0, -1.0][:features])
    return Market(
        time_N=time_N,
        open_N=opens,
        high_N=torch.maximum(opens, closes) if high is None else torch.tensor(high, dtype=torch.float64),
        low_N=torch.minimum(opens, closes) if low is None else torch.tensor(low, dtype=torch.float64),
        close_N=closes,
        spread_N=torch.full((n,), spread, dtype=torch.float64) if isinstance(spread, float) else torch.tensor(spread),
        funding_N=torch.full((n,), funding, dtype=torch.float64)
        if isinstance(funding, float)
        else torch.tensor(funding),
        features_NF=torch.arange(n * features, dtype=torch.float32).reshape(n, features) / 8,
        session_N=session,
        bars_left_N=last - torch.arange(n),
        flat_N=flat_N,
        mirror=MirrorView(even_odd, torch.tensor([0.0, 0.0, 100.0][:features]), torch.arange(features)),
    )


def random_market(seed: int, bars: int = 60, session_bars: int = 20, funding: bool = True) -> Market:
    """Prices on the tick grid around 1,000, with sessions that must end flat."""
    rng = np.random.default_rng(seed)
    close = 1000 + np.cumsum(rng.integers(-8, 9, bars)) * 0.25
    open_ = np.concatenate((close[:1], close[:-1])) + rng.integers(-4, 5, bars) * 0.25
    high = np.maximum(open_, close) + rng.integers(0, 4, bars) * 0.25
    low = np.minimum(open_, close) - rng.integers(0, 4, bars) * 0.25
    sessions = np.arange(bars) // session_bars
    return market_of(
        close.tolist(),
        open=open_.tolist(),
        high=high.tolist(),
        low=low.tolist(),
        spread=(rng.integers(1, 4, bars) * 0.25).tolist(),
        funding=(rng.normal(0, 1e-4, bars) * funding).tolist(),
        sessions=sessions.tolist(),
        flat=[n for n in range(bars) if n == bars - 1 or sessions[n + 1] != sessions[n]],
    )


def act(direction: int, magnitude: int = 2, order: int = 0, urgency: int = 0) -> Tensor:
    """One action of one lane and episode, ``[1, 1, 4]``; magnitude 2 is 100 %."""
    return torch.tensor([[[direction, magnitude, order, urgency]]])


def start(params: EnvParams, market: Market, bar: int = 0, end: int | None = None, mirror: bool = False) -> EnvState:
    lanes = params.capital_L.shape[0]
    last = market.bars - 1 if end is None else end
    whole = torch.ones(lanes, 1, dtype=torch.int64)
    return reset(params, market, whole * bar, whole * last, torch.full((lanes, 1), mirror))


def run(params: EnvParams, market: Market, actions: Sequence[Tensor], state: EnvState | None = None) -> list[Step]:
    """Steps from the first bar on (or from ``state``), one per action."""
    steps: list[Step] = []
    state = start(params, market) if state is None else state
    for action in actions:
        steps.append(env_step(params, market, state, action.expand(*state.bar_LE.shape, 4)))
        state = steps[-1].state
    return steps


def random_actions(seed: int, steps: int, episodes: int = 1) -> Tensor:
    """``[steps, 1, E, 4]``, every branch uniform."""
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(n, (steps, 1, episodes), generator=generator) for n in (4, 3, 3, 3)]
    return torch.stack(columns, dim=-1)
