"""Replay as a whole: batches, priorities from raw losses, and lanes that do not touch each other."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from trainer.lanes.tree import flatten, map_tensors, put_, stack_dynamic, take
from trainer.replay.config import ReplayConfig
from trainer.replay.ring import Transition
from trainer.replay.sample import Batch, Replay, ReplayParams, append_, empty_replay, reprioritise_, sample

EPISODES, LENGTH, PORTFOLIO, BATCH = 5, 30, 3, 17


def params_of(lanes: int, config: ReplayConfig | None = None, device: str = "cpu") -> ReplayParams:
    return stack_dynamic(ReplayParams, [ReplayConfig() if config is None else config] * lanes, torch.device(device))


def lane_step(seed: int, step: int) -> Transition:
    """One lane's collect step, a function of (seed, step) alone."""
    generator = torch.Generator().manual_seed(seed * 1000 + step)
    whole = torch.randint(0, 1000, (1, EPISODES, 4), generator=generator)
    portfolio = torch.randn(2, 1, EPISODES, PORTFOLIO, generator=generator)
    unit = torch.rand(2, 1, EPISODES, generator=generator)
    bar_LE = whole[..., 0]
    return Transition(
        bar_LE=bar_LE,
        next_bar_LE=bar_LE + 1,
        mirror_LE=whole[..., 1] > 500,
        portfolio_LEP=portfolio[0],
        next_portfolio_LEP=portfolio[1],
        action_LE4=whole % 4,
        reward_LE=portfolio[0, ..., 0],
        terminated_LE=unit[0] < 0.1,
        cut_LE=unit[1] < 0.1,
    )


def steps_of(seeds: list[int], step: int, poison: list[bool]) -> Transition:
    parts = [lane_step(seed, step) for seed in seeds]
    joined = map_tensors(lambda *tensors: torch.cat(tensors), parts[0], *parts[1:])
    spoiled_L = torch.tensor(poison)
    reward_LE = torch.where(spoiled_L[:, None], float("nan"), joined.reward_LE)
    portfolio_LEP = torch.where(spoiled_L[:, None, None], float("inf"), joined.portfolio_LEP)
    return Transition(**{**vars(joined), "reward_LE": reward_LE, "portfolio_LEP": portfolio_LEP})


def history(lanes: int, slot: int, poison: bool) -> dict[str, Tensor]:
    """Everything the lane in ``slot`` (seed 7) sees and stores in a run of collect and learn steps."""
    seeds = [100 + lane for lane in range(lanes)]
    seeds[slot] = 7
    poisoned = [poison and lane != slot for lane in range(lanes)]
    replay, params = empty_replay(lanes, LENGTH, EPISODES, PORTFOLIO, torch.device("cpu")), params_of(lanes)
    gamma_L = torch.full((lanes,), 0.5, dtype=torch.float64)
    gamma_L[slot] = 0.97
    seen: dict[str, Tensor] = {}
    for step in range(70):
        append_(replay, steps_of(seeds, step, poisoned))
        if step % 3 == 2:
            step_L = torch.full((lanes,), step)
            batch = sample(replay, params, gamma_L, torch.tensor(seeds), step_L, BATCH, 3)
            loss_LB = batch.return_LB * 10.0
            reprioritise_(replay, params, batch.index_LB, loss_LB)
            seen.update({f"{step}.{name}": tensor[slot] for name, tensor in flatten(batch).items()})
    seen.update({name: tensor[slot] for name, tensor in flatten(replay).items()})
    return seen


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("lanes", [1, 2, 3, 8, 32])
def test_a_lane_replays_the_same_bits_at_any_group_size_and_slot_beside_nan(lanes: int, poison: bool) -> None:
    alone = history(1, 0, False)
    for slot in {0, lanes - 1}:
        found = history(lanes, slot, poison)
        assert found.keys() == alone.keys()
        for name, tensor in alone.items():
            assert torch.equal(found[name], tensor), name


def filled(lanes: int = 2, steps: int = 40) -> Replay:
    replay = empty_replay(lanes, LENGTH, EPISODES, PORTFOLIO, torch.device("cpu"))
    for step in range(steps):
        append_(replay, steps_of(list(range(lanes)), step, [False] * lanes))
    return replay


def draw_batch(replay: Replay, step: int = 0, n_step: int = 1, batch: int = 64) -> Batch:
    lanes = replay.ring.cursor_L.shape[0]
    gamma_L = torch.full((lanes,), 0.9, dtype=torch.float64)
    step_L = torch.full((lanes,), step)
    return sample(replay, params_of(lanes), gamma_L, torch.arange(lanes), step_L, batch, n_step)


def test_a_batch_holds_the_stored_transitions_in_the_types_of_its_record() -> None:
    replay = filled()
    batch = draw_batch(replay)
    for lane in range(2):
        t, e = batch.index_LB[lane] // EPISODES, batch.index_LB[lane] % EPISODES
        ring = take(replay.ring, torch.tensor([lane]))
        assert torch.equal(batch.bar_LB[lane], ring.bar_LTE[0, t, e].long())
        assert torch.equal(batch.mirror_LB[lane], ring.mirror_LTE[0, t, e])
        assert torch.equal(batch.portfolio_LBP[lane], ring.portfolio_LTEP[0, t, e])
        assert torch.equal(batch.action_LB4[lane], ring.action_LTE4[0, t, e].long())
        assert torch.equal(batch.return_LB[lane], ring.reward_LTE[0, t, e])
        assert torch.equal(batch.discount_LB[lane] == 0, ring.terminated_LTE[0, t, e])
        assert torch.equal(batch.next_bar_LB[lane], ring.next_bar_LTE[0, t, e].long())
        assert torch.equal(batch.next_portfolio_LBP[lane], ring.next_portfolio_LTEP[0, t, e])
    whole = {"bar_LB", "next_bar_LB", "action_LB4", "index_LB"}
    for f in fields(batch):
        kind = torch.int64 if f.name in whole else torch.bool if f.name == "mirror_LB" else torch.float32
        assert getattr(batch, f.name).dtype == kind, f.name


