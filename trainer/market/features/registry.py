"""The register of computed features: each is a function of the price path, declared where it is defined.

    @windowed("return_{window}", windows=(1, 2, 4), parity=Parity.ODD, unit="log")
    def past_return(path: Path, window: int) -> Floats: ...

registers one feature for each window, ``@feature`` a single one. ``warmup`` is how many bars must have passed before a
value means something (by default the window): so many first rows are zero. The docstring gives formula and source and
becomes the feature's ``doc``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from trainer.market.bars_table import Floats
from trainer.market.features.path import Path
from trainer.market.features.spec import FeatureSpec
from trainer.market.market import Parity

Compute: TypeAlias = Callable[[Path], Floats]
ComputeWindow: TypeAlias = Callable[[Path, int], Floats]


@dataclass(frozen=True)
class Feature:
    """One registered column."""

    spec: FeatureSpec
    family: str  # the module that defines it
    unit: str
    warmup: int  # bars
    order_flow: bool  # speaks of who trades, not of where the price went
    compute: Compute


REGISTRY: dict[str, Feature] = {}


def feature(
    name: str, *, parity: Parity, unit: str, warmup: int = 0, partner: str | None = None
) -> Callable[[Compute], Compute]:
    """Register one feature."""

    def register(compute: Compute) -> Compute:
        spec = FeatureSpec(name=name, parity=parity, partner=partner, doc=_doc(compute))
        _add(Feature(spec, _family(compute), unit, warmup, False, compute))
        return compute

    return register


def windowed(
    name: str,
    *,
    windows: Iterable[int],
    parity: Parity,
    unit: str,
    warmup: Callable[[int], int] = int,
    partner: str | None = None,
    reflect_at: float | None = None,
    order_flow: bool = False,
) -> Callable[[ComputeWindow], ComputeWindow]:
    """Register a feature for every window; ``{window}`` in ``name`` and ``partner`` is filled in."""

    def register(compute: ComputeWindow) -> ComputeWindow:
        for window in windows:
            spec = FeatureSpec(
                name=name.format(window=window),
                parity=parity,
                partner=None if partner is None else partner.format(window=window),
                reflect_at=reflect_at,
                doc=_doc(compute),
            )
            column = _at_window(compute, window)
            _add(Feature(spec, _family(compute), unit, warmup(window), order_flow, column))
        return compute

    return register


def _at_window(compute: ComputeWindow, window: int) -> Compute:
    return lambda path: compute(path, window)


def _add(each: Feature) -> None:
    if each.spec.name in REGISTRY:
        raise ValueError(f"feature {each.spec.name} is registered twice")
    REGISTRY[each.spec.name] = each


def _doc(compute: Compute | ComputeWindow) -> str:
    return " ".join((compute.__doc__ or "").split())


def _family(compute: Compute | ComputeWindow) -> str:
    return compute.__module__.rpartition(".")[2]
