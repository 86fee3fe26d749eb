"""Jobs on a Ray cluster: submit a working directory, follow, stop gracefully, and say truly how it ended.

Around ``ray.job_submission``: a log that ends is not a job that ended, so the status is asked; a stopped job is no
success; the time between SIGTERM and SIGKILL (``RAY_JOB_STOP_WAIT_TIME_S``, read by the job's supervisor from the
job's own environment, 3 s where nobody sets it) is set on submission.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cluster.working_dir import EXCLUDES, check_size
from trainer.errors import UserError

GRACE_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"
STOPPED_EXIT = 130
"""Exit code for a stopped job: interrupted and resumable, as ``python -m trainer`` says it."""
TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")
START_S = 60.0
"""How long a cluster that has only just started is asked again to take a job."""
_NOT_READY = "try again later"
AWAY_S = 120.0
"""How long a cluster that stops answering is asked again while a job is followed."""


class Client(Protocol):
    """What is used of ``ray.job_submission.JobSubmissionClient``."""

    def submit_job(self, *, entrypoint: str, runtime_env: dict[str, Any], submission_id: str | None) -> str: ...

    def get_job_info(self, job_id: str) -> Any: ...

    def get_job_logs(self, job_id: str) -> str: ...

    def tail_job_logs(self, job_id: str) -> Any: ...

    def stop_job(self, job_id: str) -> bool: ...

    def list_jobs(self) -> list[Any]: ...


@dataclass(frozen=True)
class JobState:
    """Where a job stands."""

    job_id: str
    status: str  # PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED
    message: str
    entrypoint: str
    exit: int | None  # of the driver, where Ray knows it
    start_ms: int | None
    end_ms: int | None

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    @property
    def exit_code(self) -> int:
        """0 for success and for jobs under way, the driver's own code for a failure, 130 for a stopped job."""
        if self.status == "STOPPED":
            return STOPPED_EXIT
        if self.status == "FAILED":
            return self.exit if self.exit is not None and self.exit > 0 else 1
        return 0


class Jobs:
    """The jobs of one cluster.

    Args:
        client: Ray's client, see :func:`connect`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(
        self,
        command: Sequence[str],
        working_dir: Path,
        *,
        grace_s: int,
        job_id: str | None = None,
        environment: Mapping[str, str] | None = None,
        pause_s: float = 1.0,
    ) -> str:
        """Upload the working directory and start a command in it; returns the job's id.

        Raises:
            UserError: the directory is too large, or the cluster refuses the job.
        """
        check_size(working_dir)
        variables = {**(environment or {}), GRACE_VARIABLE: str(grace_s)}
        runtime_env = {"working_dir": str(working_dir), "excludes": list(EXCLUDES), "env_vars": variables}
        entrypoint, deadline = shlex.join(command), time.monotonic() + START_S
        with _explained():
            while True:
                try:
                    return self._client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env, submission_id=job_id)
                except RuntimeError as error:
                    if _NOT_READY not in str(error) or time.monotonic() > deadline:
                        raise
                time.sleep(pause_s)

    def state(self, job_id: str) -> JobState:
        """Where the job stands.

        Raises:
            UserError: no such job, or the cluster does not answer.
        """
        with _explained():
            return _state(self._client.get_job_info(job_id))

    def all(self) -> list[JobState]:
        """Every submitted job the cluster knows, oldest first."""
        with _explained():
            jobs = [_state(job) for job in self._client.list_jobs() if job.submission_id is not None]
        return sorted(jobs, key=lambda job: job.start_ms or 0)

    def logs(self, job_id: str) -> str:
        """What the job printed until now."""
        with _explained():
            return self._client.get_job_logs(job_id)

    def follow(self, job_id: str, write: Callable[[str], None], *, pause_s: float = 1.0) -> JobState:
        """Pass on what the job prints until it has ended, through lost connections.

        Raises:
            UserError: no such job, or the cluster stayed away for two minutes.
        """
        state = self.state(job_id)
        printer = _Printer(write)
        away_since: float | None = None
        while True:
            try:
                asyncio.run(self._tail(job_id, printer))
                state = _state(self._client.get_job_info(job_id))
                if state.ended:
                    printer.from_start(self._client.get_job_logs(job_id))
                    return state
                away_since = None
            except (ConnectionError, OSError, RuntimeError) as error:
                away_since = time.monotonic() if away_since is None else away_since
                if time.monotonic() - away_since > AWAY_S:
                    raise UserError(
                        f"job {job_id}: the cluster is gone ({_first_line(error)}); the job may go on, "
                        f"ask again with: python -m cluster logs {job_id}"
                    ) from error
            time.sleep(pause_s)

    def stop(self, job_id: str, timeout_s: float) -> JobState:
        """Ask the job to end, and wait until it has.

        Raises:
            UserError: no such job, or it has not ended in time.
        """
        state = self.state(job_id)
        if state.ended:
            return state
        with _explained():
            self._client.stop_job(job_id)
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.state(job_id)
            if state.ended:
                return state
            if time.monotonic() > deadline:
                raise UserError(f"job {job_id}: still {state.status} {timeout_s:.0f} s after it was asked to stop")
            time.sleep(0.5)

    async def _tail(self, job_id: str, printer: _Printer) -> None:
        printer.restart()
        async for piece in self._client.tail_job_logs(job_id):
            printer.piece(piece)


class _Printer:
    """Writes a log once, however often it is read from its beginning."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._written = self._position = 0

    def restart(self) -> None:
        self._position = 0

    def piece(self, text: str) -> None:
        new = text[max(self._written - self._position, 0) :]
        self._position += len(text)
        if new:
            self._written = self._position
            self._write(new)

    def from_start(self, text: str) -> None:
        self.restart()
        self.piece(text)


