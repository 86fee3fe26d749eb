"""What every feature declares: its name, its parity in the mirrored market (S12), and what it means.

One record for the features computed from bars (S15) and for those computed from the book and the trades (S14).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.market.market import Parity


@dataclass(frozen=True)
class FeatureSpec:
    """One feature column. ``partner`` is set exactly for SWAPPED, ``reflect_at`` (c in c - x) exactly for REFLECTED."""

    name: str
    parity: Parity
    partner: str | None = None
    reflect_at: float | None = None
    doc: str = ""

    def __post_init__(self) -> None:
        if (self.partner is not None) != (self.parity is Parity.SWAPPED):
            raise ValueError(f"feature {self.name}: a partner belongs to SWAPPED features, and to those alone")
        if (self.reflect_at is not None) != (self.parity is Parity.REFLECTED):
            raise ValueError(f"feature {self.name}: reflect_at belongs to REFLECTED features, and to those alone")


def check_specs(specs: Sequence[FeatureSpec]) -> None:
    """Raise ValueError unless names are unique and every SWAPPED feature's partner is SWAPPED back to it."""
    by_name = {spec.name: spec for spec in specs}
    if len(by_name) != len(specs):
        raise ValueError("two features share one name")
    for spec in specs:
        if spec.partner is not None and (
            spec.partner not in by_name or by_name[spec.partner].partner != spec.name or spec.partner == spec.name
        ):
            raise ValueError(f"feature {spec.name}: its partner {spec.partner} is not swapped back to it")
