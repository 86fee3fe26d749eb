"""The support only grows, only when both witnesses agree, by at most a tenth, and rests in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.agent import support as support_
from trainer.agent.config import AgentConfig
from trainer.agent.params import AgentParams
from trainer.agent.support import Support
from trainer.lanes.tree import stack_dynamic


def _feed(
    support: Support, params: AgentParams, steps: int, low: float, high: float, below: float, above: float
) -> Support:
    lanes = support.atoms_LA.shape[0]
    reach_low, reach_high, mass_below, mass_above = (torch.full((lanes,), x) for x in (low, high, below, above))
    for _ in range(steps):
        support = support_.observe(support, reach_low, reach_high, mass_below, mass_above, params)
    return support


def test_cold_start_is_52_even_atoms_from_minus_one_to_one(params_of: Any) -> None:
    atoms = support_.cold(params_of(), 52).atoms_LA[0]
    torch.testing.assert_close(atoms, torch.linspace(-1, 1, 52))
    assert (float(atoms[0]), float(atoms[-1])) == (-1.0, 1.0)


def test_warm_start_covers_a_discounted_sum_of_rewards(params_of: Any) -> None:
    params = params_of(gamma=0.6, support_warm_quantile=1.0)
    atoms = support_.warm(params, 5, torch.tensor([[0.5, -2.0, 1.0]])).atoms_LA[0]
    torch.testing.assert_close(atoms, torch.tensor([-2.5, -1.25, 0.0, 1.25, 2.5]))  # 2 / sqrt(1 - 0.36)


def test_warm_start_of_constant_zero_rewards_still_has_width(params_of: Any) -> None:
    atoms = support_.warm(params_of(), 5, torch.zeros(1, 8)).atoms_LA[0]
    assert (atoms.diff() > 0).all()


def test_an_end_moves_by_ten_per_cent_at_the_end_of_a_period_when_both_agree(params_of: Any) -> None:
    params = params_of(support_period=50)
    before = support_.cold(params, 5)
    almost = _feed(before, params, 49, -0.1, 0.9, 0.0, 0.05)
    assert torch.equal(almost.atoms_LA, before.atoms_LA)
    after = _feed(almost, params, 1, -0.1, 0.9, 0.0, 0.05)
    torch.testing.assert_close(after.atoms_LA[0], torch.tensor([-1.0, -0.5, 0.0, 0.55, 1.1]))
    assert after.jumps_L.tolist() == [1]
    torch.testing.assert_close(after.jump_L, torch.tensor([0.1]))


@pytest.mark.parametrize(("high", "above"), [(0.9, 0.0), (0.3, 0.5)])
def test_one_witness_alone_moves_nothing(params_of: Any, high: float, above: float) -> None:
    """Values near the end without clamped targets, or clamped targets without values near the end."""
    params = params_of(support_clamped=0.0)
    after = _feed(support_.cold(params, 5), params, 500, 0.0, high, 0.0, above)
    assert after.jumps_L.tolist() == [0]


def test_the_lower_end_moves_on_its_own(params_of: Any) -> None:
    params = params_of()
    after = _feed(support_.cold(params, 5), params, 50, -0.9, 0.0, 0.05, 0.0)
    torch.testing.assert_close(after.atoms_LA[0], torch.tensor([-1.1, -0.55, 0.0, 0.5, 1.0]))


def test_an_end_rests_for_the_cooldown(params_of: Any) -> None:
    params = params_of(support_period=10, support_cooldown=35)
    jumps = []
    support = support_.cold(params, 5)
    for _ in range(10):
        support = _feed(support, params, 10, 0.0, 99.0, 0.0, 1.0)
        jumps.append(int(support.jumps_L))
    assert jumps == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]


def test_growth_zero_keeps_a_fixed_support(params_of: Any) -> None:
    params = params_of(support_growth=0.0)
    after = _feed(support_.cold(params, 5), params, 500, -9.0, 9.0, 1.0, 1.0)
    assert torch.equal(after.atoms_LA, support_.cold(params, 5).atoms_LA)
    assert after.jumps_L.tolist() == [0]


def test_a_lane_that_is_nan_moves_neither_itself_nor_its_neighbour(params_of: Any) -> None:
    params = params_of(lanes=2)
    support = support_.cold(params, 5)
    for _ in range(50):
        support = support_.observe(
            support,
            torch.zeros(2),
            torch.tensor([torch.nan, 0.9]),
            torch.zeros(2),
            torch.tensor([torch.nan, 0.5]),
            params,
        )
    assert support.jumps_L.tolist() == [0, 1]


def test_bounds_of_zero_are_refused_rather_than_replaced() -> None:
    with pytest.raises(ValidationError):
        AgentConfig(support_low=0.0)
    with pytest.raises(ValidationError):
        AgentConfig(support_high=0.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30)
)
def test_the_support_never_shrinks_and_never_grows_by_more_than_a_tenth(
    events: list[tuple[float, float, float, float]],
) -> None:
    params = stack_dynamic(AgentParams, [AgentConfig(support_period=1, support_cooldown=0)], torch.device("cpu"))
    support = support_.cold(params, 6)
    for event in events:
        before = support.atoms_LA
        support = _feed(support, params, 1, *event)
        after = support.atoms_LA
        assert after[0, 0] <= before[0, 0]
        assert after[0, -1] >= before[0, -1]
        assert (after.diff(dim=-1) > 0).all()
        assert (after[0, -1] - after[0, 0]) <= 1.1001 * (before[0, -1] - before[0, 0])
