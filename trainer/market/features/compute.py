"""All feature columns of a market: computed from the bars, then the book's, then whatever else came with the data.

Legend: N bars, F features. Which columns there are, and their order, depends on the config and on the names of extra
columns alone: a policy trained on one file reads another.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.errors import UserError
from trainer.market.bars_table import BarTable, Floats
from trainer.market.features import oscillators, returns, session, trend, volatility, volume
from trainer.market.features.config import FeatureConfig
from trainer.market.features.path import price_path
from trainer.market.features.registry import REGISTRY, Feature
from trainer.market.features.spec import FeatureSpec, check_specs
from trainer.market.market import MirrorView, Parity
from trainer.market.microstructure import HAS_BOOK, MICROSTRUCTURE

FLOW_PREFIX = "flow_"  # extra columns so named speak of order flow
BOOK_FLAG = FeatureSpec(HAS_BOOK, Parity.EVEN, doc="1 on bars in which the order book was seen, else 0")

_FAMILY_MODULES = (returns, trend, oscillators, volatility, volume, session)  # importing them fills the registry


@dataclass(frozen=True)
class FeatureTable:
    """Raw (not normalised) features of every bar."""

    specs: tuple[FeatureSpec, ...]  # [F]
    values_NF: NDArray[np.float32]  # finite; row t depends on bars 0..t alone
    warmup_bars: int  # first rows in which some column is still zero for want of history
    order_flow: tuple[int, ...]  # columns that speak of order flow

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.specs)


def compute_features(table: BarTable, config: FeatureConfig) -> FeatureTable:
    """Compute the configured features of ``table`` and append the book's and the table's extra columns.

    Raises UserError for unknown or half-excluded features, a clash of names, and any value that is not finite.
    """
    chosen = chosen_features(config)
    path = price_path(table)
    columns: list[tuple[FeatureSpec, Floats, bool]] = []
    for each in chosen:
        column_N = each.compute(path).copy()
        column_N[: each.warmup] = 0.0
        columns.append((each.spec, column_N, each.order_flow))
    columns += _given_columns(table)
    specs = tuple(spec for spec, _, _ in columns)
    try:
        check_specs(specs)
    except ValueError as error:
        raise UserError(f"feature columns: {error}; rename the extra column") from error
    values_NF = np.empty((len(table), len(columns)), dtype=np.float32)
    for index, (spec, column_N, _) in enumerate(columns):
        bad_N = ~(np.abs(column_N) <= np.finfo(np.float32).max)
        if bad_N.any():
            raise UserError(
                f"feature {spec.name} is not finite at bar {int(np.argmax(bad_N))}; check the bars before it"
            )
        values_NF[:, index] = column_N
    return FeatureTable(
        specs=specs,
        values_NF=values_NF,
        warmup_bars=max((each.warmup for each in chosen), default=0),
        order_flow=tuple(index for index, (_, _, is_flow) in enumerate(columns) if is_flow),
    )


def chosen_features(config: FeatureConfig) -> tuple[Feature, ...]:
    """Registered features of ``config`` by family. Raises UserError for unknown, doubled or half-excluded names."""
    for family in config.families:
        if config.families.count(family) > 1:
            raise UserError(f"market.features.families names '{family}' twice; name it once")
    for name in config.exclude:
        if name not in REGISTRY:
            near = difflib.get_close_matches(name, REGISTRY, n=1)
            hint = f"; nearest: {near[0]}" if near else ""
            raise UserError(f"market.features.exclude: there is no computed feature '{name}'{hint}")
        partner = REGISTRY[name].spec.partner
        if partner is not None and partner not in config.exclude:
            raise UserError(f"market.features.exclude: '{name}' mirrors into '{partner}'; exclude both or neither")
    return tuple(
        each
        for family in config.families
        for each in REGISTRY.values()
        if each.family == family and each.spec.name not in config.exclude
    )


def mirror_view(specs: tuple[FeatureSpec, ...]) -> MirrorView:
    """How each column becomes its mirror image: ``offset + sign x features[partner]`` (S12)."""
    position = {spec.name: index for index, spec in enumerate(specs)}
    sign = [-1.0 if spec.parity in (Parity.ODD, Parity.REFLECTED) else 1.0 for spec in specs]
    offset = [0.0 if spec.reflect_at is None else spec.reflect_at for spec in specs]
    partner = [position[spec.name if spec.partner is None else spec.partner] for spec in specs]
    return MirrorView(
        sign_F=torch.tensor(sign, dtype=torch.float32),
        offset_F=torch.tensor(offset, dtype=torch.float32),
        partner_F=torch.tensor(partner, dtype=torch.int64),
    )


def _given_columns(table: BarTable) -> list[tuple[FeatureSpec, Floats, bool]]:
    """The book's columns (zeros without a book) and its flag, then every other extra column, taken to be odd."""
    zeros_N = np.zeros(len(table))
    book = [(spec, table.extra.get(spec.name, zeros_N), True) for spec in MICROSTRUCTURE]
    flag = [(BOOK_FLAG, table.extra.get(HAS_BOOK, zeros_N), False)]
    own = {HAS_BOOK, *(spec.name for spec in MICROSTRUCTURE)}
    others = [
        (
            FeatureSpec(name, Parity.ODD, doc="came with the data; taken to be odd"),
            column_N,
            name.startswith(FLOW_PREFIX),
        )
        for name, column_N in table.extra.items()
        if name not in own
    ]
    return book + flag + others
