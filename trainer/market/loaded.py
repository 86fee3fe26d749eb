"""What every source of bars hands over."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.market.bars_table import BarTable
from trainer.market.quality import QualityReport


@dataclass(frozen=True)
class LoadedBars:
    """A table and what was done to get it."""

    table: BarTable
    report: QualityReport
