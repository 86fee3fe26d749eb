"""The table of benchmarks/searchers.py: mean ranks, normalised regrets, and the swarm against each of the others.

Rank: contenders are ranked by regret on each (problem, seed), 1 is best, ties share. Normalised regret: divided by the
mean regret of random search on that problem and averaged as a geometric mean for the functions, whose regrets span
decades, and as a mean for the tables, whose regret can be 0. The interval is a paired bootstrap of 95 % over
(problem, seed) of the difference in rank, swarm minus other: below zero, the swarm is better.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

SUBJECT = "pso"
_RESAMPLES = 2000
_CAVEATS = (
    "- The defaults of the swarm were chosen on these problems, seeds 0 to 7: later seeds draw new instances of the",
    "  functions, but the tables are the same ones.",
    "- Ours never tries a configuration twice, which on the tables (finite grids) is part of its lead; the others may.",
    "- Nevergrad's swarms search the unit cube as ours does; `benchmarks/contenders.py` says why.",
)
Array = NDArray[np.float64]


def render(record: dict[str, Any]) -> str:
    """Markdown of all contenders in ``record``, at the number of seeds that all of them have."""
    names = sorted(record["regrets"])
    seeds = min(len(r) for name in names for problem in record["regrets"][name].values() for r in problem.values())
    lines = [
        "# Searchers",
        "",
        f"{record['budget']} trials a run, {seeds} seeds, {record['machine']}. Written by `benchmarks/searchers.py`,",
        "which says what is measured; the columns are explained in `benchmarks/searchers_table.py`.",
        "",
        *_CAVEATS,
    ]
    for family in sorted(set(record["families"].values())):
        problems = [problem for problem, of in record["families"].items() if of == family]
        for in_flight in ("1", "8", "64"):
            regrets = np.array([[record["regrets"][n][p][in_flight][:seeds] for p in problems] for n in names])
            lines += ["", f"## {family}, {in_flight} in flight ({len(problems)} problems)", ""]
            lines += _table(names, regrets, family)
    return "\n".join(lines) + "\n"


def _table(names: list[str], regrets_nps: Array, family: str) -> list[str]:
    ranks_nps = rankdata(regrets_nps, axis=0)
    scaled_np = _normalised(regrets_nps, names, family)
    lines = ["| contender | mean rank | normalised regret | rank difference of pso [95 %] |", "|---|---|---|---|"]
    for index in np.argsort(ranks_nps.mean(axis=(1, 2))):
        versus = ""
        if SUBJECT in names and names[index] != SUBJECT:
            low, mean, high = _interval((ranks_nps[names.index(SUBJECT)] - ranks_nps[index]).ravel())
            versus = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"
        lines.append(f"| {names[index]} | {ranks_nps[index].mean():.2f} | {scaled_np[index]:.3f} | {versus} |")
    return lines


def _normalised(regrets_nps: Array, names: list[str], family: str) -> Array:
    if "random" not in names:
        return np.full(len(names), np.nan)
    scaled: Array = regrets_nps / regrets_nps[names.index("random")].mean(axis=-1)[None, :, None]
    if family == "bbob":
        return np.exp(np.log(np.maximum(scaled, 1e-12)).mean(axis=(1, 2)))
    return scaled.mean(axis=(1, 2))


def _interval(differences: Array) -> tuple[float, float, float]:
    rng = np.random.default_rng(0)
    means = [rng.choice(differences, len(differences)).mean() for _ in range(_RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(differences.mean()), float(high)
