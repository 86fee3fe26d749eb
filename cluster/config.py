"""How a sweep uses the cluster: the ``[sweep.pool]`` table of a profile. No torch, no Ray."""

from __future__ import annotations

from pydantic import Field

from trainer.fields import Frozen


class PoolConfig(Frozen):
    """Trainer actors and their room. What is left out follows the cluster and its memory."""

    trainers: int | None = Field(
        default=None,
        ge=1,
        le=4_096,
        description="trainer actors; more than there is room for now is a request to the autoscaler. Left out: one per "
        "GPU of the cluster, or per trainer_cpus CPUs where it has none, as nodes come and go",
    )
    trainer_cpus: float = Field(default=1.0, gt=0.0, le=256.0, description="CPUs that one trainer actor reserves")
    trainer_gpus: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="share of a GPU that one trainer actor reserves; left out: 1 where there are GPUs",
    )
    lanes: int | None = Field(
        default=None, ge=1, le=65_536, description="most lanes of one trainer actor; left out: as many as memory takes"
    )
    memory_share: float = Field(default=0.8, gt=0.0, le=1.0, description="share of the free memory that lanes may fill")
    groups: int = Field(default=8, ge=1, le=1_024, description="most static signatures resident in one trainer actor")
    losses: int = Field(
        default=5,
        ge=1,
        le=1_000,
        description="trainers that a trial may lose without finishing an epoch more, before it fails",
    )
    kept_trials: int = Field(
        default=4,
        ge=0,
        le=100_000,
        description="finished trials, the best ones, whose exact checkpoint is kept on disk",
    )
