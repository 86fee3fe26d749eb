"""The searchers under test behind one small face, each used as its own documentation says.

Paceline's searchers, Nevergrad's two kinds of PSO, the PSO of OptunaHub (a download at run time, so it takes a checkout
of optuna/optunahub-registry), Optuna's TPE with its defaults, and random search.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import optuna

from search.searchers.base import Outcome, Searcher
from search.searchers.optuna import distribution
from search.searchers.pso import PsoSearcher
from search.searchers.random import RandomSearcher
from search.space import Space, Value


class Contender(Protocol):
    """Minimises: ``ask`` gives a handle and values, ``tell`` hears the handle's loss."""

    def ask(self) -> tuple[Any, Mapping[str, Value]]: ...

    def tell(self, handle: Any, loss: float) -> None: ...


class Maker(Protocol):
    """Makes a contender for one run."""

    def __call__(self, space: Space, budget: int, in_flight: int, *, seed: int) -> Contender: ...


def contenders(registry: Path | None) -> dict[str, Maker]:
    """Makers by name. OptunaHub's PSO only with a ``registry`` checkout."""
    makers: dict[str, Maker] = {
        "pso": lambda space, *_, seed: Ours(PsoSearcher(space, seed)),
        "nevergrad-pso": lambda space, budget, in_flight, *, seed: NevergradPso("PSO", space, budget, in_flight, seed),
        "nevergrad-realspacepso": lambda space, budget, in_flight, *, seed: NevergradPso(
            "RealSpacePSO", space, budget, in_flight, seed
        ),
        "optuna-tpe": lambda space, *_, seed: Study(space, optuna.samplers.TPESampler(seed=seed)),
        "random": lambda space, *_, seed: Ours(RandomSearcher(space, seed)),
    }
    if registry is not None:
        makers["optunahub-pso"] = lambda space, *_, seed: Study(space, _optunahub_pso(registry, space, seed))
    return makers


class Ours:
    """A searcher of this repository."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self.ids = itertools.count()

    def ask(self) -> tuple[Any, Mapping[str, Value]]:
        suggestion = self.searcher.ask(f"trial-{next(self.ids)}")
        if suggestion is None:
            raise RuntimeError("the space is exhausted: give the benchmark a larger one")
        return suggestion.trial_id, suggestion.values

    def tell(self, handle: Any, loss: float) -> None:
        self.searcher.tell(handle, Outcome.complete(-loss))


class NevergradPso:
    """A swarm of Nevergrad (population ``max(40, num_workers)``, its default) on the unit cube, decoded as ours is.

    A dictionary of bounded scalars would be the more natural way to say the space, but there its ``PSO`` did worse than
    random search, and both took ten times as long; a bounded array suits it better.
    """

    def __init__(self, kind: str, space: Space, budget: int, in_flight: int, seed: int) -> None:
        import nevergrad as ng

        parametrization = ng.p.Array(shape=(len(space),), lower=0.0, upper=1.0)
        parametrization.random_state = np.random.RandomState(seed)
        self.space = space
        self.optimizer = getattr(ng.optimizers, kind)(parametrization, budget=budget, num_workers=in_flight)

    def ask(self) -> tuple[Any, Mapping[str, Value]]:
        candidate = self.optimizer.ask()
        return candidate, self.space.decode(candidate.value.tolist())

    def tell(self, handle: Any, loss: float) -> None:
        self.optimizer.tell(handle, loss)


class Study:
    """An Optuna study with the given sampler, through ``study.ask(distributions)``."""

    def __init__(self, space: Space, sampler: Any) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.distributions = _distributions(space)
        self.study = optuna.create_study(sampler=sampler)

    def ask(self) -> tuple[Any, Mapping[str, Value]]:
        trial = self.study.ask(self.distributions)
        return trial, trial.params

    def tell(self, handle: Any, loss: float) -> None:
        self.study.tell(handle, loss)


def _distributions(space: Space) -> dict[str, Any]:
    return {dimension.name: distribution(dimension) for dimension in space.dimensions}


def _optunahub_pso(registry: Path, space: Space, seed: int) -> Any:
    import optunahub

    package = optunahub.load_local_module("samplers/pso", registry_root=str(registry / "package"))
    return package.PSOSampler(search_space=_distributions(space), seed=seed)
