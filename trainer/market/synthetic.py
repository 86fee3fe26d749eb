"""The embedded market: a planted, partly observable alpha in an otherwise fair price, generated from a seed.

Per bar t, with s_t the volatility of the regime (two-state Markov chain, known at the close through the spread):

- alpha ``z_t = phi z_{t-1} + sqrt(1 - phi^2) eta_t``, standard normal in the long run, ``eta`` independent of all else;
- open ``O_{t+1} = C_t (1 + s_{t+1} sqrt(g w_{t+1}) u_{t+1})``: a small fair gap of variance share g;
- close ``C_{t+1} = O_{t+1} + C_t s_{t+1} (signal z_t + sqrt((1 - g) w_{t+1}) e_{t+1})``;
- ``u, e`` standard normal, ``w = (df - 2) / chi2_df`` makes them Student t of unit variance;
- flow columns ``x_t = z_t + flow_noise nu_t``, spread ``2 half_spread s_t C_t``.

So z_t moves the price from the *open* of bar t + 1 on, where an order sent at the close of bar t fills: the alpha is
earnable from the fill. It fades by phi a bar after that. With ``signal = 0`` no column has anything to do with the
price that follows: the price is a martingale given all columns, and since high and low are the extremes of a Brownian
path from open to close, orders resting in the bar are fair bets too (minus the tick by which they must be traded
through). Prices are not rounded to ticks: rounding would add a predictable reversal.

numpy's Philox: this is data, drawn once on the host, not training. Legend: N bars, S sessions, B bars per session.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import numpy as np

from trainer.market.bars_table import BarTable, Floats, Ints
from trainer.market.synthetic_config import SyntheticConfig

FIRST_DAY = date(2015, 1, 5)  # a Monday
NS = 1_000_000_000


@dataclass(frozen=True)
class SyntheticMarket:
    """The table that the agent sees, and the hidden path behind it."""

    table: BarTable
    alpha_N: Floats  # z_t, standard normal; the next bar's expected return is signal z_t x its volatility
    volatility_N: Floats  # s_t, return of one bar (1e-3 = 10 bps)
    wild_N: Ints  # regime of bar t: 0 calm, 1 wild


def generate(config: SyntheticConfig) -> SyntheticMarket:
    """Draw the market of ``config``: the same config gives the same bits, and more sessions only add to the end."""
    planted = config.planted
    bars = planted.sessions * config.bars_per_session
    draw = _streams(config.seed)
    session_N = np.repeat(np.arange(planted.sessions, dtype=np.int64), config.bars_per_session)
    first_N = np.arange(bars) % config.bars_per_session == 0

    wild_N = regime_path(draw["regime"].random(bars), config.regime_bars)
    volatility_N = regime_volatilities(config)[wild_N]
    alpha_N = _autoregression(draw["alpha"].standard_normal(bars), planted.phi)

    weight_N = (config.tail_degrees - 2.0) / draw["tail"].chisquare(config.tail_degrees, bars)
    gap_N = volatility_N * np.sqrt(config.open_gap * weight_N) * draw["gap"].standard_normal(bars)
    gap_N = np.where(first_N, volatility_N * config.overnight_gap * draw["overnight"].standard_normal(bars), gap_N)
    deviation_N = volatility_N * np.sqrt((1.0 - config.open_gap) * weight_N)
    before_N = np.concatenate([np.zeros(1), alpha_N[:-1]])  # z_{t-1}; nothing is known before the first bar
    move_N = volatility_N * planted.signal * before_N + deviation_N * draw["noise"].standard_normal(bars)

    close_N = config.start_price * np.cumprod(1.0 + gap_N + move_N)
    last_close_N = np.concatenate([[config.start_price], close_N[:-1]])
    open_N = last_close_N * (1.0 + gap_N)
    high_N, low_N = _extremes(open_N, close_N, deviation_N * last_close_N, draw["extremes"].random((bars, 2)).T)

    flow_FN = alpha_N + planted.flow_noise * draw["flow"].standard_normal((bars, config.flows)).T
    if config.leak:
        flow_FN[0] = np.concatenate([(move_N / volatility_N)[1:], np.zeros(1)])
    volume_N, buy_N = _volumes(config, move_N / volatility_N, volatility_N, draw["volume"])

    table = BarTable(
        time_N=_times(config, planted.sessions),
        open_N=open_N,
        high_N=high_N,
        low_N=low_N,
        close_N=close_N,
        volume_N=volume_N,
        spread_N=2.0 * planted.half_spread * volatility_N * close_N,
        funding_N=np.zeros(bars),
        session_N=session_N,
        contract_N=np.zeros(bars, dtype=np.int64),
        contract=("SYNTHETIC",),
        buy_volume_N=buy_N,
        sell_volume_N=volume_N - buy_N,
        extra={f"flow_{index + 1}": column_N for index, column_N in enumerate(flow_FN)},
    )
    return SyntheticMarket(table=table, alpha_N=alpha_N, volatility_N=volatility_N, wild_N=wild_N)


def regime_volatilities(config: SyntheticConfig) -> Floats:
    """Volatility of a bar in the calm and the wild regime, ``[2]``; over both, the mean square is the config's."""
    calm = config.volatility * 1e-4 * np.sqrt(2.0 / (1.0 + config.regime_ratio**2))
    return np.array([calm, calm * config.regime_ratio])


