"""The priority index (S30): exact distribution, exact totals, and the faults other replays had."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from trainer.lanes import random
from trainer.lanes.tree import take
from trainer.replay import priorities as module
from trainer.replay.priorities import (
    Priorities,
    annealed_beta,
    draw,
    empty_priorities,
    importance_weights,
    insert_,
    update_,
)

CPU = torch.device("cpu")
EPSILON = 1e-3


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def index_of(leaves: list[float] | npt.NDArray[np.float64], capacity: int | None = None) -> Priorities:
    """One lane whose leaves are exactly these values, written through the public functions."""
    count = len(leaves)
    built = empty_priorities(1, count if capacity is None else capacity, CPU)
    insert_(built, torch.zeros(1, dtype=torch.int64), count)
    losses = torch.tensor(np.asarray(leaves)).unsqueeze(0)
    update_(built, torch.arange(count).unsqueeze(0), losses, column(1.0), column(0.0))
    return built


def draws(built: Priorities, size: int, batch: int, steps: int, seed: int = 3) -> Tensor:
    size_L, seed_L = torch.tensor([size]), torch.tensor([seed])
    return torch.cat([draw(built, size_L, seed_L, step, batch)[0] for step in range(steps)])


def check_sums(built: Priorities) -> None:
    """Every sum is that of its parts, to the last bits of float64."""
    leaf_LMF = built.leaf_LN.double().view(*built.block_LM.shape, 64)
    torch.testing.assert_close(built.block_LM, leaf_LMF.sum(-1), rtol=1e-14, atol=0)
    torch.testing.assert_close(built.top_LC, built.block_LM.view(*built.top_LC.shape, 64).sum(-1), rtol=1e-14, atol=0)


def test_500_000_entries_are_drawn_in_exact_proportion() -> None:
    rng = np.random.default_rng(0)
    leaves = rng.gamma(0.3, size=500_000).astype(np.float32).astype(np.float64) + 1e-3
    built = index_of(leaves)
    drawn = draws(built, 500_000, 8192, 125)
    counts = np.bincount(drawn.numpy(), minlength=500_000)
    order = np.argsort(leaves)
    groups = np.array_split(order, 1000)
    observed = np.array([counts[group].sum() for group in groups])
    expected = np.array([leaves[group].sum() for group in groups]) / leaves.sum() * len(drawn)
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    neighbours = counts.reshape(1000, 500).sum(1)
    assert np.abs(neighbours - leaves.reshape(1000, 500).sum(1) / leaves.sum() * len(drawn)).max() < 2 * 125


def test_a_few_entries_are_drawn_in_exact_proportion() -> None:
    leaves, lanes = [0.5, 1.0, 4.0, 0.25, 2.0], 20_000
    built = take(index_of(leaves), torch.zeros(lanes, dtype=torch.int64))
    seed_L = torch.tensor([random.lane_seed(lane, 0) for lane in range(lanes)])
    drawn = draw(built, torch.full((lanes,), 5), seed_L, 0, 1).flatten()
    counts = torch.bincount(drawn, minlength=5).numpy()
    assert stats.chisquare(counts, np.array(leaves) / sum(leaves) * lanes).pvalue > 1e-3


def test_the_total_covers_the_last_items() -> None:
    """stable-baselines #941: the total missed the last elements, which were never drawn."""
    for capacity in (3, 65, 4097, 8192):
        built = index_of([1.0] * capacity)
        assert built.top_LC.sum().item() == capacity
        assert draws(built, capacity, capacity, 1).tolist() == list(range(capacity))


