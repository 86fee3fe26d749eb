"""``python -m trainer``: run one trial, evaluate a policy, or inspect data; no Ray anywhere.

    python -m trainer smoketest
    python -m trainer localdev --data bars.parquet --set agent.lr=1e-4 --out runs/mine
    python -m trainer --resume runs/mine
    python -m trainer --from-trial runs/sweep t00003
    python -m trainer evaluate runs/mine --data other.parquet
    python -m trainer inspect --data bars.parquet
    python -m trainer fields localdev --prefix agent.

Exit codes: 0 done, 2 bad input (one line says what), 130 interrupted and resumable.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.arguments import Parser
from trainer.errors import UserError


def main(arguments: Sequence[str]) -> int:
    """Run the command that ``arguments`` name; returns the exit code."""
    command, rest = (arguments[0], arguments[1:]) if arguments[:1] and arguments[0] in _COMMANDS else ("run", arguments)
    try:
        return _COMMANDS[command](rest)
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            return _hang_up()
        print(f"error: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
        return 2


def _hang_up() -> int:
    """Whoever read the output has seen enough: say nothing more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="python -m trainer", description="Run one walk-forward trial (see also: evaluate, inspect, fields)."
    )
    parser.add_argument("profile", nargs="?", help="profile name or TOML file")
    _add_config_options(parser)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, help="short for --set seed=N")
    parser.add_argument("--out", type=Path, help="output folder; default runs/<profile>-<time>")
    parser.add_argument("--track", metavar="MLFLOW_URI", help="log the trial to MLflow")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="continue the interrupted trial of this folder")
    parser.add_argument(
        "--from-trial", nargs=2, metavar=("DIR", "TRIAL_ID"), help="rerun one trial of the sweep of this folder alone"
    )
    options = parser.parse_args(arguments)
    if sum(each is not None for each in (options.profile, options.resume, options.from_trial)) != 1:
        parser.error("give a profile, or --resume DIR, or --from-trial DIR TRIAL_ID")
    if options.resume is not None and (options.set or options.data or options.out or options.seed is not None):
        parser.error(
            "--resume continues with the trial's own configuration: no --set, --data, --seed or --out beside it"
        )
    if options.track == "":
        parser.error("--track: give an MLflow URI, for example sqlite:///mlflow.db or http://host:5000")
    if options.seed is not None:
        options.set.append(f"seed={options.seed}")
    from trainer.commands.run import run

    return run(options)


def _evaluate(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="python -m trainer evaluate", description="Run trained policies over any data, with a stress table."
    )
    parser.add_argument("policy", type=Path, help="a trial's folder, or one policy of it")
    parser.add_argument("--data", type=Path, help="bars (Parquet, CSV) or DBN; default: the trial's own market")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--out", type=Path, help="write the table as JSON here")
    from trainer.commands.evaluate import evaluate

    return evaluate(parser.parse_args(arguments))


def _inspect(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="python -m trainer inspect", description="Say what was read from data and how it would be cut."
    )
    parser.add_argument("profile", nargs="?", default="smoketest", help="profile whose folds and features are used")
    _add_config_options(parser)
    parser.add_argument("--out", type=Path, default=Path("inspect.png"), help="picture to write")
    from trainer.commands.inspect import inspect

    return inspect(parser.parse_args(arguments))


def _fields(arguments: Sequence[str]) -> int:
    parser = Parser(prog="python -m trainer fields", description="List the fields of a profile and what they mean.")
    parser.add_argument("profile", nargs="?", default="smoketest", help="profile name or TOML file")
    parser.add_argument("--prefix", default="", help="only fields whose dotted name begins so")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    from trainer.commands.fields import fields

    return fields(parser.parse_args(arguments))


def _add_config_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one field, dotted")
    parser.add_argument("--data", type=Path, help="bars (Parquet, CSV) or a folder of DBN files")


_COMMANDS = {"run": _run, "evaluate": _evaluate, "inspect": _inspect, "fields": _fields}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
