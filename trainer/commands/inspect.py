"""``python -m trainer inspect``: what was read, what is wrong with it, and how it would be cut."""

from __future__ import annotations

import argparse

from trainer.commands.options import data_overrides
from trainer.config import load_config
from trainer.market.features.compute import compute_features
from trainer.market.folds import make_folds, split_holdout
from trainer.market.inspect import Range, describe, draw
from trainer.market.sources.read import read_source
from trainer.training.prepare import choose_instrument


def inspect(options: argparse.Namespace) -> int:
    """Print the page and write the picture. The holdout's bars are counted, not shown."""
    config = load_config(options.profile, [*data_overrides(options.data), *options.set])
    instrument = choose_instrument(config.market)
    source = read_source(config.market, instrument)
    table, holdout = split_holdout(source.table, config.folds)
    features = compute_features(table, config.market.features)
    look_back = max(config.training.window, config.replay.n_step)
    folds = make_folds(table, config.folds, features.warmup_bars, look_back)
    ranges = [
        Range(f"fold {fold.index} {name}", *bars)
        for fold in folds
        for name, bars in (("train", fold.train), ("validation", fold.validation))
    ]
    print(describe(table, source.report, instrument, ranges, features.names, features.warmup_bars), end="")
    print(f"holdout: {holdout.end - holdout.start} bars after these, kept out of sight")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw(table, instrument, options.out, ranges)
    print(f"picture: {options.out}")
    return 0
