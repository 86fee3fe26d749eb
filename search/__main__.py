"""``python -m search``: search a space of trial configurations on Ray.

    python -m search smoketest
    python -m search hyperopt --searcher optuna --trials 200 --time-budget 2h --set agent.lr=1e-4 --set sweep.seed=1
    python -m search hyperopt --dry-run
    python -m search --resume runs/hyperopt-20260101-120000 --trials 400
    ray job submit --working-dir . -- python -m search hyperopt

Exit codes: 0 done (or the time budget is used up), 1 the cluster gave up, 2 bad input (one line says what), 130
interrupted. Whatever is not done is resumable.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.arguments import Parser
from trainer.errors import UserError


def main(arguments: Sequence[str]) -> int:
    """Run one sweep; returns the exit code."""
    try:
        options = _parse(arguments)
        if options.dry_run:
            from search.dry_run import dry_run

            return dry_run(options)
        from search.start import start

        return start(options)
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="python -m search", description="Search a space of trial configurations.")
    parser.add_argument("profile", nargs="?", help="profile name or TOML file with a [sweep] table")
    parser.add_argument("--searcher", choices=("pso", "optuna", "random"), help="short for --set sweep.searcher=...")
    parser.add_argument("--trials", type=int, metavar="N", help="short for --set sweep.trials=N")
    parser.add_argument("--time-budget", metavar="2h", help="short for --set sweep.time_budget=2h")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one field, dotted; sweep.* too"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder; default runs/<profile>-<time>")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="continue or extend the sweep of this folder")
    parser.add_argument("--dry-run", action="store_true", help="say what the sweep would do, then stop")
    options = parser.parse_args(arguments)
    if (options.profile is None) == (options.resume is None):
        parser.error("give a profile, or --resume DIR")
    if options.resume is not None and options.out is not None:
        parser.error("--resume continues in its own folder: no --out beside it")
    for name, value in (("searcher", options.searcher), ("trials", options.trials)):
        if value is not None:
            options.set.append(f"sweep.{name}={value}")
    if options.time_budget is not None:
        options.set.append(f"sweep.time_budget='{options.time_budget}'")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
