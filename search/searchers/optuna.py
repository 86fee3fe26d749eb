"""Optuna's samplers behind the searcher interface.

The sampler is seeded anew for every draw, from the seed and the count of draws: what comes next is then a function of
the study's trials alone, and restoring a state means adding those trials to a new study, without running the sampler
again. A proposal that is not kept becomes a FAIL trial, which the sampler leaves out. Pruned trials are told PRUNED,
their score reported at their step; failed, infeasible and NaN ones FAIL.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, cast

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import TPESampler
from optuna.trial import TrialState

from search.searchers.base import Earlier, Ending, Outcome, Searcher, Suggestion
from search.searchers.config import OptunaConfig
from search.space import Dimension, Point, Space, Value

_MODEL_ATTEMPTS = 4
_STATES = {
    Ending.COMPLETE: TrialState.COMPLETE,
    Ending.PRUNED: TrialState.PRUNED,
    Ending.FAILED: TrialState.FAIL,
    Ending.INFEASIBLE: TrialState.FAIL,
}


@dataclass
class Record:
    """One trial of the study in JSON's types; ``ending`` is None while it runs."""

    values: dict[str, Value]
    ending: str | None = None
    score: float | None = None
    step: int | None = None


class OptunaSearcher(Searcher):
    """An Optuna study, maximising, driven from outside."""

    name: ClassVar[str] = "optuna"

    def __init__(
        self,
        space: Space,
        seed: int,
        first: Sequence[Mapping[str, Value]] = (),
        earlier: Sequence[Earlier] = (),
        config: OptunaConfig | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.config = OptunaConfig() if config is None else config
        self.distributions = {dimension.name: distribution(dimension) for dimension in space.dimensions}
        self.study_name = self.config.study_name
        self.records: dict[str, Record] = {}
        self._trials: dict[str, optuna.trial.Trial] = {}
        self._proposal: tuple[Suggestion, optuna.trial.Trial] | None = None
        self._study: optuna.study.Study | None = None
        self._storage = optuna.storages.get_storage(self.config.storage if self.config.storage else None)
        super().__init__(space, seed, first, earlier)

    @property
    def study(self) -> optuna.study.Study:
        """The study, made when first needed under a name nobody has."""
        if self._study is None:
            self._study = self._created()
        return self._study

    def _propose(self, trial_id: str, attempt: int) -> Suggestion:
        """A new trial's point; a random one, without a trial, once the sampler has repeated itself too often."""
        self._refuse()
        rng = self._generator()
        if attempt >= _MODEL_ATTEMPTS:
            return self._suggestion(trial_id, rng.random(len(self.space)))
        trial = self._asked(self._sampler(int(rng.integers(2**31))))
        values: dict[str, Value] = {}
        for dimension in self.space.dimensions:
            if self.space.active(values, dimension):
                values[dimension.name] = _suggested(trial, dimension.name, self.distributions[dimension.name])
        suggestion = Suggestion(trial_id, self.space.encode(values), values)
        self._proposal = (suggestion, trial)
        return suggestion

    def _accept(self, suggestion: Suggestion) -> None:
        study = self.study  # made, if need be, before the new record is among those it is made from
        record = Record(suggestion.values)
        self.records[suggestion.trial_id] = record
        if self._proposal is not None and self._proposal[0] is suggestion:
            self._trials[suggestion.trial_id] = self._proposal[1]
            self._proposal = None
        else:
            self._refuse()
            self._trials[suggestion.trial_id] = self._running(study, record)

    def _refuse(self) -> None:
        """A point the search did not keep: its trial fails, so that the model leaves it out."""
        if self._proposal is not None:
            self._proposal[1].set_user_attr("refused", "tried before, or not a valid config")
            self.study.tell(self._proposal[1], state=TrialState.FAIL)
            self._proposal = None

    def _learn(self, suggestion: Suggestion, outcome: Outcome) -> None:
        study = self.study
        trial = self._trials.pop(suggestion.trial_id)
        record = self.records[suggestion.trial_id]
        record.ending, record.score, record.step = outcome.ending.value, outcome.score, outcome.step
        if outcome.step is not None and outcome.score is not None:
            trial.report(outcome.score, outcome.step)
        value = outcome.score if outcome.ending is Ending.COMPLETE else None
        study.tell(trial, value, _STATES[outcome.ending])

    def _set_earlier(self, earlier: list[tuple[Point, dict[str, Value], float]]) -> None:
        """Finished trials of the study, from the start."""
        for number, (_, values, score) in enumerate(earlier):
            self.records[f"earlier-{number}"] = Record(values, Ending.COMPLETE.value, score)

    def _own_state(self) -> Any:
        return {
            "study_name": self.study_name,
            "records": {trial_id: asdict(record) for trial_id, record in self.records.items()},
        }

    def _restore_own(self, state: Any) -> None:
        """The study is made again under its name, replacing what a storage may still hold of it."""
        self.study_name = state["study_name"]
        self.records = {trial_id: Record(**record) for trial_id, record in state["records"].items()}
        self._trials = {}
        self._proposal = None
        self._study = None
        storage = self._storage
        if self.study_name in optuna.get_all_study_names(storage):
            optuna.delete_study(study_name=self.study_name, storage=storage)

    def _created(self) -> optuna.study.Study:
        """A study with every trial on record, in the order they were asked."""
        taken = set(optuna.get_all_study_names(self._storage))
        if not self.study_name:
            self.study_name = f"paceline-{uuid.uuid4().hex[:12]}"
        wanted, number = self.study_name, 2
        while self.study_name in taken:
            self.study_name, number = f"{wanted}-{number}", number + 1
        study = optuna.create_study(
            storage=self._storage, study_name=self.study_name, sampler=self._sampler(0), direction="maximize"
        )
        for trial_id, record in self.records.items():
            if record.ending is None:
                self._trials[trial_id] = self._running(study, record)
            else:
                study.add_trial(self._ended(record))
        return study

    def _running(self, study: optuna.study.Study, record: Record) -> optuna.trial.Trial:
        study.enqueue_trial(record.values)
        trial = study.ask()
        for name in record.values:
            _suggested(trial, name, self.distributions[name])
        return trial

    def _ended(self, record: Record) -> optuna.trial.FrozenTrial:
        ending = Ending(str(record.ending))
        reports = {} if record.step is None or record.score is None else {record.step: record.score}
        return optuna.trial.create_trial(
            state=_STATES[ending],
            value=record.score,
            params=record.values,
            distributions={name: self.distributions[name] for name in record.values},
            intermediate_values=reports,
        )

    def _asked(self, sampler: TPESampler) -> optuna.trial.Trial:
        """A new trial by ``sampler``, through a handle of its own since a study has one sampler."""
        name = self.study.study_name
        return optuna.load_study(study_name=name, storage=self._storage, sampler=sampler).ask()

    def _sampler(self, seed: int) -> TPESampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return TPESampler(
                seed=seed,
                n_startup_trials=self.config.startup_trials,
                constant_liar=True,
                multivariate=True,
                group=any(dimension.when for dimension in self.space.dimensions),
            )


def distribution(dimension: Dimension) -> BaseDistribution:
    """The dimension in Optuna's words."""
    if dimension.kind == "categorical":
        return CategoricalDistribution(dimension.choices)
    if dimension.kind == "integer":
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _suggested(trial: optuna.trial.Trial, name: str, over: BaseDistribution) -> Value:
    """The trial's value of this parameter: the enqueued one, or the sampler's."""
    if isinstance(over, CategoricalDistribution):
        choice: Any = trial.suggest_categorical(name, over.choices)
        return cast(Value, choice)
    if isinstance(over, IntDistribution):
        return trial.suggest_int(name, over.low, over.high, log=over.log)
    if isinstance(over, FloatDistribution):
        return trial.suggest_float(name, over.low, over.high, log=over.log)
    raise TypeError(f"{name}: a {type(over).__name__} is not made here")
