"""``python -m trainer PROFILE``: one trial with live progress, tracking and clean interruption."""

from __future__ import annotations

import argparse
import hashlib
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from trainer.commands.options import choose_device, data_overrides, make_console
from trainer.commands.progress import Progress, print_result
from trainer.commands.sweep_trial import replayed, trial_of
from trainer.config import TrialConfig, load_config
from trainer.fields import walk
from trainer.tracking import RunKey, Tracker, check_uri
from trainer.training.recording import NOTHING
from trainer.training.report import TrialReport
from trainer.training.trial import Trial, check_empty, open_trial

INTERRUPTED = 130


def run(options: argparse.Namespace) -> int:
    """Run or resume a trial; returns the exit code."""
    console = make_console()
    device = choose_device(options.device)
    recording = NOTHING
    if options.resume is not None:
        out = Path(options.resume)
        config = open_trial(out)
    else:
        profile, name, given = options.profile, Path(options.profile or "").stem, tuple[str, ...]()
        if options.from_trial is not None:
            folder, trial_id = Path(options.from_trial[0]), options.from_trial[1]
            of_sweep = trial_of(folder, trial_id)
            profile, given = of_sweep.profile, of_sweep.overrides
            name = f"{folder.resolve().name}-{trial_id}"
            recording, said = replayed(of_sweep.recording, device)
            if said:
                console.print(f"{trial_id} of {folder}: {said}")
        config = load_config(profile, [*given, *data_overrides(options.data), *options.set])
        stamp = time.strftime("%Y%m%d-%H%M%S")
        out = options.out if options.out is not None else Path("runs") / f"{name}-{stamp}"
        check_empty(out)
    if options.track is not None:
        check_uri(options.track)
    trial = Trial(config, out, device, resume=options.resume is not None, recording=recording)
    console.print(
        f"trial in {out} on {device}: {len(trial.prepared.folds)} folds, {len(trial.prepared.table):,} bars, "
        f"{len(trial.prepared.features.names)} features"
    )
    progress = Progress(config, console)
    with _tracked(options.track, config, out, trial) as track, _interruptible(console) as stop:

        def on_epoch(report: TrialReport) -> None:
            progress(report)
            track(report)

        result = trial.run(on_epoch, stop)
    if result is None:
        console.print(f"stopped after epoch {trial.epoch}; continue with: python -m trainer --resume {out}")
        return INTERRUPTED
    print_result(result, console)
    console.print(f"result: {out / 'result.json'}")
    return 0


@contextmanager
def _interruptible(console: Console) -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM into a request that is met at the next epoch boundary; a second one kills."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        console.print("stopping at the end of this epoch (again: at once, from the last checkpoint on)")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _tracked(uri: str | None, config: TrialConfig, out: Path, trial: Trial) -> Iterator[Callable[[TrialReport], None]]:
    """Log the trial to MLflow where a URI is given: config, every epoch, artifacts at the end, and how it ended."""
    if uri is None:
        yield lambda _report: None
        return
    tracker = Tracker(uri, "paceline", out / "tracking.jsonl")
    run = RunKey.of(out.name, trial_id=out.name, config=_fingerprint(config))
    tracker.params(run, {path: value for path, _field, value in walk(config)})
    tracker.status(run, "RUNNING")

    def track(report: TrialReport) -> None:
        tracker.metrics(run, report.metrics(), report.epoch)

    status = "FAILED"
    try:
        yield track
        status = "FINISHED" if trial.epoch >= config.training.epochs else "KILLED"
    finally:
        if status == "FINISHED":
            for name in ("config.toml", "result.json", "policies", "equity"):
                tracker.artifact(run, out / name)
        tracker.status(run, status)
        if not tracker.close():
            Console(stderr=True).print(
                f"tracking: the server did not take everything; the rest waits in {out / 'tracking.jsonl'}"
            )


def _fingerprint(config: TrialConfig) -> str:
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:16]
