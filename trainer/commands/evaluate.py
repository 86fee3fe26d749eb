"""``python -m trainer evaluate``: trained policies over any data, under dearer costs and a slower order.

Legend: L lanes, here one per stress; V slots.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from trainer.commands.options import choose_device, data_overrides, make_console
from trainer.config import TrialConfig, apply_override, validate
from trainer.env.state import make_params
from trainer.errors import UserError
from trainer.evaluation.backtest import make_slots, paths, rollout
from trainer.evaluation.metrics import BacktestMetrics, backtest_metrics
from trainer.evaluation.policy import greedy_policy
from trainer.lanes.tree import take
from trainer.market.build import to_market
from trainer.market.features.compute import compute_features, mirror_view
from trainer.market.folds import Range, split_holdout
from trainer.market.sources.read import read_source, source_fingerprint
from trainer.training.export import SavedPolicy, find_policies, load_policy, write_json
from trainer.training.lane_state import slot_width, slots_of
from trainer.training.prepare import choose_instrument


@dataclass(frozen=True)
class Stress:
    """One row of the table."""

    name: str
    cost_scale: float
    latency_bars: int


STRESSES = (
    Stress("as trained", 1.0, 0),
    Stress("costs x2", 2.0, 0),
    Stress("costs x3", 3.0, 0),
    Stress("1 bar late", 1.0, 1),
)


def evaluate(options: argparse.Namespace) -> int:
    """Print the stress table of every policy and write it as JSON if asked."""
    device = choose_device(options.device)
    if options.out is not None and not options.out.absolute().parent.is_dir():
        raise UserError(f"--out {options.out}: no such folder to write into")
    console = make_console()
    rows = []
    for folder in find_policies(options.policy):
        saved = load_policy(folder, device)
        tree = saved.config.model_dump(mode="json", exclude_none=True)
        for override in [*data_overrides(options.data), *options.set]:
            apply_override(tree, override)
        config = validate(TrialConfig, tree, where=str(folder))
        metrics = stress(saved, config, device)
        rows += [
            {"policy": str(folder), "fold": saved.fold, "stress": each.name, **_numbers(result)}
            for each, result in zip(STRESSES, metrics, strict=True)
        ]
    console.print(_table(rows))
    if options.out is not None:
        write_json(Path(options.out), rows)
    return 0


def stress(saved: SavedPolicy, config: TrialConfig, device: torch.device) -> list[BacktestMetrics]:
    """Backtest one policy over the bars of ``config``'s market, once per stress.

    All bars of other data; of the data it was trained on, those after its train range and before the holdout, which is
    nobody's to look at here.

    Raises:
        UserError: the data do not give the features that the policy was trained on, or too few bars.
    """
    instrument = choose_instrument(config.market)
    table = read_source(config.market, instrument).table
    own = saved.data == source_fingerprint(config.market, instrument)
    if own:
        table, _ = split_holdout(table, saved.config.folds)
    features = compute_features(table, config.market.features)
    if features.names != saved.features:
        missing = sorted(set(saved.features) - set(features.names))
        raise UserError(
            f"the data lack features the policy was trained on: {', '.join(missing) or 'other order of columns'}"
        )
    market = to_market(
        table, features.values_NF, mirror_view(features.specs), instrument, config.env.allow_overnight, device
    )
    seen = int(np.searchsorted(table.time_N, saved.trained_until_ns, side="right")) if own else 0
    bars = Range(max(features.warmup_bars, seen), len(table))
    if bars.end - bars.start < 2:
        raise UserError(
            f"{len(table)} bars are too few: features take {features.warmup_bars} to warm up, {seen} were trained on"
        )
    slots = slots_of(config, table.session_N, bars)
    lanes = torch.zeros(len(STRESSES), dtype=torch.int64, device=device)
    policy = take(saved.policy, lanes)
    configs = [
        config.env.model_copy(
            update={"cost_scale": each.cost_scale * config.env.cost_scale, "latency_bars": each.latency_bars}
        )
        for each in STRESSES
    ]
    params = make_params(configs, instrument, torch.ones(len(STRESSES), dtype=torch.float64), device)
    params = replace(params, health_L=policy.health_L, reward_unit_L=saved.policy.reward_unit_L.expand(len(STRESSES)))
    run = rollout(
        params,
        market,
        policy.normaliser,
        make_slots([slots] * len(STRESSES), slot_width([slots]), device),
        max(end - start for start, end in slots) - 1,
        config.training.window,
        greedy_policy(saved.shape, policy, symmetric=config.evaluation.symmetric),
    )
    return [
        backtest_metrics(path, sessions_per_year=instrument.sessions_per_year, min_trades=config.evaluation.min_trades)
        for path in paths(params, table.session_N, run)
    ]


def _numbers(metrics: BacktestMetrics) -> dict[str, Any]:
    return {
        "sharpe": metrics.sharpe,
        "profit": metrics.profit,
        "max_drawdown": metrics.max_drawdown_share,
        "trades": metrics.trades,
        "turnover": metrics.turnover,
        "sessions": metrics.sessions,
        "flag": metrics.flag.value,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Policies under stress", title_justify="left")
    for column in ("fold", "stress", "Sharpe", "profit", "max drawdown", "trades", "turnover", "note"):
        table.add_column(column, justify="left" if column in ("stress", "note") else "right")
    for row in rows:
        table.add_row(
            str(row["fold"]),
            row["stress"],
            f"{row['sharpe']:.2f}",
            f"{row['profit']:,.0f}",
            f"{100 * row['max_drawdown']:.1f} %",
            str(row["trades"]),
            f"{row['turnover']:.2f}",
            "" if row["flag"] == "ok" else row["flag"].replace("_", " "),
        )
    return table
