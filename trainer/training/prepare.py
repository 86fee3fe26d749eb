"""From a configuration to what a lane group trains on: table, features, folds, scalings, the market on the device.

One way for every source. The holdout is cut off first: no feature, normaliser or tensor made here has seen it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from trainer.config import TrialConfig
from trainer.market.bars_table import BarTable, Ints
from trainer.market.build import to_market
from trainer.market.config import MarketConfig
from trainer.market.features.compute import FeatureTable, compute_features, mirror_view
from trainer.market.folds import Fold, Range, make_folds, split_holdout
from trainer.market.instrument import Instrument, guess_instrument, load_instrument
from trainer.market.market import Market
from trainer.market.normalise import Scaling, bar_move, fit_scaling
from trainer.market.quality import QualityReport
from trainer.market.sources.read import data_path, read_source

LEAST_EPISODE = 2
"""Bars of the shortest stretch that an episode can be run on."""


@dataclass(frozen=True)
class Prepared:
    """What all trials of one market and fold configuration share."""

    report: QualityReport  # of reading the source
    table: BarTable  # without the holdout
    holdout: Range  # rows of the source's table that nothing here has seen
    instrument: Instrument
    features: FeatureTable
    folds: tuple[Fold, ...]
    scalings: tuple[Scaling, ...]  # one per fold
    bar_moves: tuple[float, ...]  # points, one per fold
    session_start_S: Ints  # first bars of the sessions long enough for an episode
    market: Market


def prepare(config: TrialConfig, device: torch.device) -> Prepared:
    """Read, check, cut and fit.

    Raises:
        UserError: any fault of the data or of the configuration for them.
    """
    instrument = choose_instrument(config.market)
    source = read_source(config.market, instrument)
    table, holdout = split_holdout(source.table, config.folds)
    features = compute_features(table, config.market.features)
    look_back = max(config.training.window, config.replay.n_step)
    folds = make_folds(table, config.folds, features.warmup_bars, look_back)
    return Prepared(
        report=source.report,
        table=table,
        holdout=holdout,
        instrument=instrument,
        features=features,
        folds=folds,
        scalings=tuple(fit_scaling(features.values_NF, fold.train, config.market.normalise) for fold in folds),
        bar_moves=tuple(bar_move(table, fold.train) for fold in folds),
        session_start_S=_session_starts(table.session_N),
        market=to_market(
            table,
            features.values_NF,
            mirror_view(features.specs),
            instrument,
            allow_overnight=config.env.allow_overnight,
            device=device,
        ),
    )


def choose_instrument(config: MarketConfig) -> Instrument:
    """The instrument that is named; with ``auto`` the embedded market's own, or the one the data's name speaks of.

    Raises:
        UserError: no such record, or the name says nothing.
    """
    if config.instrument != "auto":
        return load_instrument(config.instrument)
    if config.source == "synthetic":
        return load_instrument("synthetic")
    return guess_instrument(data_path(config), config.bar.symbol)


def _session_starts(session_N: Ints) -> Ints:
    start_S = np.flatnonzero(np.diff(session_N, prepend=session_N[:1] - 1))
    length_S = np.diff(np.append(start_S, len(session_N)))
    return start_S[length_S >= LEAST_EPISODE]
