"""From finished bars with their measures to the table every source gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainer.market.bars import CutBars
from trainer.market.bars_table import BarTable
from trainer.market.calendar import funding_column
from trainer.market.instrument import Instrument
from trainer.market.microstructure import microstructure_columns, no_book_columns


def book_table(bars: CutBars, instrument: Instrument, window: int, name: Callable[[int], str], where: str) -> BarTable:
    """A validated table. ``name`` says what the exchange's contract id is called, ``where`` is named in errors."""
    contracts, contract_N = np.unique(bars.contract_N, return_inverse=True)
    held_N = bars.measures.has_book_N
    if held_N.any():
        extra = microstructure_columns(bars.measures, window, instrument.tick)
    else:
        extra = no_book_columns(len(bars))
    table = BarTable(
        time_N=bars.time_N,
        open_N=bars.open_N,
        high_N=bars.high_N,
        low_N=bars.low_N,
        close_N=bars.close_N,
        volume_N=bars.volume_N,
        spread_N=np.where(held_N, bars.measures.spread_N, instrument.default_spread),
        funding_N=funding_column(bars.time_N, instrument),
        session_N=bars.session_N,
        contract_N=contract_N.astype(np.int64),
        contract=tuple(name(int(contract)) for contract in contracts),
        buy_volume_N=bars.buy_volume_N,
        sell_volume_N=bars.sell_volume_N,
        extra=extra,
        has_book=bool(held_N.any()),
    )
    table.validate(where)
    return table
