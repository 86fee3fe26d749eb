"""Settings of the searchers."""

from __future__ import annotations

from typing import Literal

from trainer.fields import Frozen, static


class PsoConfig(Frozen):
    """Particle swarm. The defaults were chosen on benchmarks/searchers.py, for some 200 trials."""

    particles: int = static(10, doc="swarm size", unit="particles", ge=2)
    inertia: float = static(0.4, doc="share of the velocity a move keeps", ge=0.0, lt=1.0)
    pull: float = static(3.0, doc="pull of the bests a particle sees, summed over them", gt=0.0)
    crowded_pull: float = static(2.0, doc="the same for a particle that has another move in flight", gt=0.0)
    informants: int = static(5, doc="how many of the bests in the neighbourhood pull", unit="particles", ge=1)
    neighbourhood: Literal["random", "ring"] = static("ring", doc="which bests a particle sees besides its own")
    neighbours: int = static(6, doc="others seen: nearest in the ring, or redrawn when the swarm stands still", ge=1)
    bounce: float = static(0.5, doc="share of the speed kept, turned round, at a wall", ge=0.0, le=1.0)
    choice_floor: float = static(0.1, doc="probability shared evenly by all choices of a categorical", gt=0.0, le=1.0)
    stagnation: int = static(
        20, doc="moves without a better own best before a particle starts anew", unit="moves", ge=2
    )


class OptunaConfig(Frozen):
    """Optuna's TPE. A storage is there for optuna-dashboard to look at; the saved state does not need it."""

    startup_trials: int = static(10, doc="scored trials before the model takes over", unit="trials", ge=1)
    storage: str = static("", doc="URL of a storage to keep the study in; empty for memory")
    study_name: str = static("", doc="name of the study there; empty for a new unique one")
