"""Oracles of the synthetic market: the best that an agent could do, net of costs, as a path of actions.

The alpha z and the regime are a Markov chain with known parameters, so trading them is a finite-horizon dynamic
programme over (alpha, regime, position) within each session, solved backwards from its close, where positions end flat:

    V_h(z, s, p) = max_q  E[V_{h-1}(z', s', q) | z, s] - cost_s |q - p|
                          + signal z E[v' | s] q - aversion / 2 E[v'^2 | s] q^2
    V_0(z, s, p) = -cost_s |p|

with h bars left, v the volatility of the regime, cost_s = half_spread v_s + commission. q runs over the positions that
one action reaches from p on a grid of 25 %. The *latent* oracle sees z. The *filtered* one sees what the agent sees:
flow columns and past returns, through a Kalman filter; its estimate is an AR(1) like z, with variance 1 - P.

Both send market orders, so their Sharpe is net by the same rules when their actions run through ``env_step``. With
``objective="profit"`` aversion is 0, which is what a reward of equity change asks for; ``"sharpe"`` takes the aversion
whose sessions, simulated from the same chain, have the best Sharpe.

Known limits: the filter is the best linear one (returns have fat tails, so a better one exists, by a little), and it is
told the regime, which the spread shows unless it is zero. Positions are shares of the cap, taken to be constant: the
Kelly cap moves with an episode's round trips.

Legend: N bars, Z grid points of the alpha, 2 regimes, P positions, H bars of a session.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from trainer.env.actions import Direction, Order, Urgency
from trainer.errors import UserError
from trainer.market.bars_table import Floats, Ints
from trainer.market.calendar import bars_left
from trainer.market.synthetic import SyntheticMarket, regime_volatilities
from trainer.market.synthetic_config import SyntheticConfig

Sees = Literal["latent", "filtered"]
Objective = Literal["sharpe", "profit"]

MAGNITUDES = (0.25, 0.5, 1.0)  # of the magnitude branch
POSITIONS = np.arange(-4, 5) / 4.0
AVERSIONS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # times signal / bar volatility
SIMULATED_SESSIONS = 2000
HOLD = np.array([Direction.HOLD, 0, Order.MARKET, Urgency.URGENT], dtype=np.int64)


@dataclass(frozen=True)
class Chain:
    """The trader's view of the market, in returns: the alpha it sees (deviation ``alpha_std``), regimes, costs."""

    signal: float
    phi: float
    alpha_std: float
    volatility_2: Floats
    cost_2: Floats  # one side
    leave: float  # probability of a change of regime in a bar
    bars: int  # H


def oracle_actions(
    config: SyntheticConfig,
    market: SyntheticMarket,
    *,
    commission_rate: float,
    sees: Sees,
    objective: Objective = "sharpe",
) -> Ints:
    """The oracle's action at each bar's close, ``[N, 4]``, for a run that starts flat at the start of a session.

    Args:
        config: what ``market`` was generated from.
        market: the path to trade.
        commission_rate: commission of one side as a share of notional.
        sees: the latent alpha itself, or its estimate from flows and returns.
        objective: what to maximise.

    Raises:
        UserError: the market leaks the next return, which no oracle here knows about.
    """
    if config.leak:
        raise UserError("market.synthetic.leak = true: the oracles do not know of the leak; compare without it")
    if sees == "latent":
        seen_N, alpha_std = market.alpha_N, 1.0
    else:
        seen_N, variance = filtered_alpha(config, market)
        alpha_std = math.sqrt(1.0 - variance)
    chain = _chain(config, alpha_std, commission_rate)
    grid_Z, transition_ZZ = autoregression_grid(chain.phi, chain.alpha_std)
    if objective == "profit" or chain.signal == 0.0:
        policy = _policy(chain, grid_Z, transition_ZZ, aversion=0.0)
    else:
        scale = chain.signal / float(np.sqrt(np.mean(chain.volatility_2**2)))
        policies = [_policy(chain, grid_Z, transition_ZZ, aversion=scale * factor) for factor in AVERSIONS]
        policy = policies[int(np.argmax(_simulated_sharpe(chain, grid_Z, policies)))]
    return _follow(policy, _nearest(grid_Z, seen_N), market)


def sign_actions(market: SyntheticMarket) -> Ints:
    """The naive rule: always fully on the side of the mean flow, ``[N, 4]``."""
    flow_N = np.mean(list(market.table.extra.values()), axis=0)
    full = MAGNITUDES.index(1.0)
    long, short = ([direction, full, Order.MARKET, Urgency.URGENT] for direction in (Direction.LONG, Direction.SHORT))
    action_N4 = np.where(flow_N[:, None] > 0.0, np.array(long), np.array(short))
    return np.where(bars_left(market.table.session_N)[:, None] == 0, HOLD, action_N4)


