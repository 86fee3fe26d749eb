"""The room a trainer offers, from hand-worked sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import cluster.capacity as capacity_module
from cluster.capacity import CPU_LANES, Capacity, available_memory, lane_bytes
from cluster.config import PoolConfig
from tests.trainer.training.conftest import CPU, tiny
from trainer.training.lane_state import LaneState, new_lanes
from trainer.training.prepare import Prepared, prepare


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(tiny(), CPU)


@pytest.fixture
def state(prepared: Prepared) -> LaneState:
    return new_lanes(tiny(), prepared, prepared.folds, CPU)


def test_a_lane_costs_its_tensors_whatever_the_size_of_its_group(prepared: Prepared, state: LaneState) -> None:
    single = new_lanes(tiny(), prepared, prepared.folds[:1], CPU)
    assert lane_bytes(state) == lane_bytes(single)
    assert lane_bytes(state) > state.params_LD.shape[1] * 4 * 5  # weights, target, best, two moments


def test_memory_bounds_the_offer(state: LaneState, monkeypatch: pytest.MonkeyPatch) -> None:
    one = lane_bytes(state)
    monkeypatch.setattr(capacity_module, "available_memory", lambda: 40 * one)
    capacity = Capacity(PoolConfig(memory_share=0.5), CPU, slots=2)
    capacity.admitted("s", state)
    offer = capacity.offer({"s": 3}, {})
    assert offer.lane_bytes == {"s": 2 * one}  # a copy of it while lanes join
    assert offer.bytes_free == (40 // 2 + 3) * one // 2 - 3 * 2 * one
    assert offer.lane_limit["s"] == 5  # 11.5 lanes' bytes hold five lanes and their copies


def test_what_a_lane_costs_is_known_on_a_cpu_at_once_and_on_a_gpu_after_an_epoch(
    state: LaneState, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, gpu = Capacity(PoolConfig(), CPU, slots=1), Capacity(PoolConfig(), torch.device("cuda"), slots=1)
    for capacity in (cpu, gpu):
        capacity.admitted("s", state)
    assert (cpu.known, gpu.known) == ({"s"}, set())
    for name, peak in (("memory_allocated", 100), ("max_memory_allocated", 400), ("reset_peak_memory_stats", 0)):
        monkeypatch.setattr(torch.cuda, name, lambda _device, peak=peak: peak)
    gpu.before_epoch()
    gpu.after_epoch("s", lanes=3)
    assert gpu.known == {"s"}


def test_lanes_about_to_leave_are_room(state: LaneState) -> None:
    capacity = Capacity(PoolConfig(lanes=8), CPU, slots=1)
    capacity.admitted("s", state)
    assert capacity.offer({"s": 6}, {}).lanes == 2
    assert capacity.offer({"s": 6}, {"s": 3}).lanes == 5


def test_after_running_out_of_memory_half_is_the_limit(state: LaneState) -> None:
    capacity = Capacity(PoolConfig(), CPU, slots=1)
    capacity.admitted("s", state)
    capacity.exceeded("s", 12)
    assert capacity.offer({}, {}).lane_limit["s"] == 6


def test_a_cpu_gets_a_fixed_most_where_nothing_is_configured() -> None:
    offer = Capacity(PoolConfig(), CPU, slots=1).offer({}, {})
    assert (offer.lanes, offer.lane_bytes, offer.groups) == (CPU_LANES, {}, ())


@pytest.mark.parametrize(("rows", "fitting"), [(0, 0), (7, 1), (8, 8), (127, 96), (128, 128), (300, 160), (330, 320)])
def test_on_a_gpu_a_group_fits_with_its_idle_rows(rows: int, fitting: int) -> None:
    capacity = Capacity(PoolConfig(), torch.device("cuda"), slots=1)
    assert capacity._rows(rows * 10 + 5, 10) == fitting


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_module, "_CGROUP", tmp_path)
    monkeypatch.setattr(capacity_module, "_MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal:       100 kB\nMemAvailable:       60 kB\n")
    assert available_memory() == 60 * 1024
    (tmp_path / "memory.max").write_text("50000\n")
    (tmp_path / "memory.current").write_text("20000\n")
    assert available_memory() == 30_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() == 60 * 1024


@pytest.mark.parametrize(("share", "trainers"), [(None, 1), (0.5, 2), (0.3, 3)])
def test_trainers_on_one_card_each_count_on_their_part_of_it(
    share: float | None, trainers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 1_200
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (1_000, total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 100)
    capacity = Capacity(PoolConfig(trainer_gpus=share, memory_share=0.5), torch.device("cuda"), slots=8)
    assert capacity.offer({}, {}).bytes_free == min(1_100, total // trainers) // 2
