"""``python -m trainer inspect``: what was read, what is wrong with it, and how it would be cut."""

from __future__ import annotations

import argparse

from trainer.commands.options import data_overrides
from trainer.config import TrialConfig, load_config
from trainer.errors import UserError
from trainer.market.bars_table import BarTable
from trainer.market.features.compute import compute_features
from trainer.market.folds import make_folds, split_holdout
from trainer.market.inspect import Range, describe, describe_holdout, draw
from trainer.market.sources.read import read_source
from trainer.training.prepare import choose_instrument


def inspect(options: argparse.Namespace) -> int:
    """Print the page and write the picture; of the holdout, only its time axis is told.

    Data that the profile cannot cut into folds are described all the same, with the reason.
    """
    config = load_config(options.profile, [*data_overrides(options.data), *options.set])
    instrument = choose_instrument(config.market)
    source = read_source(config.market, instrument)
    table, cut_fault = _visible(source.table, config)
    features = compute_features(table, config.market.features)
    ranges, fold_fault = _ranges(table, config, features.warmup_bars)
    print(describe(table, source.report, instrument, ranges, features.names, features.warmup_bars), end="")
    for fault in (cut_fault, fold_fault):
        if fault is not None:
            print(f"no trial can be run on this as it is: {fault}")
    print(describe_holdout(source.table, len(table), instrument), end="")
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        draw(table, instrument, options.out, ranges)
    except OSError as error:
        raise UserError(f"--out {options.out}: cannot be written: {error.strerror}") from error
    print(f"picture: {options.out}")
    return 0


def _visible(table: BarTable, config: TrialConfig) -> tuple[BarTable, UserError | None]:
    try:
        return split_holdout(table, config.folds)[0], None
    except UserError as error:  # nothing can be trained, so nothing has to be hidden
        return table, error


def _ranges(table: BarTable, config: TrialConfig, warmup_bars: int) -> tuple[list[Range], UserError | None]:
    try:
        folds = make_folds(table, config.folds, warmup_bars, max(config.training.window, config.replay.n_step))
    except UserError as error:
        return [], error
    return [
        Range(f"fold {fold.index} {name}", *bars)
        for fold in folds
        for name, bars in (("train", fold.train), ("validation", fold.validation))
    ], None
