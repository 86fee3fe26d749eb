"""How the data are split in time."""

from __future__ import annotations

from typing import Literal

from trainer.fields import Frozen, static


class FoldsConfig(Frozen):
    """Walk-forward folds over units of time: trading sessions, or blocks of bars where sessions are too few."""

    scheme: Literal["expanding", "rolling"] = static(
        "expanding", doc="train ranges all start at the first unit, or keep the length of the first one"
    )
    count: int = static(3, unit="folds", doc="number of folds", ge=1, le=64)
    unit: Literal["session", "block"] = static(
        "session", doc="what ranges are aligned to; 'block' cuts through sessions, for data of few of them"
    )
    block_bars: int = static(64, unit="bars", doc="length of one block when unit is 'block'", ge=1)
    first_train: float = static(
        0.5, unit="share", doc="share of the visible units in the first train range", gt=0.0, lt=1.0
    )
    purge: int = static(
        1, unit="units", doc="units left out between train and validation, more if look-back asks", ge=0
    )
    embargo: int = static(
        1, unit="units", doc="units left out after each validation range and before the holdout", ge=0
    )
    holdout: float = static(
        0.2, unit="share", doc="last share of the units, cut off before anything is fitted", ge=0.0, lt=1.0
    )
