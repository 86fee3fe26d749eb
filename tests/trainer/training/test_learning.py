"""What trained agents find where there is something to find, nothing to find, and something that must not be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from trainer.config import TrialConfig
from trainer.evaluation.backtest import paths
from trainer.evaluation.metrics import session_returns
from trainer.training.group import LaneGroup
from trainer.training.prepare import prepare

from .conftest import CPU

FAIR: dict[str, Any] = {
    "market": {
        "synthetic": {"preset": "none", "half_spread": 0.0, "open_gap": 0.0, "sessions": 120, "bars_per_session": 64},
        "features": {"families": ["returns"]},
    },
    "folds": {"count": 1},
    "env": {"session_episodes": True, "churn_penalty_scale": 0.0, "holding_cost_rate": 0.0},
    "agent": {"lr": 3e-3, "gamma": 0.9, "hidden": 32, "support_start": "warm"},
    "replay": {"capacity": 16384},
    "training": {"epochs": 6, "episodes": 64, "collect_steps": 32, "learn_steps": 32, "batch": 128},
    "evaluation": {"min_trades": 0},
}

FEE_FREE = """
name = "fair"
tick = 1e-7
multiplier = 50.0
currency = "USD"
timezone = "UTC"
sessions_per_year = 252.0
commission_bps = 0.0
margin_fraction = 0.05
default_spread_ticks = 1.0
price_low = 1.0
price_high = 1e9
"""


@pytest.fixture
def fee_free(tmp_path: Path) -> str:
    """An instrument without fees and, since resting orders pay the tick they are traded through by, without a tick.

    For the same reason the market has no gaps between close and open: a resting order is filled by what jumps over it.
    """
    path = tmp_path / "fair.toml"
    path.write_text(FEE_FREE)
    return str(path)


def config(seed: int, instrument: str, **synthetic: Any) -> TrialConfig:
    market = {**FAIR["market"], "instrument": instrument}
    market["synthetic"] = {**market["synthetic"], "seed": seed, **synthetic}
    return TrialConfig.model_validate({**FAIR, "seed": seed, "market": market})


def mean_session_return(trial: TrialConfig) -> float:
    """Train on one market and return the mean session return of the last validation."""
    group = LaneGroup(trial, prepare(trial, CPU), CPU)
    group.admit("trial", trial)
    for _ in range(trial.training.epochs):
        group.advance()
    (path, *_) = paths(group.state.env_params, group.prepared.table.session_N, group.greedy_rollout(group.state))
    return float(np.mean(session_returns(path)))


@pytest.mark.slow
def test_a_martingale_without_costs_pays_nothing_on_either_side(fee_free: str) -> None:
    """20 independent markets, no signal, no costs: the agents' mean gross profit is zero within its own error."""
    profits = [mean_session_return(config(seed, fee_free)) for seed in range(20)]
    assert np.count_nonzero(profits) == 20  # they did trade
    assert ttest_1samp(profits, 0.0).pvalue > 0.01


def test_a_canary_that_leaks_the_next_return_is_exploited_at_once(fee_free: str) -> None:
    """The test above could see a leak: with tomorrow's return in one feature the same agents win in every session."""
    leaking = mean_session_return(config(0, fee_free, leak=True))
    fair = mean_session_return(config(0, fee_free))
    assert leaking > 20.0 * abs(fair)
