"""What is fitted on a fold's train range, and on nothing else: the scale of every feature, the size of a bar's move.

Legend: N bars, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.errors import UserError
from trainer.market.bars_table import BarTable
from trainer.market.folds import Range
from trainer.market.normalise_config import NormaliseConfig

QUANTILES = (0.25, 0.5, 0.75, 0.05, 0.95)
IQR_OF_NORMAL = 1.3489795003921634  # from the 25 % to the 75 % quantile of the standard normal
TAILS_OF_NORMAL = 3.2897072539029435  # from the 5 % to the 95 % quantile
NEGLIGIBLE = 1e-6  # spread relative to the level that float32 columns cannot tell from a constant
SMALLEST = 1e-12  # below this a column is constant for every purpose


@dataclass(frozen=True)
class Scaling:
    """``normalised[f] = clip((features[f] - shift_F[f]) / scale_F[f])``; a constant column has scale 1."""

    shift_F: NDArray[np.float32]
    scale_F: NDArray[np.float32]  # positive
    clip: float


def fit_scaling(values_NF: NDArray[np.float32], train: Range, config: NormaliseConfig) -> Scaling:
    """Fit shift and scale on the rows of ``train``. Raises UserError for an empty range.

    'iqr' takes the median and the larger of two ranges, each over that of the standard normal: between the quartiles,
    and between the 5 and 95 % quantiles. The second speaks where much of a column is one value (wicks, ticks, gaps):
    its quartiles may lie a hair apart. A column that varies less than that (flags) falls back to mean and deviation.
    """
    if not 0 <= train.start < train.end <= values_NF.shape[0]:
        raise UserError(f"normalise: train range {train.start}..{train.end} is not inside {values_NF.shape[0]} bars")
    rows = values_NF[train.start : train.end].astype(np.float64)
    shift_F, scale_F = rows.mean(axis=0), rows.std(axis=0)
    if config.method == "iqr":
        lower_F, median_F, upper_F, bottom_F, top_F = np.quantile(rows, QUANTILES, axis=0)
        robust_F = np.maximum((upper_F - lower_F) / IQR_OF_NORMAL, (top_F - bottom_F) / TAILS_OF_NORMAL)
        usable_F = robust_F > np.maximum(NEGLIGIBLE * np.abs(median_F), SMALLEST)
        shift_F, scale_F = np.where(usable_F, median_F, shift_F), np.where(usable_F, robust_F, scale_F)
    constant_F = scale_F <= np.maximum(NEGLIGIBLE * np.abs(shift_F), SMALLEST)
    scale_F = np.where(constant_F, 1.0, scale_F)
    return Scaling(shift_F.astype(np.float32), scale_F.astype(np.float32), config.clip)


def normalise(values_NF: NDArray[np.float32], scaling: Scaling) -> NDArray[np.float32]:
    """Normalised features on the host, for people and exports; training does the same on gather."""
    scaled_NF = (values_NF - scaling.shift_F) / scaling.scale_F
    clipped_NF: NDArray[np.float32] = np.clip(scaled_NF, -scaling.clip, scaling.clip).astype(np.float32)
    return clipped_NF


def bar_move(table: BarTable, train: Range) -> float:
    """Standard deviation, in points, of the change from close to close on the bars of ``train``.

    Changes over nights and contract rolls are left out. It is the reward's unit: one bar's typical move.
    Raises UserError when there is no change to measure.
    """
    part = table.rows(slice(train.start, train.end))
    change = np.diff(part.close_N)
    lived = (np.diff(part.session_N) == 0) & (np.diff(part.contract_N) == 0)
    if not lived.any():
        raise UserError(
            f"bars {train.start}..{train.end}: no two bars of one session and contract to measure a move on"
        )
    move = float(np.std(change[lived]))
    if not move > 0.0:
        raise UserError(
            f"bars {train.start}..{train.end}: every change of the close is the same, so rewards have no unit; "
            "give data whose price moves"
        )
    return move
