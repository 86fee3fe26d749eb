"""Early stopping by Tune's schedulers, on whole trials, with a memory that outlives a Tune run.

Tune's schedulers know trials by Tune's ids, which end with a Tune run, draw brackets from the global generator, and
compare whatever they are sent. :class:`SweepScheduler` stands in front of one: it names trials by the sweep's ids,
primes the scheduler with the rungs of the log, lets every rung be judged once, and never shows it a failed trial. What
goes on gives its client away until it has something to tell again (:mod:`search.turns`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler

from search.results import TrialRecord
from search.sweep_config import SchedulerConfig
from search.trainable import AFTER_KEY, EPOCH, SCORE, TRIAL_KEY
from search.turns import Turns


def rungs(config: SchedulerConfig, budget: int) -> tuple[int, ...]:
    """Epochs at which a trial of ``budget`` epochs is judged, rising; the last is the budget.

    ASHA and Hyperband: ``grace_epochs * reduction^k`` (Li et al. 2018, arXiv 1810.05934, Algorithm 2).
    """
    if config.name == "none":
        return (budget,)
    if config.name == "median":
        return (*range(config.grace_epochs, budget, config.rung_epochs), budget)
    found = []
    epoch = config.grace_epochs
    while epoch < budget:
        found.append(epoch)
        epoch *= config.reduction
    return (*found, budget)


class SweepScheduler(FIFOScheduler):
    """A scheduler of Tune's by name, primed from the log.

    Args:
        config: which scheduler.
        budget: most epochs of any trial.
        earlier: the sweep's trials so far.
        turns: who may have a client.
    """

    def __init__(self, config: SchedulerConfig, budget: int, earlier: Iterable[TrialRecord], turns: Turns) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inner = _scheduler(config, budget)
        self._known: dict[str, _Trial] = {}
        self._judged: set[tuple[str, int]] = set()
        self._turns = turns
        self._paused: dict[str, Any] = {}  # Tune's trials without a client, by our ids
        self._stopped: set[str] = set()
        for record in earlier:
            self._prime(record)

    @property
    def metric(self) -> str | None:
        """The name of the score in a result, which Tune asks for in strict checks; failed trials report none."""
        return None

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:  # noqa: ARG002
        return True

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:  # noqa: ARG002
        self._add(str(trial.config[TRIAL_KEY]))

    def choose_trial_to_run(self, tune_controller: Any) -> Any:  # noqa: ARG002
        """A trial that gave its client away and has something to tell. Those that are new to Tune it starts itself."""
        trial_id = self._turns.next(self._paused)
        self._turns.wait()
        return None if trial_id is None else self._paused.pop(trial_id)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        """The verdict. Where that is to go on, Tune has nothing to do until the trial has more to tell."""
        trial_id = str(trial.config[TRIAL_KEY])
        if self._judge(tune_controller, trial_id, result) == TrialScheduler.STOP:
            return str(TrialScheduler.STOP)
        trial.config[AFTER_KEY] = result[EPOCH]
        tune_controller.pause_trial(trial, should_checkpoint=False)
        self._paused[trial_id] = trial
        self._turns.over(trial_id)
        return str(TrialScheduler.NOOP)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> None:
        self._judge(tune_controller, str(trial.config[TRIAL_KEY]), result)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """A client was lost; nothing is known about the trial."""

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """A trial that never started."""

    def debug_string(self) -> str:
        return str(self.inner.debug_string())

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles what it was given into its own state, from which nothing is ever restored."""
        return {}

    def _judge(self, controller: Any, trial_id: str, result: Mapping[str, Any]) -> str:
        score, epoch = result.get(SCORE), result.get(EPOCH)
        if score is None or epoch is None or not math.isfinite(score) or (trial_id, epoch) in self._judged:
            return str(TrialScheduler.CONTINUE)
        self._judged.add((trial_id, epoch))
        if trial_id not in self._stopped:
            result = {EPOCH: epoch, SCORE: score}
            if self.inner.on_trial_result(controller, self._add(trial_id), result) != TrialScheduler.STOP:
                return str(TrialScheduler.CONTINUE)
            self._stopped.add(trial_id)
        return str(TrialScheduler.STOP)

    def _add(self, trial_id: str) -> _Trial:
        if trial_id not in self._known:
            self._known[trial_id] = _Trial(trial_id)
            self.inner.on_trial_add(None, self._known[trial_id])
        return self._known[trial_id]

    def _prime(self, record: TrialRecord) -> None:
        """Let the scheduler remember a trial's rungs. What it says of them means nothing: verdicts are in the log."""
        for epoch, score in record.rungs:
            self._judge(None, record.trial_id, {EPOCH: epoch, SCORE: score})
            self._stopped.clear()
            if isinstance(self.inner, MedianStoppingRule):
                self.inner._stopped_trials.clear()


@dataclass(frozen=True)
class _Trial:
    """All that Tune's schedulers ask of a trial."""

    trial_id: str


class _Hyperband(AsyncHyperBandScheduler):
    """Asynchronous Hyperband. A trial's bracket follows from its id, in Tune's proportions, also after a resume."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:  # noqa: ARG002
        weights = [math.exp(len(bracket._rungs)) for bracket in self._brackets]
        digest = hashlib.blake2b(trial.trial_id.encode(), digest_size=8).digest()
        drawn = int.from_bytes(digest, "big") / 2**64 * sum(weights)
        passed = sum(drawn >= sum(weights[: index + 1]) for index in range(len(weights)))
        self._trial_info[trial.trial_id] = self._brackets[min(passed, len(weights) - 1)]


def _scheduler(config: SchedulerConfig, budget: int) -> Any:
    common: dict[str, Any] = {"time_attr": EPOCH, "metric": SCORE, "mode": "max"}
    match config.name:
        case "none":
            return FIFOScheduler()  # type: ignore[no-untyped-call]
        case "median":
            return MedianStoppingRule(
                **common,
                grace_period=config.grace_epochs,
                min_samples_required=config.min_samples,
                min_time_slice=math.inf,  # type: ignore[arg-type]  # never pause: a lane that pauses is idle
            )
        case _:
            brackets = config.brackets if config.name == "hyperband" else 1
            return _Hyperband(
                **common,
                max_t=budget,
                grace_period=config.grace_epochs,
                reduction_factor=config.reduction,
                brackets=min(brackets, len(rungs(config, budget))),
            )
