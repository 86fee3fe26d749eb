"""S12: the mirrored agent in the mirrored view lives the same equity path as the agent in the real one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.env.builders import instrument, params_of, random_actions, random_market, run, start
from trainer.env.actions import Direction
from trainer.env.config import EnvConfig
from trainer.env.observe import PORTFOLIO_FEATURES, Normaliser, observe, portfolio_features
from trainer.market.market import MirrorView

SWAP = torch.tensor([Direction.LONG, Direction.HOLD, Direction.SHORT, Direction.FLAT])


def mirrored_action(action: Tensor) -> Tensor:
    mirrored = action.clone()
    mirrored[..., 0] = SWAP[action[..., 0]]
    return mirrored


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), late=st.integers(0, 1))
def test_mirrored_view_and_mirrored_actions_give_the_same_equity_path(seed: int, late: int) -> None:
    params = params_of(EnvConfig(max_position=3.0, latency_bars=late, drawdown_weight=0.1), of=instrument(), unit=50.0)
    market, actions = random_market(seed), random_actions(seed, 59)
    real = run(params, market, list(actions), start(params, market))
    mirror = run(params, market, list(mirrored_action(actions)), start(params, market, mirror=True))
    for a, b in zip(real, mirror, strict=True):
        assert torch.equal(a.state.equity_LE, b.state.equity_LE)
        assert torch.equal(a.reward_LE, b.reward_LE)
        assert torch.equal(a.state.position_LE, b.state.position_LE)  # the book is kept in the real market
        seen, reflected = portfolio_features(params, market, a.state), portfolio_features(params, market, b.state)
        for p, name in enumerate(PORTFOLIO_FEATURES):
            sign = -1.0 if name in ("exposure", "flip_price") else 1.0
            assert torch.equal(reflected[..., p], sign * seen[..., p])


def test_a_mirrored_long_is_a_real_short() -> None:
    params, market = params_of(EnvConfig()), random_market(1)
    step = run(params, market, [torch.tensor([[[Direction.LONG, 2, 0, 0]]])], start(params, market, mirror=True))[0]
    assert float(step.state.position_LE) < 0.0
    assert float(portfolio_features(params, market, step.state)[0, 0, 0]) > 0.0


def test_features_mirror_before_they_are_normalised() -> None:
    """Even stays, odd is negated, reflected is c - x, swapped takes its partner's value: by hand, then (x - 1) / 2."""
    market = random_market(1)
    market = replace(
        market,
        features_NF=torch.tensor([[3.0, 5.0, 30.0, 7.0, 9.0]]).expand(60, 5),
        mirror=MirrorView(
            sign_F=torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0]),
            offset_F=torch.tensor([0.0, 0.0, 100.0, 0.0, 0.0]),
            partner_F=torch.tensor([0, 1, 2, 4, 3]),
        ),
    )
    normaliser = Normaliser(torch.ones(1, 5), torch.full((1, 5), 2.0), torch.full((1,), 30.0))
    seen = observe(market, normaliser, torch.tensor([[8, 8]]), torch.tensor([[False, True]]), torch.zeros(1, 2, 7), 1)
    assert seen.features[0, 0, 0].tolist() == [1.0, 2.0, 14.5, 3.0, 4.0]
    assert seen.features[0, 1, 0].tolist() == [1.0, -3.0, 30.0, 4.0, 3.0]  # 34.5 is clipped


@pytest.mark.parametrize("mirror", [False, True])
def test_prices_and_costs_stay_real(mirror: bool) -> None:
    params, market = params_of(EnvConfig(), of=instrument()), random_market(2)
    direction = Direction.SHORT if mirror else Direction.LONG
    step = run(params, market, [torch.tensor([[[direction, 2, 0, 0]]])], start(params, market, mirror=mirror))[0]
    assert float(step.info.price_LE) == float(market.open_N[1] + market.spread_N[0] / 2)