def test_an_n_step_batch_bootstraps_from_the_last_step_of_its_window() -> None:
    replay = empty_replay(1, 8, 1, 1, torch.device("cpu"))
    for t in range(5):
        bar, value = torch.tensor([[t * 10]]), torch.tensor([[[float(t)]]])
        never = bar < 0
        append_(
            replay, Transition(bar, bar + 10, never, value, value + 1, bar.new_zeros(1, 1, 4), bar / 10, never, never)
        )
    batch = sample(
        replay,
        params_of(1),
        torch.tensor([0.5], dtype=torch.float64),
        torch.tensor([1]),
        torch.tensor([0]),
        64,
        3,
    )
    first = batch.bar_LB == 10
    assert first.any()
    assert (batch.return_LB[first] == 1 + 2 / 2 + 3 / 4).all()
    assert (batch.discount_LB[first] == 0.125).all()
    assert (batch.next_bar_LB[first] == 40).all()
    assert (batch.next_portfolio_LBP[first] == 4.0).all()


def test_priorities_come_from_raw_losses_not_from_weighted_ones() -> None:
    """Kaixhin ffcfc36: the importance weight was multiplied into the priority."""
    replay, params = filled(), params_of(2)
    losses = torch.linspace(0.1, 9.0, 64).expand(2, -1)
    reprioritise_(replay, params, torch.arange(64).expand(2, -1), losses)
    batch = draw_batch(replay, step=50_000)
    assert batch.weight_LB.min() < 0.9
    reprioritise_(replay, params, batch.index_LB, torch.full((2, 64), 4.0))
    leaves = replay.priorities.leaf_LN.gather(1, batch.index_LB)
    torch.testing.assert_close(leaves, torch.full((2, 64), (4.0 + 1e-3) ** 0.3))


def test_an_overwritten_slot_loses_its_old_priority() -> None:
    replay, params = filled(1, LENGTH), params_of(1)
    reprioritise_(replay, params, torch.arange(EPISODES)[None], torch.full((1, EPISODES), 1e-6))
    assert replay.priorities.leaf_LN[0, 0] < 0.2
    append_(replay, lane_step(1, 99))
    assert replay.priorities.leaf_LN[0, :EPISODES].tolist() == [replay.priorities.maximum_L.item()] * EPISODES


def test_a_step_gets_priority_in_the_slots_it_is_written_to() -> None:
    replay = filled(1, 2)
    assert replay.priorities.leaf_LN[0].nonzero().flatten().tolist() == list(range(2 * EPISODES))
    assert set(draw_batch(replay).index_LB[0].tolist()) == set(range(2 * EPISODES))


def test_weights_reach_full_correction_as_beta_is_annealed() -> None:
    """LeanRL: test schedule values where they act: the smallest weight is the priority ratio to the power beta."""
    replay, params = filled(1), params_of(1)
    reprioritise_(replay, params, torch.arange(150)[None], torch.linspace(0.01, 20.0, 150)[None])
    for step, beta in ((0, 0.4), (50_000, 0.7), (100_000, 1.0), (400_000, 1.0)):
        batch = draw_batch(replay, step=step)
        leaves = replay.priorities.leaf_LN[0, batch.index_LB[0]]
        assert batch.weight_LB.min().item() == pytest.approx((leaves.max() / leaves.min()).item() ** -beta, rel=1e-5)


def test_successive_steps_draw_other_items() -> None:
    replay = filled(1)
    assert not torch.equal(draw_batch(replay, 1).index_LB, draw_batch(replay, 2).index_LB)
    assert torch.equal(draw_batch(replay, 1).index_LB, draw_batch(replay, 1).index_LB)


def test_a_lane_moved_to_another_group_continues_with_the_same_batches() -> None:
    one, other = filled(3), empty_replay(2, LENGTH, EPISODES, PORTFOLIO, torch.device("cpu"))
    put_(other, torch.tensor([1]), take(one, torch.tensor([1])))
    expected, found = draw_batch(one, 4, 2), draw_batch(other, 4, 2)
    for name, tensor in flatten(expected).items():
        assert torch.equal(flatten(found)[name][1], tensor[1]), name


@pytest.mark.cuda
def test_a_captured_replay_step_equals_the_one_on_the_cpu_and_draws_afresh() -> None:
    cpu = filled()
    gpu = map_tensors(lambda tensor: tensor.cuda(), cpu)
    gamma, seeds = torch.full((2,), 0.9, dtype=torch.float64), torch.arange(2)
    step_L, gamma_L, seed_L, params = (
        torch.zeros_like(seeds).cuda(),
        gamma.cuda(),
        seeds.cuda(),
        params_of(2, device="cuda"),
    )

    def learn(replay: Replay) -> Batch:
        batch = sample(replay, params, gamma_L, seed_L, step_L, 64, 2)
        reprioritise_(replay, params, batch.index_LB, batch.return_LB)
        step_L.add_(1)
        return batch

    learn(map_tensors(torch.clone, gpu))
    step_L.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = learn(gpu)
    for step in range(3):
        graph.replay()
        batch = draw_batch(cpu, step, 2)
        reprioritise_(cpu, params_of(2), batch.index_LB, batch.return_LB)
        assert (captured.index_LB.cpu() == batch.index_LB).double().mean() > 0.98
