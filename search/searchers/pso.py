"""An asynchronous particle swarm over the unit cube.

The rules are those of a fully informed swarm (Mendes, Kennedy and Neves 2004, eq. 6) with log-rank weights on its
informants, so that better bests pull harder::

    v <- inertia v + pull * sum_j w_j r_j (p_j - x)      j = 1..m, r_j uniform in [0, 1]^D
    w_j ~ ln(m + 1/2) - ln(j), normalised to sum 1
    x <- x + v, reflected at the walls

``p_j`` are the best bests in the particle's neighbourhood. A categorical has no direction: its next choice is drawn
from a distribution over the choices that mixes the same weights with the present choice and a floor for all.

What makes it asynchronous: an ask is bound to (particle, life, move) and carries the velocity that made it. A tell sets
the particle's position only if it is the newest move told so far, its best whenever it is better, and nothing if the
particle has started anew since; so the order of tells, tells that never come, and several moves of one particle in
flight do no harm. The next ask goes to the particle with the fewest moves in flight, and moves that no tell has
answered for long no longer count. While another move of its particle is in flight, a move cannot build on that one's
outcome: it pulls less, so that it lands among the bests and not beyond them. All randomness is a pure function of the
seed and the count of draws.

Shape legend: D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from search.searchers.base import Earlier, Outcome, Searcher, Suggestion
from search.searchers.config import PsoConfig
from search.space import Point, Space, Value

Array = NDArray[np.float64]

_PRESENT_WEIGHT = 0.25
_SHAKE_AFTER = 4
_LOST_AFTER = 8


@dataclass(frozen=True)
class Particle:
    """One particle: where it was last seen, where it did best, and how its moves are counted.

    ``rank`` orders outcomes, (fidelity, score); None before the first score of this life.
    """

    position: Point | None = None
    velocity: Point | None = None
    best: Point | None = None
    rank: tuple[float, float] | None = None
    life: int = 0
    moves: int = 0
    newest_told: int = 0
    stale: int = 0
    last_ask: int = 0
    sees: tuple[int, ...] = ()


@dataclass(frozen=True)
class Binding:
    """What an ask belongs to, and the velocity that made it. ``ask`` counts all asks."""

    particle: int
    life: int
    move: int
    ask: int
    velocity: Point


class PsoSearcher(Searcher):
    """Particle swarm: see the module's docstring."""

    name: ClassVar[str] = "pso"

    def __init__(
        self,
        space: Space,
        seed: int,
        first: Sequence[Mapping[str, Value]] = (),
        earlier: Sequence[Earlier] = (),
        config: PsoConfig | None = None,
    ) -> None:
        self.config = PsoConfig() if config is None else config
        self.particles = [Particle() for _ in range(self.config.particles)]
        self.bindings: dict[str, Binding] = {}
        self.leader: tuple[float, float] | None = None
        self._proposal: tuple[Suggestion | None, Point] = (None, ())
        self._asks = 0
        self._starts = 0
        self._queue: list[Point] = []
        self._start_points = _start_points(len(space), seed, 0)
        super().__init__(space, seed, first, earlier)

    def _propose(self, trial_id: str, attempt: int) -> Suggestion:
        """A move of the particle whose turn it is; later attempts draw it again, then shake one coordinate."""
        index = self._next_particle()
        rng = self._generator()
        if self.particles[index].best is None:
            point, velocity = np.array(self._start_point()), np.zeros(len(self.space))
        else:
            point, velocity = self._moved(index, rng)
        if attempt >= _SHAKE_AFTER:
            point[rng.integers(len(point))] = rng.random()
        suggestion = self._suggestion(trial_id, point)
        self._proposal = (suggestion, _point(velocity))
        return suggestion

    def _accept(self, suggestion: Suggestion) -> None:
        """Bind the ask to a move of the particle whose turn it is; a point from outside has no velocity."""
        proposed, velocity = self._proposal
        if proposed is not suggestion:
            velocity = (0.0,) * len(self.space)
        index = self._next_particle()
        self._asks += 1
        particle = self.particles[index]
        particle = replace(particle, moves=particle.moves + 1, last_ask=self._asks)
        self.particles[index] = particle
        self.bindings[suggestion.trial_id] = Binding(index, particle.life, particle.moves, self._asks, velocity)

    def _learn(self, suggestion: Suggestion, outcome: Outcome) -> None:
        binding = self.bindings.pop(suggestion.trial_id)
        particle = self.particles[binding.particle]
        rank = outcome.rank
        if rank is None:
            return
        improved_swarm = self.leader is None or rank > self.leader
        if improved_swarm:
            self.leader = rank
        else:
            particle = replace(particle, sees=())
        if binding.life == particle.life:
            particle = _told(particle, suggestion.point, rank, binding)
            if particle.stale >= self.config.stagnation and particle.rank != self.leader:
                particle = Particle(life=particle.life + 1, moves=particle.moves, last_ask=particle.last_ask)
        self.particles[binding.particle] = particle

    def _set_earlier(self, earlier: list[tuple[Point, dict[str, Value], float]]) -> None:
        """Half of the swarm starts at the best: tried again, since the scores of another sweep may not hold."""
        keys = set()
        for point, values, _ in earlier:
            if len(self._queue) < (self.config.particles + 1) // 2 and self.space.key(values) not in keys:
                keys.add(self.space.key(values))
                self._queue.append(point)

    def _own_state(self) -> Any:
        return {
            "config": self.config.model_dump(),
            "particles": [asdict(particle) for particle in self.particles],
            "bindings": {trial_id: asdict(binding) for trial_id, binding in self.bindings.items()},
            "leader": self.leader,
            "asks": self._asks,
            "starts": self._starts,
            "queue": self._queue,
        }

    def _restore_own(self, state: Any) -> None:
        self.config = PsoConfig.model_validate(state["config"])
        self.particles = [Particle(**_tuples(particle)) for particle in state["particles"]]
        self.bindings = {trial_id: Binding(**_tuples(binding)) for trial_id, binding in state["bindings"].items()}
        self.leader = None if state["leader"] is None else tuple(state["leader"])
        self._asks = state["asks"]
        self._starts = state["starts"]
        self._queue = [tuple(point) for point in state["queue"]]

    def _next_particle(self) -> int:
        """Fewest moves in flight, then least recently asked. Moves unanswered for very long count as lost."""
        patience = _LOST_AFTER * max(len(self.particles), len(self.bindings))
        busy = [0] * len(self.particles)
        for binding in self.bindings.values():
            if self._asks - binding.ask < patience:
                busy[binding.particle] += 1
        return min(range(len(self.particles)), key=lambda index: (busy[index], self.particles[index].last_ask))

    def _start_point(self) -> Point:
        if self._queue:
            return self._queue.pop(0)
        if self._starts >= len(self._start_points):
            self._start_points = _start_points(len(self.space), self.seed, self._starts)
        self._starts += 1
        return _point(self._start_points[self._starts - 1])

    def _moved(self, index: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Next position and velocity ``[D]`` of a particle that has a best."""
        particle = self.particles[index]
        if particle.position is None or particle.velocity is None:
            raise RuntimeError("a particle with a best has a position")
        bests = self._informants(index, rng)
        weights = math.log(len(bests) + 0.5) - np.log(np.arange(1, len(bests) + 1))
        weights /= weights.sum()
        x = np.array(particle.position)
        attraction = np.sum(weights[:, None] * rng.random(bests.shape) * (bests - x), axis=0)
        crowded = any(b.particle == index for b in self.bindings.values())
        pull = self.config.crowded_pull if crowded else self.config.pull
        velocity = self.config.inertia * np.array(particle.velocity) + pull * attraction
        point, velocity = _reflected(x + velocity, velocity, self.config.bounce)
        for axis, dimension in enumerate(self.space.dimensions):
            if dimension.kind == "categorical":
                point[axis] = self._chosen(len(dimension.choices), x[axis], bests[:, axis], weights, rng)
                velocity[axis] = 0.0
        return point, velocity

    def _informants(self, index: int, rng: np.random.Generator) -> Array:
        """Bests ``[m, D]`` that pull on a particle, best first."""
        count = len(self.particles)
        particle = self.particles[index]
        if not particle.sees:
            particle = replace(particle, sees=self._neighbours(index, count, rng))
            self.particles[index] = particle
        ranked = sorted(
            ((p.rank, -j, p.best) for j, p in ((j, self.particles[j]) for j in particle.sees) if p.rank and p.best),
            reverse=True,
        )
        return np.array([best for _, _, best in ranked[: self.config.informants]])

    def _neighbours(self, index: int, count: int, rng: np.random.Generator) -> tuple[int, ...]:
        others = min(self.config.neighbours, count - 1)
        if self.config.neighbourhood == "ring":
            steps = [(step // 2 + 1) * (1 if step % 2 == 0 else -1) for step in range(others)]
            return tuple(sorted({index, *((index + step) % count for step in steps)}))
        drawn = rng.choice(count - 1, others, replace=False)
        return tuple(sorted({index, *(j + 1 if j >= index else j for j in drawn.tolist())}))

    def _chosen(
        self, choices: int, present: float, bests_m: Array, weights_m: Array, rng: np.random.Generator
    ) -> float:
        """The middle of the cell of a drawn choice."""
        probability = np.zeros(choices)
        probability[_cell(present, choices)] += _PRESENT_WEIGHT * rng.random()
        for best, weight in zip(bests_m, weights_m, strict=True):
            probability[_cell(best, choices)] += weight * rng.random()
        floor = self.config.choice_floor
        probability = (1.0 - floor) * probability / probability.sum() + floor / choices
        return float((rng.choice(choices, p=probability) + 0.5) / choices)


def _told(particle: Particle, point: Point, rank: tuple[float, float], binding: Binding) -> Particle:
    """The particle after a scored move of its present life."""
    if particle.rank is None or rank > particle.rank:
        particle = replace(particle, best=point, rank=rank, stale=0)
    else:
        particle = replace(particle, stale=particle.stale + 1)
    if binding.move > particle.newest_told:
        particle = replace(particle, position=point, velocity=binding.velocity, newest_told=binding.move)
    return particle


def _reflected(point: Array, velocity: Array, bounce: float) -> tuple[Array, Array]:
    """Fold ``point`` into the unit cube; a component that hit a wall turns round with ``bounce`` of its speed."""
    outside = (point < 0.0) | (point > 1.0)
    folded = np.abs(np.mod(point + 1.0, 2.0) - 1.0)
    return np.clip(folded, 0.0, 1.0), np.where(outside, -bounce * velocity, velocity)


def _start_points(dims: int, seed: int, at_least: int) -> Array:
    """Scrambled Sobol points ``[n, D]``, more than ``at_least`` of them; a longer list begins with the shorter one."""
    from scipy.stats import qmc

    size = max(5, math.ceil(math.log2(at_least + 1)))
    points: Array = qmc.Sobol(dims, scramble=True, rng=seed).random_base2(size)
    return points


def _cell(unit: float, choices: int) -> int:
    return min(int(unit * choices), choices - 1)


def _point(array: Any) -> Point:
    return tuple(float(unit) for unit in array)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
