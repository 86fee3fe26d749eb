"""n-step windows by hand (S33): what ends one, what is discounted, what is bootstrapped.

One parallel episode in most tests; step ``t`` has reward ``10**t`` so that every sum shows its terms, and gamma 1/2.
"""

from __future__ import annotations

from collections.abc import Set

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.replay.nstep import Window, n_step_window
from trainer.replay.ring import Ring, Transition, empty_ring, write_

NONE: frozenset[int] = frozenset()


def ring_of(steps: int, length: int, terminated: Set[int] = NONE, cut: Set[int] = NONE) -> Ring:
    ring = empty_ring(1, length, 1, 1, torch.device("cpu"))
    for t in range(steps):
        bar = torch.tensor([[t]])
        value = torch.tensor([[[float(t)]]])
        flags = (torch.tensor([[t in terminated]]), torch.tensor([[t in cut]]))
        write_(
            ring,
            Transition(bar, bar + 1, bar < 0, value, value + 1, bar.new_zeros(1, 1, 4), 10.0 ** bar.double(), *flags),
        )
    return ring


def window(ring: Ring, index: int, n_step: int, gamma: float = 0.5) -> Window:
    return n_step_window(ring, torch.tensor([[index]]), torch.tensor([gamma], dtype=torch.float64), n_step)


def numbers(found: Window) -> tuple[float, float, int]:
    return found.return_LB.item(), found.discount_LB.item(), int(found.last_LB.item())


def test_one_step_is_the_reward_and_gamma() -> None:
    assert numbers(window(ring_of(4, 8), 1, 1)) == (10.0, 0.5, 1)


def test_three_steps_sum_discounted_rewards_and_bootstrap_with_gamma_cubed() -> None:
    """FastTD3 #6: gamma instead of gamma**n."""
    assert numbers(window(ring_of(6, 8), 1, 3)) == (10 + 100 / 2 + 1000 / 4, 0.125, 3)


def test_a_window_never_crosses_the_write_cursor() -> None:
    """FastTD3 #7: the newest step is in slot 1; slot 2 holds the oldest data, not its future."""
    ring = ring_of(6, 4)
    assert ring.reward_LTE.flatten().tolist() == [1e4, 1e5, 1e2, 1e3]
    assert numbers(window(ring, 0, 3)) == (1e4 + 1e5 / 2, 0.25, 1)
    assert numbers(window(ring, 1, 3)) == (1e5, 0.5, 1)
    assert numbers(window(ring, 3, 3)) == (1e3 + 1e4 / 2 + 1e5 / 4, 0.125, 1)


def test_a_window_never_runs_into_slots_not_yet_written() -> None:
    assert numbers(window(ring_of(3, 8), 1, 5)) == (10 + 100 / 2, 0.25, 2)


def test_the_newest_slot_is_found_when_the_cursor_stands_at_zero() -> None:
    ring = ring_of(4, 4)
    assert numbers(window(ring, 2, 3)) == (100 + 1000 / 2, 0.25, 3)


def test_termination_ends_the_window_and_bootstraps_nothing() -> None:
    """FastTD3 #6: the done mask is that of the last step of the window, not of its first or of step n."""
    assert numbers(window(ring_of(6, 8, terminated={2}), 1, 4)) == (10 + 100 / 2, 0.0, 2)
    assert numbers(window(ring_of(6, 8, terminated={2}), 2, 4)) == (100.0, 0.0, 2)
    assert numbers(window(ring_of(6, 8, terminated={4}), 1, 3)) == (10 + 100 / 2 + 1000 / 4, 0.125, 3)


def test_truncation_ends_the_window_and_bootstraps_from_the_true_last_state() -> None:
    """tensorflow/agents #939: a cut is no termination, and rewards of the next episode do not spill in."""
    assert numbers(window(ring_of(6, 8, cut={2}), 1, 4)) == (10 + 100 / 2, 0.25, 2)


def test_a_session_end_ends_the_window_on_the_first_step_too() -> None:
    assert numbers(window(ring_of(6, 8, cut={1}), 1, 4)) == (10.0, 0.5, 1)


def test_a_step_both_terminated_and_cut_bootstraps_nothing() -> None:
    assert numbers(window(ring_of(6, 8, terminated={2}, cut={2}), 1, 4)) == (10 + 100 / 2, 0.0, 2)


@pytest.mark.parametrize("index", [4, 5])
def test_the_last_steps_of_an_episode_are_kept_with_shorter_windows(index: int) -> None:
    """ray #2929: the last n - 1 steps of an episode were dropped."""
    reward, discount, last = numbers(window(ring_of(8, 8, cut={5}), index, 4))
    assert (reward, discount, last) == ((1e4 + 1e5 / 2, 0.25, 5) if index == 4 else (1e5, 0.5, 5))


def test_parallel_episodes_and_lanes_keep_to_their_own_steps_and_gamma() -> None:
    ring = empty_ring(2, 4, 3, 1, torch.device("cpu"))
    for t in range(3):
        bar = torch.arange(6).reshape(2, 3) * 10 + t
        zeros = torch.zeros(2, 3, 1)
        never = bar < 0
        write_(ring, Transition(bar, bar, never, zeros, zeros, bar.new_zeros(2, 3, 4), bar.double(), never, never))
    found = n_step_window(ring, torch.tensor([[1, 5], [2, 0]]), torch.tensor([0.5, 1.0], dtype=torch.float64), 2)
    assert found.return_LB.tolist() == [[10 + 11 / 2, 21 + 22 / 2], [50 + 51, 30 + 31]]
    assert found.discount_LB.tolist() == [[0.25, 0.25], [1.0, 1.0]]
    assert found.last_LB.tolist() == [[4, 8], [5, 3]]


@settings(max_examples=150, deadline=None)
@given(
    flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12),
    length=st.integers(2, 7),
    n_step=st.integers(1, 6),
    data=st.data(),
)
def test_windows_agree_with_a_plain_walk_along_the_history(
    flags: list[tuple[bool, bool]], length: int, n_step: int, data: st.DataObject
) -> None:
    steps = len(flags)
    terminated = {t for t, (end, cut) in enumerate(flags) if end and cut}
    cuts = {t for t, (end, cut) in enumerate(flags) if cut and not end}
    start = data.draw(st.integers(max(0, steps - length), steps - 1))
    expected, discount, t = 0.0, 1.0, start
    for t in range(start, min(start + n_step, steps)):
        expected += discount * 10.0**t
        discount *= 0.5
        if t in terminated or t in cuts:
            break
    reward, found, last = numbers(window(ring_of(steps, length, terminated, cuts), start % length, n_step))
    assert reward == pytest.approx(expected, rel=1e-6)
    assert found == (0.0 if t in terminated else discount)
    assert last == t % length
