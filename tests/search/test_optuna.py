"""What Optuna is told about each ending, under which name, and in which storage."""

from __future__ import annotations

import json
import math
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from search.searchers.base import Outcome
from search.searchers.config import OptunaConfig
from search.searchers.optuna import OptunaSearcher
from search.space import Dimension, Space

SPACE = Space((Dimension("x", "float"), Dimension("n", "integer", 1, 9)))


def test_each_ending_is_told_as_itself() -> None:
    searcher = OptunaSearcher(SPACE, 1)
    outcomes = [Outcome.complete(1.5), Outcome.pruned(0.5, step=7), Outcome.failed(), Outcome.infeasible()]
    for number, outcome in enumerate([*outcomes, Outcome.complete(math.nan)]):
        searcher.ask(f"t{number}")
        searcher.tell(f"t{number}", outcome)
    searcher.ask("running")
    trials = searcher.study.trials
    fail = TrialState.FAIL
    assert [t.state for t in trials] == [TrialState.COMPLETE, TrialState.PRUNED, fail, fail, fail, TrialState.RUNNING]
    assert trials[0].value == 1.5
    assert trials[1].intermediate_values == {7: 0.5}
    assert searcher.study.direction.name == "MAXIMIZE"


def test_study_names_are_unique_and_a_given_one_is_never_shared(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    names = set()
    for given in ("", "", "sweep", "sweep"):
        searcher = OptunaSearcher(SPACE, 1, config=OptunaConfig(storage=url, study_name=given))
        searcher.ask("t0")
        names.add(searcher.study_name)
    assert {"sweep", "sweep-2"} <= names
    assert len(names) == 4
    assert set(optuna.get_all_study_names(url)) == names


@pytest.mark.parametrize("stored", [False, True])
def test_a_restored_study_holds_every_trial_once_with_its_state(tmp_path: Path, stored: bool) -> None:
    config = OptunaConfig(storage=f"sqlite:///{tmp_path}/studies.db" if stored else "")
    searcher = OptunaSearcher(SPACE, 1, config=config, earlier=[({"x": 0.5, "n": 3}, 2.0)])
    for number, outcome in enumerate([Outcome.complete(1.5), Outcome.pruned(0.5, step=7), Outcome.failed()]):
        searcher.ask(f"t{number}")
        searcher.tell(f"t{number}", outcome)
    searcher.ask("running")
    restored = OptunaSearcher(SPACE, 1, config=config)
    restored.restore(json.loads(json.dumps(searcher.state())))
    before = (
        [(t.state, t.params, t.value, t.intermediate_values) for t in searcher.study.trials] if not stored else None
    )
    after = [(t.state, t.params, t.value, t.intermediate_values) for t in restored.study.trials]
    assert len(after) == 5
    assert before in (None, after)
    assert restored.study_name == searcher.study_name
    assert restored.tell("running", Outcome.complete(3.0))
    assert restored.study.best_value == 3.0


def test_a_warm_start_is_known_to_the_study_from_the_start() -> None:
    searcher = OptunaSearcher(SPACE, 1, earlier=[({"x": 0.25, "n": 3}, 2.0), ({"x": 0.75, "n": 4}, 5.0)])
    assert [t.value for t in searcher.study.trials] == [5.0, 2.0]
    assert searcher.study.best_params == {"x": 0.75, "n": 4}
