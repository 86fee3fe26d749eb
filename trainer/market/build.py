"""From the table on the host to the market on the device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.errors import UserError
from trainer.market.bars_table import BarTable
from trainer.market.calendar import bars_left, flat_bars
from trainer.market.instrument import Instrument
from trainer.market.market import Market, MirrorView


def to_market(
    table: BarTable,
    features_NF: NDArray[np.float32],
    mirror: MirrorView,
    instrument: Instrument,
    allow_overnight: bool,
    device: torch.device | str,
) -> Market:
    """Copy a table with its features (``[N, F]``, finite) to ``device``.

    The instrument says after how long a silence nothing may be held even where overnight positions are allowed.
    """
    if features_NF.shape[0] != len(table):
        raise ValueError(f"features have {features_NF.shape[0]} rows, the table has {len(table)}")
    bad_N = ~np.isfinite(features_NF).all(axis=1)
    if bad_N.any():
        raise UserError(
            f"bar {int(np.argmax(bad_N))}: a feature is not finite; correct the feature or the bars before it"
        )

    def on_device(column: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(column).copy()).to(device)

    return Market(
        time_N=on_device(table.time_N),
        open_N=on_device(table.open_N),
        high_N=on_device(table.high_N),
        low_N=on_device(table.low_N),
        close_N=on_device(table.close_N),
        spread_N=on_device(table.spread_N),
        funding_N=on_device(table.funding_N),
        features_NF=on_device(features_NF.astype(np.float32)),
        session_N=on_device(table.session_N),
        bars_left_N=on_device(bars_left(table.session_N)),
        flat_N=on_device(flat_bars(table, allow_overnight, instrument.max_gap_hours)),
        mirror=MirrorView(*(part.to(device) for part in (mirror.sign_F, mirror.offset_F, mirror.partner_F))),
    )
