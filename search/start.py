"""``python -m search``: open or resume a sweep, connect to Ray, run it, say what came of it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from rich.console import Console

from cluster.journal import unshipped_bytes
from cluster.pool import PoolError, start_pool
from search.connect import connect_ray, in_ray_job
from search.course import Course, new_sweep_id
from search.progress import Progress, print_results
from search.results import State, read_earlier
from search.searchers.base import Earlier
from search.sweep import SweepRun
from search.sweep_config import Profile, load_profile, write_profile, write_whole
from search.sweep_tracking import TRACKING, SweepTracking, prepare_experiment, target_of, tracking_uri
from trainer.errors import UserError
from trainer.fields import walk
from trainer.tracking import redact

INTERRUPTED, BROKEN = 130, 1
PROFILE, WARM_START = "sweep.toml", "warm_start.json"
SHIP_S = 60.0
WIDTH = 160  # where the output goes to a file or a job's log
JOB_GRACE_S, GRACE_S, EXIT_MARGIN_S = 3.0, 60.0, 0.4


def start(options: argparse.Namespace) -> int:
    """Start or resume a sweep; returns the exit code."""
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH)
    began_s = time.monotonic()
    if options.resume is not None:
        folder = Path(options.resume)
        profile = _reopen(folder, options)
    else:
        profile = load_profile(options.profile, options.set)
        folder = options.out if options.out is not None else default_folder(options.profile)
        _check_new(folder)
    uri = tracking_uri(profile.sweep.tracking_uri, folder)
    try:
        if options.resume is None:
            earlier = read_earlier(profile.sweep.warm_start)
            cluster = _connect(uri, profile.sweep.experiment)
            _create(folder, profile, earlier)
        with closing(Course(folder, profile, _earlier(folder), None)) as course:
            if course.finished:
                prepare_experiment(uri, profile.sweep.experiment)
                return _ended(course, uri, console)
            if options.resume is not None:
                cluster = _connect(uri, profile.sweep.experiment)
            write_profile(profile, folder / PROFILE)
            return _run(course, uri, cluster, console, began_s)
    finally:
        if ray.is_initialized():
            ray.shutdown()


def _connect(uri: str, experiment: str) -> str:
    """Ray and MLflow, both at once: each takes seconds to start. Returns a few words on the cluster.

    Raises:
        UserError: either does not answer.
    """
    with ThreadPoolExecutor(1) as other:
        prepared = other.submit(prepare_experiment, uri, experiment)
        cluster = connect_ray()
        prepared.result()
    return cluster


def _run(course: Course, uri: str, cluster: str, console: Console, began_s: float) -> int:
    sweep, folder = course.profile.sweep, course.folder
    tracking = course.tracking = SweepTracking(folder, target_of(uri, sweep.experiment, course.sweep_id))
    progress = Progress(course.ledger, sweep.trials, console)
    course.told = progress.trial
    with _signals(folder) as on_signal:  # after Ray, which sets handlers of its own
        course.start()
        tracking.start(shared_params(course.profile), [folder / PROFILE], SHIP_S)
        pool = start_pool(folder, sweep.pool, tracking.target)
        before = f", {len(course.ledger.trials)} of them begun before" if course.ledger.trials else ""
        console.print(
            f"sweep {course.sweep_id} in {folder} on {cluster}: {sweep.searcher}, "
            f"{len(course.profile.space)} dimensions, {sweep.trials} trials{before}",
            highlight=False,
        )
        run = SweepRun(course, pool, progress.status)
        on_signal(run.close)
        try:
            closed = run.run()
        except PoolError as error:
            course.stop(str(error))
            console.print(f"error: {error}\ncontinue with: python -m search --resume {folder}", highlight=False)
            return BROKEN
        return conclude(course, tracking, run, closed, console, began_s)


def _ended(course: Course, uri: str, console: Console) -> int:
    """Nothing is left to do but to tell MLflow what it did not take at the end.

    Raises:
        UserError: not even that.
    """
    folder = course.folder
    if unshipped_bytes(folder / TRACKING) == 0:
        raise UserError(
            f"{folder}: this sweep has ended ({len(course.ledger.trials)} trials); extend it with "
            f"--resume {folder} --trials N"
        )
    course.tracking = SweepTracking(folder, target_of(uri, course.profile.sweep.experiment, course.sweep_id))
    return 0 if _settle(course, course.tracking, console) else BROKEN


def _settle(course: Course, tracking: SweepTracking, console: Console) -> bool:
    """Ship what is left, compare what MLflow has, write the results; False where the server did not take everything."""
    shipped = tracking.ship(SHIP_S)
    course.named(tracking.reconcile(course.states()))
    course.write()
    print_results(course.ledger, course.folder, redact(tracking.target.uri), console)
    if not shipped:
        console.print(
            f"tracking: the server did not take everything; the rest waits in {course.folder / TRACKING}; "
            f"send it with: python -m search --resume {course.folder}",
            highlight=False,
        )
    return shipped


def conclude(
    course: Course, tracking: SweepTracking, run: SweepRun, closed: str | None, console: Console, began_s: float
) -> int:
    """Settle tracking and results: the pool ships first, then the driver, then what MLflow has is compared."""
    folder, ledger = course.folder, course.ledger
    state = State.PARKED if closed is not None else State.COMPLETE
    because = closed if closed is not None else "every trial ended"
    course.stop(because)
    best = ledger.best
    metrics = {"trials": float(len(ledger.trials)), "wall_seconds": time.monotonic() - began_s}
    if best is not None and best.score is not None:
        metrics["best_score"] = best.score
    tracking.finish(state, because, metrics, "" if best is None else best.trial_id, [folder / "sweep.json"])
    left = unshipped_bytes(folder / TRACKING) / 2**20
    if left > 1.0:
        console.print(f"tracking: {left:.0f} MB are on their way to MLflow", highlight=False)
    run.pool.close(SHIP_S)
    _settle(course, tracking, console)
    console.print(f"wall time {time.monotonic() - began_s:.1f} s", highlight=False)
    if closed is not None:
        console.print(f"{closed}; continue with: python -m search --resume {folder}", highlight=False)
        return INTERRUPTED if closed.startswith("SIG") else 0
    return 0


def shared_params(profile: Profile) -> dict[str, Any]:
    """What can never change within the sweep, and the range of what its trials search."""
    fixed = {path: value for path, _field, value in walk(profile.trial)}
    searched = {dimension.name: dimension.span for dimension in profile.space.dimensions}
    return fixed | searched | {"searcher": profile.sweep.searcher, "scheduler": profile.sweep.scheduler.name}


def default_folder(profile: str) -> Path:
    """``runs/<profile>-<time>``; in a Ray job, whose working directory goes when it ends, under the home folder."""
    root = Path(os.environ.get("PACELINE_RUNS", str(Path.home() / "paceline" / "runs") if in_ray_job() else "runs"))
    return root / f"{Path(profile).stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: not an empty folder; name another --out, or go on with --resume {folder}")


def _create(folder: Path, profile: Profile, earlier: Sequence[Earlier]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / WARM_START, json.dumps(earlier))
    new_sweep_id(folder)
    write_profile(profile, folder / PROFILE)


def _earlier(folder: Path) -> list[Earlier]:
    """What the searcher started from: kept with the sweep, so that a replay starts from the same."""
    return [(values, score) for values, score in json.loads((folder / WARM_START).read_text(encoding="utf-8"))]


def _reopen(folder: Path, options: argparse.Namespace) -> Profile:
    if not (folder / PROFILE).is_file():
        raise UserError(f"{folder}: no sweep to resume here (no {PROFILE})")
    before = load_profile(str(folder / PROFILE))
    profile = load_profile(str(folder / PROFILE), options.set)
    _check_extension(before, profile, folder)
    return profile


_EXTENDABLE = {"trials", "time_budget", "concurrent", "waiting", "chain", "pool", "tracking_uri"}


def _check_extension(before: Profile, after: Profile, folder: Path) -> None:
    """A resumed sweep is the same search: what its log depends on stays."""
    changed = [
        name
        for name in type(before.sweep).model_fields
        if getattr(before.sweep, name) != getattr(after.sweep, name) and name not in _EXTENDABLE
    ]
    if changed or before.trial != after.trial:
        what = f"sweep.{changed[0]}" if changed else "the trials' configuration"
        raise UserError(
            f"--resume {folder}: {what} cannot change within a sweep; what can is {', '.join(sorted(_EXTENDABLE))}. "
            "A new sweep can start from this one: sweep.warm_start"
        )


@contextmanager
def _signals(folder: Path) -> Iterator[Any]:
    """SIGTERM and SIGINT park the sweep and leave within a Ray job's grace, longer elsewhere. A second one kills."""
    closers: list[Any] = []
    asked: list[int] = []

    def give_up() -> None:
        print(f"no time is left; continue with: python -m search --resume {folder}", flush=True)
        os._exit(INTERRUPTED)

    def handle(number: int, _frame: FrameType | None) -> None:
        if asked or not closers:
            os._exit(INTERRUPTED)
        asked.append(number)
        grace = float(os.environ.get("RAY_JOB_STOP_WAIT_TIME_S", JOB_GRACE_S)) if in_ray_job() else GRACE_S
        leave = threading.Timer(grace - EXIT_MARGIN_S, give_up)
        leave.daemon = True
        leave.start()
        name = signal.Signals(number).name
        print(f"{name}: trials stop at the end of their epoch, with a checkpoint (again: at once)", flush=True)
        threading.Thread(target=closers[0], args=(name,), daemon=True).start()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield closers.append
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