@pytest.mark.parametrize("capacity", [1, 5, 63, 64, 65, 1000, 4095, 4096, 4097, 10_000])
def test_any_capacity_draws_the_right_index(capacity: int) -> None:
    """CleanRL #546, #557: a tree of a capacity that is no power of two permuted the indices."""
    for only in {0, capacity // 3, capacity - 1}:
        leaves = np.zeros(capacity)
        leaves[only] = 0.7
        assert set(draws(index_of(leaves), capacity, 8, 2).tolist()) == {only}


def test_rounding_never_gives_an_index_past_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kaixhin #81: the largest draw, and sums that round, stay on the last item of positive priority."""
    leaves = np.full(777, 0.1)
    leaves[700:] = 0.0
    built = index_of(leaves)

    def largest(seed_L: Tensor, stream: int, step: int, shape: tuple[int, ...]) -> Tensor:
        del stream, step
        return torch.full((seed_L.shape[0], *shape), 2**32 - 1)

    monkeypatch.setattr(random, "bits", largest)
    for batch in (1, 7, 100):
        assert draws(built, 777, batch, 1)[-1] == 699
    built.top_LC[:] *= 1 + 1e-9  # a total larger than its parts by rounding
    assert draws(built, 777, 1, 1).item() == 699


def test_a_point_at_the_total_falls_on_the_last_positive_part() -> None:
    cumulative = column(1.0, 1.0, 3.0, 3.0).view(1, 1, 4)
    found, rest = module._search(cumulative, column(3.0).view(1, 1))
    assert found.item() == 2
    assert 0 <= rest.item() < 2.0
    assert module._search(cumulative, column(1.0).view(1, 1))[0].item() == 2
    assert module._search(cumulative, column(0.0).view(1, 1))[0].item() == 0


def test_an_item_of_priority_zero_is_never_drawn() -> None:
    """Tianshou #625."""
    leaves = np.zeros(5000)
    leaves[1::7] = np.linspace(0.001, 3.0, len(leaves[1::7]))
    drawn = draws(index_of(leaves), 5000, 256, 40)
    assert (torch.tensor(leaves)[drawn] > 0).all()
    assert len(set(drawn.tolist())) > 600


def test_slots_that_are_not_yet_filled_are_never_drawn() -> None:
    built = empty_priorities(1, 1000, CPU)
    insert_(built, torch.tensor([0]), 10)
    assert draws(built, 10, 64, 20).max() == 9


def test_an_empty_lane_draws_index_zero() -> None:
    assert draws(empty_priorities(1, 1000, CPU), 0, 16, 1).tolist() == [0] * 16


def test_one_draw_falls_in_each_segment_of_the_mass() -> None:
    """openai/baselines #527: with equal priorities and one segment per item, each item comes exactly once."""
    assert draws(index_of([0.5] * 96), 96, 96, 1).tolist() == list(range(96))
    heavy = draws(index_of([6.0, 1.0, 1.0]), 3, 4, 50).view(50, 4)
    assert (heavy[:, :3] == 0).all()
    assert (heavy[:, 3] > 0).all()


def test_new_items_get_the_running_maximum() -> None:
    """ray #2929: new items came in at priority 1."""
    built = index_of([1.0, 2.0], capacity=100)
    update_(built, torch.tensor([[1]]), column(9.0).view(1, 1), column(0.5), column(0.0))
    insert_(built, torch.tensor([2]), 2)
    assert built.leaf_LN[0, :5].tolist() == [1.0, 3.0, 3.0, 3.0, 0.0]
    update_(built, torch.tensor([[1]]), column(4.0).view(1, 1), column(0.5), column(0.0))
    insert_(built, torch.tensor([4]), 1)
    assert built.leaf_LN[0, 4] == 3.0


def test_alpha_is_applied_once_to_new_and_to_resampled_items() -> None:
    """pytorch/rl #3925: alpha was applied twice to new items."""
    built = empty_priorities(1, 8, CPU)
    insert_(built, torch.tensor([0]), 2)
    update_(built, torch.tensor([[0]]), column(16.0 - EPSILON).view(1, 1), column(0.25), column(EPSILON))
    insert_(built, torch.tensor([2]), 1)
    torch.testing.assert_close(built.leaf_LN[0, :3], torch.tensor([2.0, 1.0, 2.0]))


def test_alpha_zero_is_uniform_replay_with_weights_one() -> None:
    built = index_of([1.0] * 40)
    losses = torch.linspace(0, 100, 40).unsqueeze(0)
    update_(built, torch.arange(40).unsqueeze(0), losses, column(0.0), column(EPSILON))
    assert built.leaf_LN[0, :40].tolist() == [1.0] * 40
    weights = importance_weights(built, torch.arange(40).unsqueeze(0), torch.tensor([40]), column(0.7))
    assert weights.tolist() == [[1.0] * 40]


def test_a_negative_loss_counts_by_its_size_and_a_zero_loss_stays_drawable() -> None:
    built = index_of([1.0, 1.0, 1.0])
    update_(built, torch.tensor([[0, 1]]), column(-3.0, 0.0).view(1, 2), column(1.0), column(EPSILON))
    torch.testing.assert_close(built.leaf_LN[0, :3], torch.tensor([3.0 + EPSILON, EPSILON, 1.0]))


def test_importance_weights_fall_with_priority_and_use_the_current_size() -> None:
    """takoika/PER #1: the exponent had the wrong sign and N was the capacity before the ring was full."""
    built = index_of([1.0, 2.0, 4.0, 1.0], capacity=4096)
    index_LB = torch.tensor([[2, 1, 2]])
    raw = [(4 * p / 8) ** -0.5 for p in (4.0, 2.0, 4.0)]
    weights = importance_weights(built, index_LB, torch.tensor([4]), column(0.5))
    torch.testing.assert_close(weights[0], torch.tensor([w / max(raw) for w in raw]))
    assert weights.max() == 1.0


def test_beta_is_annealed_to_its_end_and_stays_there() -> None:
    """LeanRL: a schedule that never moved because of a clamp."""
    step_L = torch.tensor([0, 25, 50, 100, 10_000])
    beta_L = annealed_beta(column(*[0.4] * 5), column(*[1.0] * 5), column(*[100.0] * 5), step_L)
    torch.testing.assert_close(beta_L, column(0.4, 0.55, 0.7, 1.0, 1.0))
    falling = annealed_beta(column(0.8, 0.8), column(0.2, 0.2), column(10.0, 10.0), torch.tensor([5, 20]))
    torch.testing.assert_close(falling, column(0.5, 0.2))


def test_of_equal_indices_the_largest_loss_counts_in_any_order() -> None:
    for losses in ([1.0, 5.0, 3.0, 2.0], [5.0, 1.0, 2.0, 3.0], [3.0, 2.0, 5.0, 1.0]):
        built = index_of([1.0] * 4)
        update_(built, torch.tensor([[2, 2, 2, 0]]), column(*losses).view(1, 4), column(1.0), column(0.0))
        assert built.leaf_LN[0, :4].tolist() == [losses[3], 1.0, max(losses[:3]), 1.0]
        check_sums(built)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e39])