def regime_path(uniform_N: Floats, mean_bars: float) -> Ints:
    """Path of the symmetric two-state chain that leaves a state with probability ``1 / mean_bars`` a bar.

    The first number draws the first state evenly.
    """
    leaves_N = uniform_N < 1.0 / mean_bars
    leaves_N[0] = uniform_N[0] < 0.5
    return np.cumsum(leaves_N, dtype=np.int64) % 2


def _streams(seed: int) -> dict[str, np.random.Generator]:
    """One generator per use, so that a change of one part of the process leaves the numbers of the others alone."""
    names = ("regime", "alpha", "tail", "gap", "overnight", "noise", "extremes", "flow", "volume")
    return {name: np.random.Generator(np.random.Philox(key=[seed, index])) for index, name in enumerate(names)}


def _autoregression(normal_N: Floats, phi: float) -> Floats:
    """Stationary AR(1) of unit variance."""
    path_N = np.empty_like(normal_N)
    value = normal_N[0]
    scale = np.sqrt(1.0 - phi * phi)
    path_N[0] = value
    for bar in range(1, len(normal_N)):
        value = phi * value + scale * normal_N[bar]
        path_N[bar] = value
    return path_N


def _extremes(open_N: Floats, close_N: Floats, deviation_N: Floats, uniform_2N: Floats) -> tuple[Floats, Floats]:
    """High and low of a Brownian bridge: inverts P(max > h) = exp(-2 (h - open)(h - close) / deviation^2)."""
    spread_2N = np.sqrt((close_N - open_N) ** 2 - 2.0 * deviation_N**2 * np.log1p(-uniform_2N))
    middle_N = open_N + close_N
    high_N = np.maximum(0.5 * (middle_N + spread_2N[0]), np.maximum(open_N, close_N))
    low_N = np.minimum(0.5 * (middle_N - spread_2N[1]), np.minimum(open_N, close_N))
    return high_N, low_N


def _volumes(
    config: SyntheticConfig, move_N: Floats, volatility_N: Floats, draw: np.random.Generator
) -> tuple[Floats, Floats]:
    """Total and aggressive-buy volume: more in wild regimes, at a session's ends; buying goes with its bar's move."""
    bars = len(move_N)
    noise_2N = 0.3 * draw.standard_normal((bars, 2)).T
    place_N = (np.arange(bars) % config.bars_per_session + 0.5) / config.bars_per_session
    level_N = 1000.0 * (1.0 + 4.0 * (place_N - 0.5) ** 2) * volatility_N / (config.volatility * 1e-4)
    volume_N = np.maximum(np.rint(level_N * np.exp(noise_2N[0])), 1.0)
    share_N = 1.0 / (1.0 + np.exp(-0.5 * move_N - noise_2N[1]))
    return volume_N, np.rint(volume_N * share_N)


def _times(config: SyntheticConfig, sessions: int) -> Ints:
    """End of each bar: sessions start at midnight UTC, Monday to Friday."""
    days = np.busday_offset(np.datetime64(FIRST_DAY, "D"), np.arange(sessions, dtype=np.int64))
    start = days.astype("datetime64[ns]").astype(np.int64)
    within = (np.arange(config.bars_per_session, dtype=np.int64) + 1) * config.bar_seconds * NS
    return (start[:, None] + within[None, :]).reshape(-1)
