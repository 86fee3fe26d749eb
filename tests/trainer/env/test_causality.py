"""No look-ahead: changing any market row after bar t changes no observation, mask or reward up to t."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.env.builders import params_of, random_actions, random_market, start
from trainer.env.config import EnvConfig
from trainer.env.observe import Normaliser, observe, portfolio_features
from trainer.env.step import env_step
from trainer.market.market import Market

WINDOW = 4
STEPS = 50


def after_row(market: Market, row: int, seed: int) -> Market:
    """The same market up to ``row``; every number that depends on data after it replaced."""
    generator = torch.Generator().manual_seed(seed)
    changed: dict[str, Tensor] = {}
    for name in ("open_N", "high_N", "low_N", "close_N", "spread_N", "funding_N", "features_NF"):
        old = getattr(market, name)
        new = old.clone()
        new[row + 1 :] = old[row + 1 :] * (0.5 + torch.rand(old[row + 1 :].shape, generator=generator).to(old.dtype))
        changed[name] = new
    return replace(market, **changed)


def history(market: Market, actions: Tensor, mirror: bool) -> list[tuple[Tensor, ...]]:
    """Per bar: features, portfolio, mask seen at it and the reward of the step that led to it."""
    params = params_of(EnvConfig(max_position=3.0, latency_bars=0), unit=10.0)
    normaliser = Normaliser(torch.zeros(1, 3), torch.ones(1, 3), torch.full((1,), 1e9))
    state, reward = start(params, market, mirror=mirror), torch.zeros(1, 1, dtype=torch.float64)
    rows = []
    for action in actions:
        portfolio = portfolio_features(params, market, state)
        seen = observe(market, normaliser, state.bar_LE, state.mirror_LE, portfolio, WINDOW)
        rows.append((seen.features, seen.portfolio, seen.hold_only, reward))
        step = env_step(params, market, state, action)
        state, reward = step.state, step.reward_LE
    return rows


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), row=st.integers(0, STEPS - 1), mirror=st.booleans())
def test_rows_after_t_do_not_reach_anything_up_to_t(seed: int, row: int, mirror: bool) -> None:
    market, actions = random_market(seed), random_actions(seed, STEPS)
    real = history(market, actions, mirror)
    altered = history(after_row(market, row, seed), actions, mirror)
    for before, after in zip(real[: row + 1], altered[: row + 1], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_property_sees_a_change_at_t() -> None:
    """The probe itself works: a change in row t is seen at t."""
    market, actions = random_market(7), random_actions(7, STEPS)
    real = history(market, actions, False)
    altered = history(after_row(market, 20, 7), actions, False)
    assert not torch.equal(real[21][0], altered[21][0])
    assert any(not torch.equal(a[3], b[3]) for a, b in zip(real[21:], altered[21:], strict=True))


def test_an_episode_starts_clean_of_the_rows_of_the_session_before() -> None:
    market = random_market(5, bars=60, session_bars=20)
    altered = replace(market, features_NF=market.features_NF.clone())
    altered.features_NF[:20] += 1.0
    normaliser = Normaliser(torch.zeros(1, 3), torch.ones(1, 3), torch.full((1,), 1e9))
    bars, portfolio = torch.tensor([[20, 22, 23]]), torch.zeros(1, 3, 7)
    seen = [
        observe(each, normaliser, bars, torch.zeros(1, 3, dtype=torch.bool), portfolio, WINDOW)
        for each in (market, altered)
    ]
    assert torch.equal(seen[0].features, seen[1].features)
    assert seen[0].features[0, 0, :3].abs().sum() == 0.0  # three masked rows, then bar 20
    assert torch.equal(seen[0].features[0, 0, 3], market.features_NF[20])
    assert torch.equal(seen[0].features[0, 2], market.features_NF[20:24])


def test_hold_only_is_known_from_the_bar_itself() -> None:
    market = random_market(5, bars=60, session_bars=20)
    normaliser = Normaliser(torch.zeros(1, 3), torch.ones(1, 3), torch.full((1,), 1e9))
    bars = torch.arange(60)[None]
    seen = observe(market, normaliser, bars, torch.zeros(1, 60, dtype=torch.bool), torch.zeros(1, 60, 7), 1)
    assert seen.hold_only[0].nonzero().flatten().tolist() == [19, 39, 59]


def test_records_of_the_market_are_all_covered() -> None:
    """A new per-bar column must be added to ``after_row`` (or be calendar, which is known in advance)."""
    covered = {"open_N", "high_N", "low_N", "close_N", "spread_N", "funding_N", "features_NF"}
    calendar = {"time_N", "session_N", "bars_left_N", "flat_N", "mirror"}
    assert {field.name for field in fields(Market)} == covered | calendar
