"""How much work an epoch is and how many epochs a trial gets."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from trainer.fields import Frozen, dynamic, static

ROW_BLOCK = 16
"""Rows of a lane's slice come in multiples of this: times the four branches 64 elements, so that vector tails never
depend on the neighbours, and whole tiles of rows on a GPU."""


class TrainingConfig(Frozen):
    """One epoch = ``collect_steps`` steps of ``episodes`` parallel episodes, then ``learn_steps`` gradient steps."""

    epochs: int = dynamic(20, unit="epochs", ge=1, le=1_000_000, doc="budget of the trial")
    episodes: int = static(64, unit="episodes", ge=ROW_BLOCK, le=65_536, doc="parallel episodes of a lane")
    collect_steps: int = static(64, unit="steps", ge=1, le=1_000_000, doc="environment steps of every episode an epoch")
    learn_steps: int = static(64, unit="steps", ge=0, le=1_000_000, doc="gradient steps an epoch")
    batch: int = static(
        128, unit="transitions", ge=ROW_BLOCK, le=65_536, doc="transitions of a gradient step, per lane"
    )
    window: int = static(1, unit="bars", ge=1, le=256, doc="bars of history in one observation")
    mirror: Literal["off", "episode", "epoch"] = static(
        "episode", doc="where the agent is shown the mirrored market: never, in half the episodes, in every other epoch"
    )
    validate_every: int = static(
        1, unit="epochs", ge=1, le=10_000, doc="epochs between two validations before the last ones"
    )
    score_epochs: int = static(3, unit="epochs", ge=1, le=1_000, doc="last epochs whose validation Sharpe is averaged")
    checkpoint_every: int = static(5, unit="epochs", ge=1, le=10_000, doc="epochs between two exact checkpoints")

    precision: Literal["float32", "tf32", "bf16"] = static(
        "tf32",
        doc="matrix products while training, on a GPU: exact, or on the tensor cores; bf16 rounds activations too",
    )
    compile: bool = static(
        False, doc="compile the steps on a GPU: a minute at the first start on a machine, then faster epochs"
    )

    gradient_norms: bool = static(False, doc="report the norm of the gradient at each stage of the network every epoch")
    find_not_finite: bool = static(
        False, doc="stop at the first tensor of a learn step that is not finite and name it; slow, for hunting"
    )

    @field_validator("episodes", "batch")
    @classmethod
    def _whole_blocks(cls, rows: int) -> int:
        if rows % ROW_BLOCK != 0:
            raise ValueError(
                f"must be a multiple of {ROW_BLOCK}, so that a lane's bits do not depend on its neighbours"
            )
        return rows
