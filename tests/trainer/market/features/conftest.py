"""Bar tables for the feature tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from trainer.market.bars_table import BarTable

MINUTE = 60 * 10**9
START = 1_700_000_000 * 10**9


def random_table(seed: int, sessions: Sequence[int], contracts: Sequence[int] | None = None) -> BarTable:
    """Bars of a random walk: ``sessions`` bar counts by session, ``contracts`` the contract of each session."""
    rng = np.random.default_rng(seed)
    session_N = np.repeat(np.arange(len(sessions)), sessions)
    size = session_N.size
    contract_S = np.zeros(len(sessions), dtype=np.int64) if contracts is None else np.asarray(contracts)
    jump_N = np.where(np.diff(session_N, prepend=-1) > 0, 0.02 * rng.standard_normal(size), 0.0)
    close_N = 100.0 * np.exp(np.cumsum(0.001 * rng.standard_t(4, size) + jump_N))
    open_N = np.concatenate([[100.0], close_N[:-1]]) * np.exp(jump_N + 0.0002 * rng.standard_normal(size))
    buy_N, sell_N = rng.poisson(20, size).astype(float), rng.poisson(20, size).astype(float)
    return BarTable(
        time_N=START + MINUTE * (np.cumsum(rng.integers(1, 3, size)) + 1000 * session_N),
        open_N=open_N,
        high_N=np.maximum(open_N, close_N) * np.exp(0.0005 * rng.exponential(size=size)),
        low_N=np.minimum(open_N, close_N) * np.exp(-0.0005 * rng.exponential(size=size)),
        close_N=close_N,
        volume_N=buy_N + sell_N,
        spread_N=0.01 * rng.integers(1, 4, size).astype(np.float64),
        funding_N=np.where(rng.random(size) < 0.05, 1e-4 * rng.standard_normal(size), 0.0),
        session_N=session_N,
        contract_N=contract_S[session_N],
        contract=tuple(f"C{index}" for index in range(int(contract_S.max()) + 1)),
        buy_volume_N=buy_N,
        sell_volume_N=sell_N,
        extra={"flow_latent": rng.standard_normal(size), "canary": rng.standard_normal(size)},
    )


@pytest.fixture
def make_random() -> Callable[..., BarTable]:
    return random_table


@pytest.fixture
def make_closes() -> Callable[..., BarTable]:
    """Bars whose open is the close before and whose range is exactly open to close, one a minute."""

    def make(closes: Sequence[float], sessions: Sequence[int] | None = None, **columns: object) -> BarTable:
        close_N = np.asarray(closes, dtype=np.float64)
        size = close_N.size
        session_N = (
            np.zeros(size, dtype=np.int64) if sessions is None else np.repeat(np.arange(len(sessions)), sessions)
        )
        open_N = np.concatenate([close_N[:1], close_N[:-1]])
        given: dict[str, object] = {
            "time_N": START + MINUTE * np.arange(size),
            "open_N": open_N,
            "high_N": np.maximum(open_N, close_N),
            "low_N": np.minimum(open_N, close_N),
            "close_N": close_N,
            "volume_N": np.ones(size),
            "spread_N": np.zeros(size),
            "funding_N": np.zeros(size),
            "session_N": session_N,
            "contract_N": np.zeros(size, dtype=np.int64),
        }
        return BarTable(**{**given, **columns})  # type: ignore[arg-type]

    return make
