"""Replay settings: how long the ring is, and capacities that cannot hold a window."""

from __future__ import annotations

import pytest

from trainer.errors import UserError
from trainer.replay.config import ReplayConfig, ring_length


def test_the_ring_holds_whole_collect_steps() -> None:
    assert ring_length(ReplayConfig(capacity=1000), 64) == 15
    assert ring_length(ReplayConfig(capacity=65_536), 64) == 1024


def test_a_ring_too_short_for_one_window_is_refused_with_the_right_size() -> None:
    with pytest.raises(UserError, match=r"replay.capacity = 100 .* at least 256 is right"):
        ring_length(ReplayConfig(capacity=100, n_step=3), 64)
    with pytest.raises(UserError, match="holds 3 steps"):
        ring_length(ReplayConfig(capacity=255, n_step=3), 64)
    assert ring_length(ReplayConfig(capacity=256, n_step=3), 64) == 4