def filtered_alpha(config: SyntheticConfig, market: SyntheticMarket) -> tuple[Floats, float]:
    """Kalman filter: mean of z_t given all up to the close of bar t, ``[N]``, and its error variance in the long run.

    The mean of the flow columns observes z_t; the return of bar t, over its volatility, observes signal z_{t-1}.
    """
    planted = config.planted
    table = market.table
    flow_N = np.mean(list(table.extra.values()), axis=0)
    last_close_N = np.concatenate([table.open_N[:1], table.close_N[:-1]])
    move_N = (table.close_N - table.open_N) / last_close_N / market.volatility_N
    flow_variance = planted.flow_noise**2 / config.flows
    move_variance = 1.0 - config.open_gap

    mean_N = np.empty_like(flow_N)
    mean, variance = 0.0, 1.0
    for bar in range(len(flow_N)):
        if bar > 0:
            gain = planted.signal * variance / (planted.signal**2 * variance + move_variance)
            mean += gain * (move_N[bar] - planted.signal * mean)
            variance *= 1.0 - gain * planted.signal
            mean *= planted.phi
            variance = planted.phi**2 * variance + 1.0 - planted.phi**2
        gain = variance / (variance + flow_variance)
        mean += gain * (flow_N[bar] - mean)
        variance *= 1.0 - gain
        mean_N[bar] = mean
    return mean_N, variance


def solve(
    transition_SS: Floats, gain_SP: Floats, cost_S: Floats, positions_P: Floats, reach_PP: NDArray[np.bool_], bars: int
) -> tuple[Ints, Floats]:
    """Backward induction over a Markov chain of S states whose positions are closed at its end.

    Args:
        transition_SS: probabilities, rows from, columns to.
        gain_SP: expected gain of holding position q until the next decision.
        cost_S: cost of trading one unit of position.
        positions_P: the positions.
        reach_PP: whether q (column) can be reached from p (row); staying must be possible.
        bars: decisions.

    Returns:
        Policy ``[bars + 1, S, P]``: index of the best next position with h decisions left (row 0 unused: stay), and the
        value ``[S, P]`` with all of them left. A change is made only where it gains.
    """
    trade_PP = np.abs(positions_P[None, :] - positions_P[:, None])
    cost_SPP = np.where(reach_PP, cost_S[:, None, None] * trade_PP, np.inf)
    stay_P = np.arange(len(positions_P))
    value_SP = -cost_S[:, None] * np.abs(positions_P)
    policy = np.broadcast_to(stay_P, (bars + 1, *value_SP.shape)).copy()
    for left in range(1, bars + 1):
        reward_SPP = (gain_SP + transition_SS @ value_SP)[:, None, :] - cost_SPP
        stay_SP = reward_SPP[:, stay_P, stay_P]
        best_SP = np.max(reward_SPP, axis=2)
        changes_SP = best_SP > stay_SP + 1e-12 * np.max(np.abs(gain_SP), initial=0.0)
        policy[left] = np.where(changes_SP, np.argmax(reward_SPP, axis=2), stay_P)
        value_SP = np.where(changes_SP, best_SP, stay_SP)
    return policy, value_SP


def reachable() -> tuple[NDArray[np.bool_], Ints]:
    """Which position a market order reaches from which, ``[P, P]``, by what direction and magnitude, ``[P, P, 2]``."""
    count = len(POSITIONS)
    reach_PP = np.zeros((count, count), dtype=np.bool_)
    action_PP2 = np.zeros((count, count, 2), dtype=np.int64)
    for start, position in enumerate(POSITIONS):
        targets = {(Direction.HOLD, 0): position}
        for index, magnitude in enumerate(MAGNITUDES):
            targets |= {(Direction.LONG, index): magnitude, (Direction.SHORT, index): -magnitude}
            targets[Direction.FLAT, index] = position * (1.0 - magnitude)
        for action, target in targets.items():
            end = int(np.argmin(np.abs(POSITIONS - target)))
            if POSITIONS[end] == target and not reach_PP[start, end]:  # the first way listed is the one taken
                reach_PP[start, end] = True
                action_PP2[start, end] = action
    return reach_PP, action_PP2


