"""``python -m cluster``: submit a sweep to a Ray cluster, watch it, stop it so that it can be resumed.

    python -m cluster submit -- python -m search hyperopt --out /shared/sweeps/one
    python -m cluster status JOB
    python -m cluster logs JOB --follow
    python -m cluster stop JOB
    python -m cluster list
    python -m cluster check

Exit codes: 0 success (or under way), 2 bad input or no cluster, 130 the job was stopped, else the job's own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cluster.jobs import STOPPED_EXIT, Jobs, JobState, connect
from trainer.arguments import Parser
from trainer.errors import UserError

LIST_WIDTH = 120
GRACE_S = 60
"""Seconds between SIGTERM and SIGKILL that a job gets to checkpoint its trials, where --grace does not say."""


def main(arguments: Sequence[str]) -> int:
    """Run the command that ``arguments`` name; returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
        return int(options.run(options))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _submit(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UserError("submit: name the command after --, for example: submit -- python -m search hyperopt")
    jobs = connect(options.address)
    job_id = jobs.submit(
        command,
        options.working_dir,
        grace_s=options.grace,
        job_id=options.id,
        environment=dict(_variable(text) for text in options.env),
    )
    print(f"job {job_id} submitted", flush=True)
    return 0 if options.no_wait else _follow(jobs, job_id)


def _status(options: argparse.Namespace) -> int:
    state = connect(options.address).state(options.job)
    print(_line(state))
    return state.exit_code


def _logs(options: argparse.Namespace) -> int:
    jobs = connect(options.address)
    if options.follow:
        return _follow(jobs, options.job)
    _write(jobs.logs(options.job))
    return 0


def _stop(options: argparse.Namespace) -> int:
    jobs = connect(options.address)
    before = jobs.state(options.job)
    state = jobs.stop(options.job, options.timeout)
    print(f"{_line(state)}{' (it had ended before)' if before.ended else ''}")
    return 0 if state.status == "STOPPED" else state.exit_code


def _list(options: argparse.Namespace) -> int:
    states = connect(options.address).all()
    for state in states:
        line = _line(state)
        print(line if len(line) <= LIST_WIDTH else f"{line[: LIST_WIDTH - 4]} ...")
    if not states:
        print("no jobs")
    return 0


def _check(options: argparse.Namespace) -> int:
    from cluster.check import check

    for line in check(options.address):
        print(line)
    return 0


def _follow(jobs: Jobs, job_id: str) -> int:
    try:
        state = jobs.follow(job_id, _write)
    except KeyboardInterrupt:
        print(f"\njob {job_id} goes on; see: python -m cluster logs {job_id} --follow, or stop {job_id}")
        return STOPPED_EXIT
    print(_line(state))
    return state.exit_code


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _line(state: JobState) -> str:
    seconds = ((state.end_ms or int(time.time() * 1000)) - (state.start_ms or 0)) / 1000 if state.start_ms else 0.0
    reason = f"  {state.message.splitlines()[0]}" if state.status == "FAILED" and state.message else ""
    return f"{state.job_id}  {state.status:<9}  {seconds:8.0f} s  {state.entrypoint}{reason}"


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UserError(f"--env {text}: write NAME=VALUE")
    return name, value


def _parser() -> Parser:
    parser = Parser(prog="python -m cluster", description="Jobs on a Ray cluster.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = Parser(add_help=False)
    shared.add_argument("--address", help="job server, http://HOST:8265; default: the one of this machine's cluster")

    submit = commands.add_parser("submit", parents=[shared], help="upload a folder and start a command in it")
    submit.add_argument("--working-dir", type=Path, default=Path("."), help="folder to upload; default: this one")
    submit.add_argument("--grace", type=int, default=GRACE_S, help="seconds a stop leaves for checkpoints")
    submit.add_argument("--id", help="the job's id; default: one is made up")
    submit.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="environment of the job")
    submit.add_argument("--no-wait", action="store_true", help="do not follow the log")
    submit.add_argument("command", nargs=argparse.REMAINDER, help="-- then the command")
    submit.set_defaults(run=_submit)

    status = commands.add_parser("status", parents=[shared], help="where a job stands")
    logs = commands.add_parser("logs", parents=[shared], help="what a job printed")
    logs.add_argument("--follow", action="store_true", help="until it ends; exits with its exit code")
    stop = commands.add_parser("stop", parents=[shared], help="ask a job to end resumable, and wait for it")
    stop.add_argument("--timeout", type=float, default=300.0, help="seconds to wait")
    for command, run in ((status, _status), (logs, _logs), (stop, _stop)):
        command.add_argument("job", help="id of the job")
        command.set_defaults(run=run)
    commands.add_parser("list", parents=[shared], help="all jobs").set_defaults(run=_list)
    commands.add_parser("check", parents=[shared], help="what the cluster offers").set_defaults(run=_check)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
