"""How features are brought to one scale."""

from __future__ import annotations

from typing import Literal

from trainer.fields import Frozen, static


class NormaliseConfig(Frozen):
    """Shift and scale of every feature, fitted on a fold's train range."""

    method: Literal["std", "iqr"] = static(
        "iqr", doc="'std': mean and standard deviation; 'iqr': median and quantile ranges, deaf to outliers"
    )
    clip: float = static(10.0, unit="scales", doc="normalised features are held to [-clip, clip]", gt=0.0)