def autoregression_grid(phi: float, deviation: float) -> tuple[Floats, Floats]:
    """A Gaussian AR(1) of this long-run deviation as a Markov chain: points ``[Z]`` and probabilities ``[Z, Z]``.

    Bins between midpoints (Tauchen 1986), at most a third of a step's deviation wide, out to 4 deviations.
    """
    step = math.sqrt(1.0 - phi * phi)
    half = min(math.ceil(4.0 / min(0.2, step / 3.0)), 400)
    grid_Z = np.linspace(-4.0, 4.0, 2 * half + 1)
    edges = np.concatenate([[-np.inf], 0.5 * (grid_Z[1:] + grid_Z[:-1]), [np.inf]])
    below = ndtr((edges[None, :] - phi * grid_Z[:, None]) / step)
    return grid_Z * deviation, np.diff(below, axis=1)


def _chain(config: SyntheticConfig, alpha_std: float, commission_rate: float) -> Chain:
    volatility_2 = regime_volatilities(config)
    return Chain(
        signal=config.planted.signal,
        phi=config.planted.phi,
        alpha_std=alpha_std,
        volatility_2=volatility_2,
        cost_2=config.planted.half_spread * volatility_2 + commission_rate,
        leave=1.0 / config.regime_bars,
        bars=config.bars_per_session,
    )


def _policy(chain: Chain, grid_Z: Floats, transition_ZZ: Floats, aversion: float) -> Ints:
    """Best next position, ``[H, Z, 2, P]``, indexed by bars left."""
    regime_22 = np.array([[1.0 - chain.leave, chain.leave], [chain.leave, 1.0 - chain.leave]])
    drift_Z2 = chain.signal * grid_Z[:, None] * (regime_22 @ chain.volatility_2)
    risk_2 = regime_22 @ chain.volatility_2**2
    gain_Z2P = drift_Z2[..., None] * POSITIONS - 0.5 * aversion * risk_2[:, None] * POSITIONS**2
    states = 2 * len(grid_Z)
    policy, _ = solve(
        np.kron(transition_ZZ, regime_22),
        gain_Z2P.reshape(states, -1),
        np.tile(chain.cost_2, len(grid_Z)),
        POSITIONS,
        reachable()[0],
        chain.bars - 1,
    )
    return policy.reshape(chain.bars, len(grid_Z), 2, len(POSITIONS))


def _simulated_sharpe(chain: Chain, grid_Z: Floats, policies: Sequence[Ints]) -> Floats:
    """Sharpe of sessions drawn from the chain under each policy, all on the same draws."""
    draw = np.random.Generator(np.random.Philox(key=[0, 0]))
    count = SIMULATED_SESSIONS
    policy_HZ2PK = np.stack(policies, axis=-1)
    kinds = np.arange(len(policies))
    alpha = chain.alpha_std * draw.standard_normal(count)
    wild = (draw.random(count) < 0.5).astype(np.int64)
    held = np.full((count, len(policies)), len(POSITIONS) // 2)
    profit = np.zeros((count, len(policies)))
    step = chain.alpha_std * math.sqrt(1.0 - chain.phi**2)
    for left in range(chain.bars - 1, 0, -1):
        target = policy_HZ2PK[left, _nearest(grid_Z, alpha)[:, None], wild[:, None], held, kinds]
        profit -= chain.cost_2[wild, None] * np.abs(POSITIONS[target] - POSITIONS[held])
        wild = wild ^ (draw.random(count) < chain.leave)
        move = chain.volatility_2[wild] * (chain.signal * alpha + draw.standard_normal(count))
        profit += POSITIONS[target] * move[:, None]
        alpha = chain.phi * alpha + step * draw.standard_normal(count)
        held = target
    profit -= chain.cost_2[wild, None] * np.abs(POSITIONS[held])
    deviation = np.std(profit, axis=0)
    mean = np.mean(profit, axis=0)
    return np.where(deviation > 0.0, mean / np.where(deviation > 0.0, deviation, 1.0), 0.0)


def _nearest(grid_Z: Floats, value: Floats) -> Ints:
    """Index of the nearest point of an evenly spaced grid."""
    place: Floats = np.rint((value - grid_Z[0]) / (grid_Z[1] - grid_Z[0]))
    return np.clip(place, 0, len(grid_Z) - 1).astype(np.int64)


def _follow(policy: Ints, alpha_N: Ints, market: SyntheticMarket) -> Ints:
    """Walk the path and write down the action of each bar; sessions start flat and hold at their last bar."""
    _, action_PP2 = reachable()
    left_N = bars_left(market.table.session_N)
    flat = len(POSITIONS) // 2
    held = flat
    action_N4 = np.tile(HOLD, (len(alpha_N), 1))
    for bar, left in enumerate(left_N):
        if left == 0:
            held = flat
            continue
        target = policy[left, alpha_N[bar], market.wild_N[bar], held]
        action_N4[bar, :2] = action_PP2[held, target]
        held = target
    return action_N4