def connect(address: str | None) -> Jobs:
    """The job server at ``address``, or the one that RAY_API_SERVER_ADDRESS, RAY_ADDRESS or this machine names.

    Raises:
        UserError: nobody answers there, or the token is missing or wrong.
    """
    return Jobs(connect_raw(address))


def connect_raw(address: str | None) -> Any:
    """Ray's own client; errors as :func:`connect`'s."""
    use_token()
    from ray.job_submission import JobSubmissionClient

    for chatty in ("ray._private.runtime_env.packaging", "ray.dashboard.modules.dashboard_sdk"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

    with _explained(address):
        return JobSubmissionClient(address)


def use_token() -> None:
    """Send the token there is: Ray's clients only do where RAY_AUTH_MODE says so, though its clusters ask for one."""
    default = Path.home() / ".ray" / "auth_token"
    there = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH") or default.is_file()
    if there:
        os.environ.setdefault("RAY_AUTH_MODE", "token")


@contextmanager
def _explained(address: str | None = None) -> Iterator[None]:
    """Turn Ray's errors into one line each."""
    from ray.exceptions import AuthenticationError

    where = "Ray cluster" if address is None else f"Ray cluster at {address}"
    try:
        yield
    except AuthenticationError as error:
        raise UserError(
            f"{where}: {_first_line(error)}; put the cluster's token (ray get-auth-token) into ~/.ray/auth_token "
            "or RAY_AUTH_TOKEN"
        ) from error
    except (ConnectionError, OSError) as error:
        raise UserError(
            f"{where}: no answer ({_first_line(error)}); start one with `ray start --head`, or name its job server "
            "with --address http://HOST:8265"
        ) from error
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{where}: {_first_line(error)}") from error


def _state(info: Any) -> JobState:
    return JobState(
        job_id=str(info.submission_id),
        status=str(getattr(info.status, "value", info.status)),
        message=info.message or "",
        entrypoint=info.entrypoint,
        exit=info.driver_exit_code,
        start_ms=info.start_time,
        end_ms=info.end_time,
    )


def _first_line(error: Exception) -> str:
    """What Ray says, without its HTTP status, its advice and its server's traceback."""
    said = re.sub(r"^Request failed with status code \d+: ", "", str(error))
    lines = [line for line in said.splitlines() if re.search(r"\w", line)]
    told = lines[-1] if lines and lines[0].startswith("Traceback") else lines[0] if lines else type(error).__name__
    return told.rstrip(".")
