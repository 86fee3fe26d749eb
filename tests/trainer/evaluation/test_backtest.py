"""Slots of a backtest, and the path they are joined into (S42)."""

from __future__ import annotations

import numpy as np
import torch

from trainer.evaluation.backtest import make_slots, session_slots

CPU = torch.device("cpu")


def test_a_range_is_cut_into_its_sessions_and_half_sessions() -> None:
    session_N = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    assert session_slots(session_N, (0, 8)) == [(0, 3), (3, 5), (5, 8)]
    assert session_slots(session_N, (1, 7)) == [(1, 3), (3, 5), (5, 7)]
    assert session_slots(session_N, (3, 5)) == [(3, 5)]


def test_slots_reach_their_last_bar_and_padding_is_over_before_it_begins() -> None:
    slots = make_slots([[(0, 3), (3, 5)], [(5, 8)]], 4, CPU)
    assert slots.start_LV.tolist() == [[0, 3, 0, 0], [5, 0, 0, 0]]
    assert slots.end_LV.tolist() == [[2, 4, 0, 0], [7, 0, 0, 0]]
