"""Settings of the replay ring and of prioritised sampling."""

from __future__ import annotations

from trainer.errors import UserError
from trainer.fields import Frozen, dynamic, static


class ReplayConfig(Frozen):
    """Replay of one lane; ``per_alpha = 0`` is uniform replay."""

    capacity: int = static(65_536, unit="transitions", ge=2, doc="Size of a lane's ring; rounded down to whole steps.")
    n_step: int = static(1, unit="bars", ge=1, le=64, doc="Rewards summed before bootstrapping.")
    per_alpha: float = dynamic(0.3, unit="1", ge=0, le=1, doc="Exponent of the loss in the sampling priority.")
    per_epsilon: float = dynamic(1e-3, unit="loss", gt=0, le=1, doc="Added to the loss, so that no priority is zero.")
    per_beta_start: float = dynamic(0.4, unit="1", ge=0, le=1, doc="Exponent of the importance weights at the start.")
    per_beta_end: float = dynamic(1.0, unit="1", ge=0, le=1, doc="Exponent of the importance weights after annealing.")
    per_beta_steps: int = dynamic(100_000, unit="learn steps", ge=1, doc="Learn steps over which beta is annealed.")


def ring_length(config: ReplayConfig, episodes: int) -> int:
    """T, the collect steps that a lane's ring holds when ``episodes`` run in parallel.

    Raises:
        UserError: the ring cannot hold one n-step window.
    """
    length = config.capacity // episodes
    if length <= config.n_step:
        raise UserError(
            f"replay.capacity = {config.capacity} holds {length} steps of {episodes} parallel episodes: at least "
            f"{episodes * (config.n_step + 1)} is right for replay.n_step = {config.n_step}"
        )
    return length
