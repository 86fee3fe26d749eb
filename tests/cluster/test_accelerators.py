"""Several trainers on one machine: a GPU each, or parts of one. Ray is told of GPUs that torch does not find."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from cluster.config import PoolConfig
from cluster.pool import PoolHandle, start_pool
from cluster.resources import trainer_resources
from tests.cluster.test_pool import all_reports, epoch, wait_for

from .conftest import request_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="its GPUs are not there, and are not to be found")
GPUS = 4
LONG = (2, 60)


@pytest.fixture(scope="module", autouse=True)
def ray_with_gpus() -> Iterator[None]:
    ray.init(address="local", num_cpus=GPUS, num_gpus=GPUS, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def joined(pool: PoolHandle, count: int) -> dict[str, dict[str, Any]]:
    wait_for(lambda: len(pool.status()["trainers"]) == count)
    accounts: dict[str, dict[str, Any]] = pool.status()["accounts"]
    return accounts


def test_trainers_see_one_card_each() -> None:
    class Probe:
        def visible(self) -> str:
            return os.environ["CUDA_VISIBLE_DEVICES"]

    probes: list[Any] = [
        ray.remote(Probe).options(**trainer_resources(PoolConfig(), gpus=True)).remote() for _ in range(GPUS)
    ]
    assert sorted(ray.get([probe.visible.remote() for probe in probes])) == ["0", "1", "2", "3"]
    for probe in probes:
        ray.kill(probe)


@pytest.mark.slow
def test_a_trainer_on_every_gpu_and_none_of_their_trials_is_lost_with_one_of_them(tmp_path: Path) -> None:
    requests = [request_of(f"t{index}", LONG, seed=index) for index in range(6)]
    pool = start_pool(tmp_path / "sweep", PoolConfig(), None)
    accounts = joined(pool, GPUS)
    assert sorted(a["device"] for a in accounts.values()) == [
        f"CPU (torch cannot use GPU {gpu})" for gpu in range(GPUS)
    ]
    for request in requests:
        pool.submit(request)
    wait_for(lambda: min(pool.status()["trainers"].values()) > 0)
    wait_for(lambda: all(epoch(pool, request.trial_id) >= 6 for request in requests))
    held = {trial["trainer"] for trial in pool.status()["trials"].values()}
    victim = sorted(held)[0]
    os.kill(int(accounts[victim]["place"].rpartition(":")[2]), signal.SIGKILL)
    disturbed = {request.trial_id: all_reports(pool, request.trial_id) for request in requests}
    accounts = pool.status()["accounts"]
    assert accounts[victim]["gone"]
    assert all(0.0 < accounts[name]["busy"] <= 1.0 for name in held)
    pool.close()
    alone = start_pool(tmp_path / "alone", PoolConfig(trainers=1), None)
    for request in requests:
        alone.submit(request)
    for request in requests:
        reports = all_reports(alone, request.trial_id)
        assert [replace(report, capacities=()) for report in reports] == disturbed[request.trial_id]
    alone.close()


@pytest.mark.slow
def test_trainers_that_share_a_card_work_side_by_side(tmp_path: Path) -> None:
    pool = start_pool(tmp_path / "sweep", PoolConfig(trainers=2, trainer_gpus=0.5), None)
    joined(pool, 2)
    for index in range(2):
        pool.submit(request_of(f"t{index}", (1, 4), seed=index))
    assert all(all_reports(pool, f"t{index}")[-1].final for index in range(2))
    pool.close()


@pytest.mark.slow
def test_no_trainer_takes_a_gpu_that_it_was_not_given(tmp_path: Path) -> None:
    pool = start_pool(tmp_path / "sweep", PoolConfig(trainers=1, trainer_gpus=0.0), None)
    (account,) = joined(pool, 1).values()
    assert account["device"] == "CPU"
    pool.close()
