"""What a person sees while a trial runs, and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from trainer.config import TrialConfig
from trainer.training.report import TrialReport

PHASES = ("collect", "learn", "validate")


class Progress:
    """Prints one line per epoch; the first explains the columns."""

    def __init__(self, config: TrialConfig, console: Console) -> None:
        self._config, self._console = config, console
        self._head_printed = False

    def __call__(self, report: TrialReport) -> None:
        folds = [fold.numbers() for fold in report.folds]
        if not self._head_printed:
            names = " ".join(f"{f'fold {fold.fold}':>8}" for fold in report.folds)
            self._console.print(
                f"{'epoch':>7} {'loss':>8} {'Q-gap':>8} {'health':>7}   val Sharpe {names}"
                f"   {'env/s':>8} {'grad/s':>7}   seconds ({', '.join(PHASES)})",
                style="bold",
            )
            self._head_printed = True
        training, seconds = self._config.training, report.phase_seconds
        steps = training.collect_steps * training.episodes * len(folds) / max(seconds["collect"], 1e-9)
        gradients = training.learn_steps * len(folds) / max(seconds["learn"], 1e-9)
        sharpes = " ".join(f"{each['val_sharpe']:8.2f}" if "val_sharpe" in each else f"{'-':>8}" for each in folds)
        self._console.print(
            f"{report.epoch:>3}/{training.epochs:<3} {mean(f['loss'] for f in folds):8.3f} "
            f"{mean(f['q_gap'] for f in folds):8.4f} {mean(f['health'] for f in folds):7.2f}"
            f"{'':14}{sharpes}   {steps:8,.0f} {gradients:7,.0f}"
            f"   {' '.join(f'{seconds[phase]:6.2f}' for phase in PHASES)}"
        )


def print_result(result: Mapping[str, Any], console: Console) -> None:
    """The final table by fold."""
    table = Table(title="Validation, net of costs (Sharpe annualised on session returns)", title_justify="left")
    columns = ("fold", "Sharpe", "max drawdown", "trades", "untrained", "buy & hold", "random", "oracle", "best epoch")
    for column in columns:
        table.add_column(column, justify="right")
    for fold in result["folds"]:
        oracle = fold["oracle_val_sharpe"]
        table.add_row(
            str(fold["fold"]),
            f"{fold['val_sharpe']:.2f}{' (mechanical)' if fold['mechanical_bias'] else ''}",
            f"{100 * fold['val_max_drawdown']:.1f} %",
            f"{fold['val_trades']}",
            f"{fold['untrained_val_sharpe']:.2f}",
            f"{fold['buy_and_hold_val_sharpe']:.2f}",
            f"{fold['random_val_sharpe']:.2f}",
            "-" if oracle is None else f"{oracle:.2f}",
            str(fold["best_epoch"]),
        )
    console.print(table)
    rate = result["throughput"]
    console.print(
        f"score {result['score']:.3f} (median over folds of the last epochs' mean)   "
        f"wall {result['wall_seconds']:.1f} s   {rate['env_steps_per_s']:,.0f} env steps/s   "
        f"{rate['grad_steps_per_s']:,.0f} gradient steps/s"
    )
