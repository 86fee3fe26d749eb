"""Jobs against a client that answers as Ray's does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import AuthenticationError

import cluster.__main__ as command
import cluster.jobs as jobs_module
from cluster.jobs import GRACE_VARIABLE, Jobs
from trainer.errors import UserError


@dataclass
class FakeClient:
    """A job server with one job whose log ends, or breaks off, before the job does."""

    statuses: list[str]  # one a question; the last one stays
    log: str = "one\ntwo\nthree\n"
    tails: list[str | Exception] = field(default_factory=list)  # one a connection
    exit_code: int | None = None
    submitted: dict[str, Any] = field(default_factory=dict)
    stopped: bool = False

    def submit_job(self, *, entrypoint: str, runtime_env: dict[str, Any], submission_id: str | None) -> str:
        self.submitted = {"entrypoint": entrypoint, **runtime_env}
        return submission_id or "made-up"

    def get_job_info(self, job_id: str) -> Any:
        if job_id == "nope":
            raise RuntimeError("Request failed with status code 404: Job nope does not exist.")
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return SimpleNamespace(
            submission_id=job_id,
            status=status,
            message="",
            entrypoint="python x.py",
            driver_exit_code=self.exit_code,
            start_time=1_000,
            end_time=3_000,
        )

    def get_job_logs(self, job_id: str) -> str:
        del job_id
        return self.log

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        del job_id
        tail = self.tails.pop(0) if self.tails else self.log
        if isinstance(tail, Exception):
            raise tail
        for line in tail.splitlines(keepends=True):
            yield line

    def stop_job(self, job_id: str) -> bool:
        del job_id
        self.stopped = True
        return True

    def list_jobs(self) -> list[Any]:
        return [self.get_job_info("one"), SimpleNamespace(submission_id=None)]


def followed(client: FakeClient) -> tuple[str, int]:
    printed: list[str] = []
    state = Jobs(client).follow("job", printed.append, pause_s=0.0)
    return "".join(printed), state.exit_code


def test_a_log_that_ends_before_the_job_is_taken_up_again_and_printed_once() -> None:
    client = FakeClient(["RUNNING", "RUNNING", "SUCCEEDED"], tails=["one\n", "one\ntwo\n"])
    assert followed(client) == ("one\ntwo\nthree\n", 0)


def test_a_lost_connection_is_made_again() -> None:
    client = FakeClient(
        ["RUNNING", "RUNNING", "SUCCEEDED"], tails=["one\n", RuntimeError("closed"), ConnectionError("away")]
    )
    assert followed(client) == ("one\ntwo\nthree\n", 0)


def test_a_cluster_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "AWAY_S", 0.0)
    client = FakeClient(["RUNNING"], tails=[ConnectionError("refused"), ConnectionError("refused")])
    with pytest.raises(UserError, match=r"the cluster is gone \(refused\); the job may go on"):
        followed(client)


@pytest.mark.parametrize(
    ("status", "driver", "code"),
    [("SUCCEEDED", 0, 0), ("FAILED", 7, 7), ("FAILED", None, 1), ("FAILED", -9, 1), ("STOPPED", None, 130)],
)
def test_exit_codes_say_how_a_job_ended(status: str, driver: int | None, code: int) -> None:
    assert followed(FakeClient([status], exit_code=driver))[1] == code


def test_submitting_sets_the_grace_period_where_the_supervisor_reads_it(tmp_path: Path) -> None:
    client = FakeClient(["PENDING"])
    command_line = ["python", "-m", "search", "hyperopt", "--set", "a.b='c d'"]
    Jobs(client).submit(command_line, tmp_path, grace_s=45, environment={"A": "1"})
    assert client.submitted["env_vars"] == {"A": "1", GRACE_VARIABLE: "45"}
    assert client.submitted["entrypoint"] == """python -m search hyperopt --set 'a.b='"'"'c d'"'"''"""
    assert "/.venv/" in client.submitted["excludes"]


def test_a_cluster_that_has_only_just_started_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(["PENDING"])
    answers = [
        RuntimeError("Request failed with status code 500: No available agent to submit job, please try again later.")
    ]
    take = client.submit_job

    def submit_job(**job: Any) -> str:
        if answers:
            raise answers.pop()
        return take(**job)

    monkeypatch.setattr(client, "submit_job", submit_job)
    assert Jobs(client).submit(["ls"], tmp_path, grace_s=1, job_id="mine", pause_s=0.0) == "mine"


def test_stopping_waits_for_the_end() -> None:
    client = FakeClient(["RUNNING", "RUNNING", "STOPPED"])
    assert Jobs(client).stop("job", timeout_s=10.0).status == "STOPPED"
    assert client.stopped


def test_stopping_an_ended_job_only_says_so() -> None:
    client = FakeClient(["FAILED"], exit_code=3)
    assert Jobs(client).stop("job", timeout_s=10.0).exit_code == 3
    assert not client.stopped


def test_a_job_that_does_not_stop_is_an_error() -> None:
    with pytest.raises(UserError, match="still RUNNING 0 s after it was asked to stop"):
        Jobs(FakeClient(["RUNNING"])).stop("job", timeout_s=0.0)


def test_drivers_that_nobody_submitted_are_not_listed() -> None:
    assert [job.job_id for job in Jobs(FakeClient(["RUNNING"])).all()] == ["one"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionError("Failed to connect to Ray at address: X."), "no answer (Failed to connect to Ray"),
        (RuntimeError("Request failed with status code 500: Traceback (most\n  line\nValueError: taken"), "taken"),
        (RuntimeError("Traceback (most\n  line\nOSError: no folder\n.\n."), "OSError: no folder"),
        (AuthenticationError("Missing authentication token"), "put the cluster's token"),
    ],
)
def test_faults_of_the_cluster_are_one_line_each(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(["RUNNING"])

    def refuse(_job_id: str) -> Any:
        raise error

    monkeypatch.setattr(client, "get_job_info", refuse)
    with pytest.raises(UserError) as told:
        Jobs(client).state("job")
    assert said in str(told.value)
    assert "\n" not in str(told.value)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    client = FakeClient(["RUNNING", "SUCCEEDED"])
    monkeypatch.setattr(command, "connect", lambda _address: Jobs(client))
    return client


def test_the_command_follows_what_it_submits(served: FakeClient, tmp_path: Path, capsys: Any) -> None:
    assert command.main(["submit", "--working-dir", str(tmp_path), "--id", "mine", "--", "python", "x.py"]) == 0
    assert served.submitted["entrypoint"] == "python x.py"
    assert "job mine submitted\none\ntwo\nthree\nmine  SUCCEEDED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "nope"], "Job nope does not exist"),
        (["submit"], "name the command after --"),
        (["submit", "--env", "A", "--", "ls"], "--env A: write NAME=VALUE"),
        (["submit", "--working-dir", "/nowhere", "--", "ls"], "/nowhere: no such folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    served: FakeClient, arguments: list[str], said: str, capsys: Any
) -> None:
    del served
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1


def test_nobody_at_the_address_is_one_line_and_exit_code_2(capsys: Any) -> None:
    assert command.main(["status", "--address", "http://127.0.0.1:9", "job"]) == 2
    assert "no answer" in capsys.readouterr().err


def test_the_token_is_sent_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(jobs_module.os, "environ", environment := dict(jobs_module.os.environ))
    jobs_module.use_token()
    assert "RAY_AUTH_MODE" not in environment
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("t" * 64)
    jobs_module.use_token()
    assert environment["RAY_AUTH_MODE"] == "token"


@pytest.mark.parametrize(
    "arguments", [(), ("status",), ("nonsense",), ("stop", "job", "--timeout", "soon"), ("submit",)]
)
def test_faults_of_the_command_line_are_one_line(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