def test_a_loss_that_is_not_finite_leaves_the_index_sound(poison: float) -> None:
    built = index_of([1.0, 2.0, 3.0])
    update_(built, torch.tensor([[0]]), column(poison).view(1, 1), column(1.0), column(EPSILON))
    assert built.leaf_LN[0, :3].tolist() == [3.0, 2.0, 3.0]
    assert draws(built, 3, 64, 4).max() == 2


def test_totals_do_not_drift_over_many_updates() -> None:
    built = index_of([1.0] * 9000)
    rng = np.random.default_rng(1)
    for _ in range(300):
        size = 10.0 ** rng.integers(-8, 9)
        index_LB = torch.from_numpy(rng.integers(0, 9000, (1, 64)))
        update_(built, index_LB, torch.from_numpy(rng.random((1, 64)) * size), column(1.0), column(0.0))
    check_sums(built)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 66, 130, 4096])
def test_inserting_a_run_updates_every_touched_block(count: int) -> None:
    capacity = 2 * 4096 + 100
    for first in {0, 1, 62, 63, 64, capacity - count}:
        built = empty_priorities(2, capacity, CPU)
        insert_(built, torch.tensor([first, 0]), count)
        assert built.leaf_LN.sum(-1).tolist() == [count, count]
        assert built.leaf_LN[0, first : first + count].min() == 1.0
        check_sums(built)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), capacity=st.sampled_from([3, 64, 100, 130, 4100]), alpha=st.sampled_from([0.0, 0.3, 1.0]))
def test_the_index_agrees_with_plain_prioritised_replay(data: st.DataObject, capacity: int, alpha: float) -> None:
    """Oracle: priorities in a float64 numpy array, sampled by one cumulative sum."""
    built, plain, largest = empty_priorities(1, capacity, CPU), np.zeros(capacity), 1.0
    filled = data.draw(st.integers(1, capacity))
    insert_(built, torch.tensor([0]), filled)
    plain[:filled] = largest
    for _ in range(data.draw(st.integers(0, 4))):
        batch = data.draw(st.integers(1, 12))
        index = np.array(data.draw(st.lists(st.integers(0, filled - 1), min_size=batch, max_size=batch)))
        loss = np.array(data.draw(st.lists(st.floats(0, 1e4, width=32), min_size=batch, max_size=batch)))
        update_(built, torch.from_numpy(index)[None], torch.from_numpy(loss)[None], column(alpha), column(EPSILON))
        for place in set(index.tolist()):
            plain[place] = (loss[index == place].max() + EPSILON) ** alpha
        largest = max(largest, *plain[index])
    np.testing.assert_allclose(built.leaf_LN[0, :capacity].numpy(), plain, rtol=1e-6)
    assert built.maximum_L.item() == pytest.approx(largest, rel=1e-6)
    check_sums(built)

    batch, seed_L, size_L = data.draw(st.integers(1, 40)), torch.tensor([5]), torch.tensor([filled])
    drawn = draw(built, size_L, seed_L, 9, batch)[0].numpy()
    leaf = built.leaf_LN[0, :capacity].double().numpy()
    fraction = (random.bits(seed_L, random.Stream.SAMPLE, 9, (batch,))[0].numpy() * 2.0**-32 + np.arange(batch)) / batch
    cumulative, point = np.cumsum(leaf), fraction * leaf.sum()
    slack = 1e-9 * leaf.sum()  # a point on an edge may fall on either side
    assert (drawn >= np.searchsorted(cumulative, point - slack, side="right")).all()
    assert (drawn <= np.searchsorted(cumulative, point + slack, side="right")).all()

    weights = importance_weights(built, torch.tensor(drawn).unsqueeze(0), size_L, column(0.6))[0].numpy()
    raw = (filled * leaf[drawn] / leaf.sum()) ** -0.6
    np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-5)
