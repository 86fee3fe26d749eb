"""A cluster of two nodes of which one dies, and jobs on a real job server. A minute, so not in the default suite."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from cluster.config import PoolConfig
from cluster.pool import start_pool
from tests.cluster.test_pool import LONG, all_reports, wait_for

from .conftest import request_of

pytestmark = pytest.mark.slow
SCRIPT = """
import os, signal, sys, time
def stop(*_):
    time.sleep(5)
    print("checkpointed", flush=True)
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
print("started", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


def test_trials_of_a_node_whose_raylet_is_killed_end_on_another_with_the_same_numbers(tmp_path: Path) -> None:
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        ray.init(address=nodes.address, log_to_driver=False)
        second = nodes.add_node(num_cpus=1)
        nodes.wait_for_nodes()
        requests = [request_of(f"t{index}", LONG, seed=index) for index in range(4)]
        pool = start_pool(tmp_path / "sweep", PoolConfig(), None)
        wait_for(lambda: len(pool.status()["trainers"]) == 2)
        for request in requests:
            pool.submit(request)
        wait_for(lambda: all(trial["epoch"] >= 6 for trial in pool.status()["trials"].values()))
        nodes.remove_node(second, allow_graceful=False)
        disturbed = {request.trial_id: all_reports(pool, request.trial_id) for request in requests}
        pool.close()
        alone = start_pool(tmp_path / "alone", PoolConfig(trainers=1), None)
        for request in requests:
            alone.submit(request)
            assert all_reports(alone, request.trial_id) == disturbed[request.trial_id]
        alone.close()
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture
def job_server() -> Iterator[str]:
    context = ray.init(address="local", num_cpus=1, include_dashboard=True, dashboard_port=0, log_to_driver=False)
    yield f"http://{context.dashboard_url}"
    ray.shutdown()


def command(*arguments: str, address: str) -> subprocess.CompletedProcess[str]:
    head, *rest = arguments
    line = [sys.executable, "-m", "cluster", head, "--address", address, *rest]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_jobs_exit_as_their_command_did_and_stop_in_their_own_time(job_server: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    submit = ("submit", "--working-dir", str(tmp_path))
    failed = command(*submit, "--", sys.executable, "script.py", "0", "7", address=job_server)
    assert (failed.returncode, "started" in failed.stdout) == (7, True), failed
    assert command(*submit, "--", sys.executable, "script.py", "0", "0", address=job_server).returncode == 0
    long = command(
        *submit, "--id", "long", "--no-wait", "--", sys.executable, "script.py", "600", "0", address=job_server
    )
    assert long.returncode == 0
    while "started" not in command("logs", "long", address=job_server).stdout:
        time.sleep(0.5)
    assert command("stop", "long", address=job_server).returncode == 0
    assert command("logs", "--follow", "long", address=job_server).returncode == 130
    assert "checkpointed" in command("logs", "long", address=job_server).stdout
    assert "room for trainers 1" in command("check", address=job_server).stdout
