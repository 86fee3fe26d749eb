"""Counter-based numbers: published answers, distribution, independence, and the same bits wherever a lane sits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from trainer.lanes import random
from trainer.lanes.random import Stream, lane_seed

_MASK = 0xFFFFFFFF


def philox_reference(counter: list[int], key: list[int], rounds: int) -> list[int]:
    """Philox4x32 in python integers, straight from the paper."""
    c, k = list(counter), list(key)
    for _ in range(rounds):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & _MASK, (p0 >> 32) ^ c[3] ^ k[1], p0 & _MASK]
        k = [(k[0] + 0x9E3779B9) & _MASK, (k[1] + 0xBB67AE85) & _MASK]
    return c


def seeds(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_the_reference_gives_the_ten_round_answers_published_with_random123() -> None:
    assert philox_reference([0] * 4, [0] * 2, 10) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox_reference([_MASK] * 4, [_MASK] * 2, 10) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_zero_key_and_counter_give_the_seven_round_answer_published_with_random123() -> None:
    assert random.bits(seeds(0), 0, 0, (4,)).tolist() == [[0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]]


def test_bits_follow_the_reference_for_large_keys_streams_and_steps() -> None:
    seed, stream, step = 0x7EDCBA9876543210, 6, 0x123456789ABC
    drawn = random.bits(seeds(seed), stream, step, (9,))[0].tolist()
    expected: list[int] = []
    for block in range(3):
        expected += philox_reference([block, stream, step & _MASK, step >> 32], [seed & _MASK, seed >> 32], 7)
    assert drawn == expected[:9]


def test_lane_seed_is_pinned_and_differs_by_trial_and_fold() -> None:
    assert random._splitmix64(0) == 0xE220A8397B1DCDAF  # first output of the published generator at seed 0
    assert lane_seed(0, 0) == 0x53836E97A68CBF37
    drawn = {lane_seed(trial, fold) for trial in range(200) for fold in range(20)}
    assert len(drawn) == 4000
    assert all(0 <= seed < 2**63 for seed in drawn)


@pytest.mark.parametrize("stream", [Stream.EXPLORE, Stream.SAMPLE])
def test_uniform_is_uniform(stream: Stream) -> None:
    draws = random.uniform(seeds(lane_seed(7, 0)), stream, 3, (200_000,))[0].double().numpy()
    assert draws.min() >= 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    counts, _ = np.histogram(draws, 256, (0, 1))
    assert stats.chisquare(counts).pvalue > 1e-3


def test_every_bit_is_set_half_of_the_time() -> None:
    words = random.bits(seeds(lane_seed(1, 1)), Stream.NOISE, 0, (100_000,))[0]
    shares = [((words >> place) & 1).double().mean().item() for place in range(32)]
    assert max(abs(share - 0.5) for share in shares) < 4.5 * 0.5 / 100_000**0.5


def test_normal_is_standard_normal() -> None:
    draws = random.normal(seeds(lane_seed(3, 2)), Stream.NOISE, 5, (200_000,))[0].double().numpy()
    assert np.isfinite(draws).all()
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(draws[0::2], draws[1::2])[0, 1]) < 0.015


def test_randint_covers_its_range_evenly_and_takes_a_bound_per_lane() -> None:
    draws = random.randint(seeds(11, 12), Stream.START, 0, (70_000,), torch.tensor([7, 1]))
    assert stats.chisquare(torch.bincount(draws[0], minlength=7).numpy()).pvalue > 1e-3
    assert draws[1].max() == 0
    assert torch.equal(random.randint(seeds(11), Stream.START, 0, (70_000,), 7)[0], draws[0])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((5, Stream.NOISE, 9), (6, Stream.NOISE, 9)),
        ((5, Stream.NOISE, 9), (5, Stream.EXPLORE, 9)),
        ((5, Stream.NOISE, 9), (5, Stream.NOISE, 10)),
        ((5, Stream.NOISE, 9), (5, Stream.NOISE, 9 + 2**32)),
    ],
    ids=["seed", "stream", "step", "step above 32 bits"],
)
def test_neighbouring_seeds_streams_and_steps_are_uncorrelated(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    first, second = (
        random.uniform(seeds(seed), stream, step, (50_000,))[0].double().numpy() for seed, stream, step in (one, other)
    )
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
    first_draws = random.bits(torch.arange(4096), Stream.NOISE, 0, (1,))[:, 0]
    assert stats.kstest(first_draws.double().numpy() / 2**32, "uniform").pvalue > 1e-3


def test_a_longer_request_starts_with_the_shorter_one() -> None:
    for draw in (random.bits, random.uniform, random.normal):
        assert torch.equal(draw(seeds(4), 1, 2, (300,))[:, :5], draw(seeds(4), 1, 2, (5,)))


@pytest.mark.parametrize("lanes", [1, 2, 3, 8, 32])
def test_a_lane_draws_the_same_bits_at_any_group_size_and_slot(lanes: int) -> None:
    for draw in (random.bits, random.uniform, random.normal):
        alone = draw(seeds(99), Stream.NOISE, 7, (5, 13))
        for slot in {0, lanes // 2, lanes - 1}:
            seed_L = torch.arange(lanes) + 1000
            seed_L[slot] = 99
            step_L = torch.arange(lanes)
            step_L[slot] = 7
            assert torch.equal(draw(seed_L, Stream.NOISE, step_L, (5, 13))[slot], alone[0])


def test_a_step_may_be_an_int_a_scalar_tensor_or_a_tensor_per_lane() -> None:
    seed_L = seeds(1, 2)
    expected = random.bits(seed_L, 0, 3, (6,))
    assert torch.equal(random.bits(seed_L, 0, torch.tensor(3), (6,)), expected)
    assert torch.equal(random.bits(seed_L, 0, torch.tensor([3, 3]), (6,)), expected)


def test_nothing_touches_the_global_generator() -> None:
    before = torch.get_rng_state()
    random.normal(seeds(1), 0, 0, (100,))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.cuda
def test_cuda_draws_the_same_bits_and_a_captured_graph_draws_fresh_ones() -> None:
    seed_L, step = seeds(5, 6).cuda(), torch.zeros((), dtype=torch.int64, device="cuda")
    assert torch.equal(random.bits(seed_L, 1, 4, (1000,)).cpu(), random.bits(seed_L.cpu(), 1, 4, (1000,)))
    torch.testing.assert_close(
        random.normal(seed_L, 1, 4, (1000,)).cpu(), random.normal(seed_L.cpu(), 1, 4, (1000,)), rtol=1e-5, atol=1e-5
    )
    random.bits(seed_L, 1, step, (64,))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = random.bits(seed_L, 1, step, (64,))
        step += 1
    for replay in range(3):
        graph.replay()
        assert torch.equal(drawn.cpu(), random.bits(seed_L.cpu(), 1, replay, (64,)))


def test_streams_drawn_together_are_those_drawn_alone() -> None:
    seed_L, step_L = seeds(5, 77, 2**62), torch.tensor([0, 3, 2**33])
    wanted = ((Stream.NOISE, 130), (Stream.ACTION, 3), (Stream.EXPLORE, 64))
    for (stream, count), together in zip(wanted, random.words(seed_L, step_L, wanted), strict=True):
        assert torch.equal(together, random.bits(seed_L, stream, step_L, (count,)))
