"""Which market features the agent sees."""

from __future__ import annotations

from typing import Literal

from trainer.fields import Frozen, static

Family = Literal["returns", "trend", "oscillators", "volatility", "volume", "session"]
FAMILIES: tuple[Family, ...] = ("returns", "trend", "oscillators", "volatility", "volume", "session")


class FeatureConfig(Frozen):
    """Families of computed features. Columns of the book and columns that come with the data are always appended."""

    families: tuple[Family, ...] = static(FAMILIES, doc="families of features computed from the bars; may be empty")
    exclude: tuple[str, ...] = static((), doc="features left out by name; of a swapped pair, both or neither")
