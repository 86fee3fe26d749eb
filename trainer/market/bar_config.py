"""How raw events become bars."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from trainer.fields import Frozen, static


class BarConfig(Frozen):
    """Bars cut from trades (S13) and the windows of the microstructure features (S14)."""

    kind: Literal["time", "tick", "volume", "dollar"] = static("volume", doc="what a bar holds a constant amount of")
    size: float = static(
        100.0,
        unit="s for time, trades for tick, units traded for volume, price x units for dollar",
        doc="amount one bar holds",
        gt=0.0,
    )
    window: int = static(
        50, unit="bars", doc="bars that VPIN, Kyle's lambda, Amihud's ratio and the rates look back over", ge=2
    )
    symbol: str = static("", doc="symbol or instrument id to take from a file that holds several; empty: the only one")
    piece_records: int = static(
        16_384, unit="records", doc="raw records held in memory at a time; changes no result", ge=1
    )

    @model_validator(mode="after")
    def _whole_trades(self) -> BarConfig:
        if self.kind == "tick" and self.size != round(self.size):
            raise ValueError(f"tick bars hold whole trades: size {self.size} is not a whole number")
        return self
