"""What a person sees of a sweep: a line per trial that ended, one now and then about the rest, a table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from search.results import Ledger, TrialRecord
from search.searchers.base import Ending

BEST_ROWS = 10
STATUS_EVERY_S, SAME_EVERY_S = 10.0, 60.0
TRAINERS_SHOWN = 8
LONG_START_S = 60


class Progress:
    """Prints as the sweep goes.

    Args:
        ledger: the sweep's trials.
        trials: how many there will be.
    """

    def __init__(self, ledger: Ledger, trials: int, console: Console) -> None:
        self._ledger, self._trials, self._console = ledger, trials, console
        self._began_s = time.monotonic()
        self._next_s = self._began_s + STATUS_EVERY_S
        self._said, self._said_s = "", 0.0

    def trial(self, trial: TrialRecord) -> None:
        """A trial reached a rung or ended."""
        if trial.ending is None:
            return
        ended = len(self._ledger.trials) - len(self._ledger.open_trials)
        best = self._ledger.best
        best_text = "" if best is None else f"   best {best.trial_id} {_score(best.score)}"
        because = trial.because if trial.ending in (Ending.FAILED, Ending.INFEASIBLE) else _values(trial.values, 4)
        self._console.print(
            f"{_clock(self._began_s)} {ended:>5}/{self._trials} {trial.trial_id} {trial.ending.value:<10} "
            f"epoch {trial.epoch:>4} score {_score(trial.score)}   {because}{best_text}",
            highlight=False,
        )

    def status(self, pool: Mapping[str, Any]) -> None:
        """The pool's account, printed where the last one is long enough ago, longer where there is no news."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + STATUS_EVERY_S
        said = self._account(pool)
        if said == self._said and now < self._said_s + SAME_EVERY_S:
            return
        self._said, self._said_s = said, now
        self._console.print(f"{_clock(self._began_s)} {said}", highlight=False)

    def _account(self, pool: Mapping[str, Any]) -> str:
        epochs = [trial["epoch"] for trial in pool["trials"].values() if trial["phase"] == "training"]
        span = sorted({min(epochs), max(epochs)}) if epochs else []
        at = f" at epoch{'s' if len(span) > 1 else ''} {' to '.join(str(epoch) for epoch in span)}" if epochs else ""
        error = f", tracking: {pool['tracking_error']}" if pool["tracking_error"] else ""
        ended = len(self._ledger.trials) - len(self._ledger.open_trials)
        return (
            f"{ended:>5}/{self._trials} ended, {pool['training']} train{at}, {pool['waiting']} wait; "
            f"{_trainers(pool)}{_starting(pool)}{error}"
        )


def print_results(ledger: Ledger, folder: Path, tracking_uri: str, console: Console) -> None:
    """The best trials, what became of all, and where to look."""
    ranking = ledger.ranking()[:BEST_ROWS]
    if ranking:
        names = sorted({name for trial in ranking for name in trial.values})
        title = "Best trials (score: median over folds of the net validation Sharpe, mean of the last epochs)"
        table = Table(title=title, title_justify="left")
        for column in ("trial", "state", "epoch", "score", "folds, last epoch"):
            table.add_column(column, justify="right")
        for name in names[:6]:
            table.add_column(name.rpartition(".")[2], justify="right")
        for trial in ranking:
            folds = " ".join(_score(fold.get("val_sharpe")) for fold in trial.folds)
            values = [_value(trial.values.get(name, "-")) for name in names[:6]]
            state = "" if trial.ending is None else trial.ending.value
            table.add_row(trial.trial_id, state, str(trial.epoch), _score(trial.score), folds, *values)
        console.print(table)
    counts = [f"{ledger.count(ending)} {ending.value}" for ending in Ending if ledger.count(ending)]
    if ledger.open_trials:
        counts.append(f"{len(ledger.open_trials)} not ended")
    biased = sum(bool(trial.mechanical_folds) for trial in ledger.trials.values())
    console.print(
        f"{len(ledger.trials)} trials: {', '.join(counts)}"
        + (f"; {biased} with mechanical bias, never selected" if biased else ""),
        highlight=False,
    )
    if ledger.best is not None:
        console.print(f"best trial: {ledger.best.trial_id}, again alone: python -m trainer --from-trial {folder} "
                      f"{ledger.best.trial_id}", highlight=False, soft_wrap=True)  # fmt: skip
    console.print(f"results: {folder / 'sweep.json'}", highlight=False, soft_wrap=True)
    if tracking_uri:
        console.print(f"MLflow: {tracking_uri}; look with: {ui_command(tracking_uri)}", highlight=False, soft_wrap=True)


def ui_command(tracking_uri: str) -> str:
    """How to open the UI on a tracking URI."""
    if tracking_uri.startswith("http"):
        return tracking_uri
    if tracking_uri == f"sqlite:///{Path('runs').resolve() / 'mlflow.db'}":
        return "make ui"
    return f"mlflow ui --backend-store-uri {tracking_uri}"


def _trainers(pool: Mapping[str, Any]) -> str:
    """Lanes and busy share of each trainer; where there are many, of the least and the most."""
    lanes = list(pool["trainers"].values())
    accounts = [pool["accounts"][name] for name in pool["trainers"]]
    busy = [100.0 * account["busy"] for account in accounts]
    if not lanes:
        return "no trainer yet"
    if len(lanes) > TRAINERS_SHOWN:
        return f"{len(lanes)} trainers: {min(lanes)} to {max(lanes)} lanes, {min(busy):.0f} to {max(busy):.0f} % busy"
    each = zip(lanes, accounts, busy, strict=True)
    return "lanes: " + ", ".join(f"{count} on {a['device']} ({share:.0f} % busy)" for count, a, share in each)


def _starting(pool: Mapping[str, Any]) -> str:
    starting = pool["starting"]
    if not starting:
        return ""
    oldest = max(starting.values())
    hint = f" for {oldest} s: is the cluster full? see: ray status" if oldest > LONG_START_S else ""
    return f", {len(starting)} trainer{'s' if len(starting) > 1 else ''} starting{hint}"


def _clock(began_s: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - began_s), 60)
    return f"{minutes:>3}:{seconds:02d}"


def _values(values: Mapping[str, Any], most: int) -> str:
    shown = [f"{name.rpartition('.')[2]}={_value(value)}" for name, value in list(values.items())[:most]]
    return " ".join(shown) + (" ..." if len(values) > most else "")


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _score(score: float | None) -> str:
    return f"{'-':>7}" if score is None else f"{score:7.3f}"
