"""S11: four branches, 108 actions."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tests.trainer.env.builders import FLAT, HOLD, LONG, SHORT
from trainer.env.actions import (
    ACTIONS,
    BRANCHES,
    direction_sign,
    exposure,
    flatten_action,
    is_buy,
    is_flat,
    is_hold,
    is_sell,
    unflatten_action,
)

EVERY = torch.tensor(list(product(*(range(size) for size in BRANCHES))))


def test_all_combinations_round_trip() -> None:
    index = flatten_action(EVERY)
    assert index.tolist() == list(range(ACTIONS)) == list(range(108))
    assert torch.equal(unflatten_action(index), EVERY)
    assert torch.equal(flatten_action(unflatten_action(torch.arange(108).view(2, 54))), torch.arange(108).view(2, 54))


def test_exposure_is_direction_times_magnitude() -> None:
    sign = {SHORT: -1.0, HOLD: 0.0, LONG: 1.0, FLAT: 0.0}
    expected = [sign[d] * (0.25, 0.5, 1.0)[m] for d, m, _, _ in EVERY.tolist()]
    assert exposure(EVERY).tolist() == expected
    assert exposure(EVERY).dtype == torch.float64


@pytest.mark.parametrize("direction", [SHORT, HOLD, LONG, FLAT])
def test_buy_sell_hold_and_flat_exclude_each_other_and_agree_with_the_sign(direction: int) -> None:
    value = torch.tensor(direction)
    kinds = [bool(kind(value)) for kind in (is_sell, is_hold, is_buy, is_flat)]
    assert kinds == [direction == other for other in (SHORT, HOLD, LONG, FLAT)]
    assert int(direction_sign(value)) == int(bool(is_buy(value))) - int(bool(is_sell(value)))


def test_direction_numbers_are_those_of_the_stored_actions() -> None:
    assert [int(value) for value in (SHORT, HOLD, LONG, FLAT)] == [0, 1, 2, 3]
