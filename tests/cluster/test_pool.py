"""The pool on a real Ray: trainers that die, pools that are drained, drivers that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import mlflow
import pytest
import ray

from cluster.config import PoolConfig
from cluster.journal import Journal, TrackingTarget
from cluster.pool import LanePool, PoolError, PoolHandle, start_pool
from cluster.protocol import RungReport, TrialRequest
from trainer.errors import UserError
from trainer.tracking import RunKey

from .conftest import request_of

WAIT_S = 90.0
LONG = (2, 40)
"""Rungs of a trial that is still under way when its second checkpoint is there."""


@pytest.fixture(scope="module", autouse=True)
def ray_here() -> Iterator[str]:
    context = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield str(context.address_info["gcs_address"])
    ray.shutdown()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., PoolHandle]]:
    """Starts pools on one sweep folder and ends them after the test."""
    started: list[PoolHandle] = []

    def start(tracking: TrackingTarget | None = None, trainers: int = 1) -> PoolHandle:
        started.append(start_pool(tmp_path / "sweep", PoolConfig(trainers=trainers), tracking))
        return started[-1]

    yield start
    for pool in started:
        try:
            pool.close()
        except PoolError:
            continue


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def all_reports(pool: PoolHandle, trial_id: str) -> list[RungReport]:
    reports = [pool.next_report(trial_id, 0)]
    while not reports[-1].ends:
        reports.append(pool.next_report(trial_id, reports[-1].epoch))
    return [replace(report, capacities=()) for report in reports]


def epoch(pool: PoolHandle, trial_id: str) -> int:
    return int(pool.status()["trials"].get(trial_id, {"epoch": 0})["epoch"])


def process_of_trainer(pool: PoolHandle) -> int:
    (account,) = pool.status()["accounts"].values()
    return int(account["place"].rpartition(":")[2])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, ray_here: str) -> list[RungReport]:
    """What the long trial reports when nothing happens to it."""
    del ray_here
    pool = start_pool(tmp_path_factory.mktemp("undisturbed"), PoolConfig(trainers=1), None)
    pool.submit(request_of("t0", LONG, seed=3))
    reports = all_reports(pool, "t0")
    pool.close()
    return reports


def test_a_trial_whose_trainer_is_killed_ends_by_itself_with_the_same_numbers(
    start: Callable[..., PoolHandle], undisturbed: list[RungReport]
) -> None:
    pool = start()
    pool.submit(request_of("t0", LONG, seed=3))
    wait_for(lambda: epoch(pool, "t0") >= 7)
    os.kill(process_of_trainer(pool), signal.SIGKILL)
    assert all_reports(pool, "t0") == undisturbed


@pytest.mark.slow
def test_a_drained_trial_goes_on_in_another_pool_with_the_same_numbers(
    start: Callable[..., PoolHandle], undisturbed: list[RungReport]
) -> None:
    pool = start()
    pool.submit(request_of("t0", LONG, seed=3))
    wait_for(lambda: epoch(pool, "t0") >= 7)
    began = time.monotonic()
    assert pool.drain() == ()
    assert time.monotonic() - began < 10.0
    assert pool.next_report("t0", 2).parked
    again = start()
    again.submit(request_of("t0", LONG, seed=3))
    assert all_reports(again, "t0") == undisturbed


@pytest.mark.slow
def test_waiting_for_a_trial_ends_when_it_is_stopped_and_asking_for_an_unknown_one_is_refused(
    start: Callable[..., PoolHandle],
) -> None:
    pool = start()
    with pytest.raises(UserError, match="no trial t9"):
        pool.next_report("t9", 0)
    pool.submit(request_of("t0", (1_000,)))
    waiting = ray.remote(lambda: pool.next_report("t0", 0)).remote()
    time.sleep(1.0)
    pool.stop("t0", "stopped")
    with pytest.raises(ray.exceptions.RayTaskError, match="no trial t0"):
        ray.get(waiting, timeout=WAIT_S)
    wait_for(lambda: sum(pool.status()["trainers"].values()) == 0)


def test_every_trial_has_one_run_with_its_numbers_up_to_the_rung_where_it_was_stopped(
    start: Callable[..., PoolHandle], tmp_path: Path
) -> None:
    parent = RunKey.of("sweep", sweep_id="s1", role="sweep")
    target = TrackingTarget(f"sqlite:///{tmp_path / 'mlflow.db'}", "test", "s1", parent)
    Journal(tmp_path / "sweep" / "tracking" / "driver.jsonl").status(parent, "RUNNING")
    pool = start(target, trainers=2)
    good, long = request_of("good", (1, 2)), request_of("pruned", (1, 1_000))
    for request in (good, long, TrialRequest("bad", {**good.config, "nonsense": 1}, good.rungs)):
        pool.submit(request)
    assert all_reports(pool, "good")[-1].final
    assert all_reports(pool, "bad")[-1].error is not None
    pool.next_report("pruned", 0)
    pool.stop("good", "complete")
    pool.stop("bad", "failed")
    pool.stop("pruned", "pruned")
    assert pool.close(60.0)
    client = mlflow.MlflowClient(target.uri)
    runs = client.search_runs([client.get_experiment_by_name("test").experiment_id])
    found = {run.data.tags["trial_id"]: run for run in runs if "trial_id" in run.data.tags}
    assert sorted(found) == ["good", "pruned"]
    assert len(runs) == len(found) + 1
    history = client.get_metric_history(found["good"].info.run_id, "fold_0/val_sharpe")
    assert [metric.step for metric in history] == [1, 2]
    assert {metric.step for metric in client.get_metric_history(found["pruned"].info.run_id, "fold_0/loss")} == {1}


def test_trainers_of_a_killed_driver_end(ray_here: str, tmp_path: Path) -> None:
    code = f"""
import time, ray
from pathlib import Path
from cluster.config import PoolConfig
from cluster.pool import start_pool
from tests.cluster.conftest import request_of
ray.init(address="{ray_here}", log_to_driver=False)
pool = start_pool(Path("{tmp_path}"), PoolConfig(trainers=1), None)
pool.submit(request_of("t0", (1, 100_000)))
pool.next_report("t0", 0)
print(list(pool.status()["accounts"].values())[0]["place"].rpartition(":")[2], flush=True)
time.sleep(600)
"""
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    trainer = int(driver.stdout.readline())
    assert _alive(trainer)
    driver.kill()
    driver.wait()
    wait_for(lambda: not _alive(trainer))


def test_a_client_of_a_pool_that_is_gone_is_told_so(start: Callable[..., PoolHandle]) -> None:
    pool = start()
    pool.close()
    with pytest.raises(PoolError, match="resume the sweep"):
        pool.status()


def test_a_pool_without_trainers_says_so_to_whoever_asks_what_there_is_to_tell(tmp_path: Path) -> None:
    pool = LanePool(str(tmp_path), PoolConfig(), None, "pool")
    assert asyncio.run(pool.due()) == ()
    pool._failure = "5 trainers died before they joined"
    with pytest.raises(PoolError, match="5 trainers died"):
        asyncio.run(pool.due())


def test_naming_the_pool_imports_no_torch() -> None:
    code = "import cluster.pool, cluster.__main__, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
