"""One trial from start to result, without Ray: what ``python -m trainer`` runs, and how a sweep's trial is debugged.

The output folder holds ``config.toml``, ``checkpoints/``, ``policies/fold_<k>`` (final agents), ``policies/best`` (each
fold's best epoch, for people), ``equity/fold_<k>.parquet`` and, last, ``result.json``.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.config import TrialConfig, load_config, write_toml
from trainer.errors import UserError
from trainer.evaluation.backtest import bars_of, paths
from trainer.market.sources.read import source_fingerprint
from trainer.training import checkpoint
from trainer.training.comparison import Comparison, compare
from trainer.training.export import save_policies, write_equity, write_json
from trainer.training.group import LaneGroup, Resident
from trainer.training.lane_state import new_lanes, policy_of
from trainer.training.prepare import Prepared, prepare
from trainer.training.recording import NOTHING, Recording, read_recording, write_recording
from trainer.training.report import TrialReport, fold_score, trial_score

TRIAL = "trial"
KEPT_CHECKPOINTS = 2


class Trial:
    """A trial in progress.

    Args:
        config: resolved configuration.
        out: output folder.
        device: where to train.
        resume: continue from the folder's newest checkpoint.
        recording: how the trial ran in a sweep, to run in the same way; a resumed one has its own.

    Raises:
        UserError: bad data or configuration, or a folder that is not empty.
    """

    def __init__(
        self,
        config: TrialConfig,
        out: Path,
        device: torch.device,
        *,
        resume: bool = False,
        recording: Recording = NOTHING,
    ) -> None:
        self.config, self.out = config, out
        self.recording = read_recording(out) if resume else recording
        self._started = time.perf_counter()
        self.prepared = prepare(config, device)
        self.group = LaneGroup(config, self.prepared, device)
        self.history: list[dict[str, Any]] = []
        self.untrained: list[float] = []
        self._seconds_before = 0.0
        self._data = source_fingerprint(config.market, self.prepared.instrument)
        newest = checkpoint.latest(out / "checkpoints") if resume else None
        if newest is not None:
            self._restore(newest)
        else:
            self.group.admit(TRIAL, config, rungs=self.recording.rungs)
            out.mkdir(parents=True, exist_ok=True)
            write_toml(config, out / "config.toml")
            if self.recording != NOTHING:
                write_recording(self.recording, out)

    @property
    def epoch(self) -> int:
        """Epochs finished."""
        return self.group.resident(TRIAL).epoch

    def run(self, on_epoch: Callable[[TrialReport], None], stop: Callable[[], bool]) -> dict[str, Any] | None:
        """Train to the end of the budget; None where ``stop`` said so first, with everything checkpointed.

        Raises:
            UserError: a fold's numbers are not finite; nothing is selected from such a trial.
        """
        training = self.config.training
        while self.epoch < training.epochs:
            (report,) = self.group.advance(self.recording.capacity(self.epoch, self.group.lanes))
            self.history.append(_history(report))
            self.untrained = list(report.untrained) or self.untrained
            on_epoch(report)
            if report.failed is not None:
                self.checkpoint()
                raise UserError(f"epoch {report.epoch}: {report.failed}; lower agent.lr or look at the data")
            stopped = stop()
            if stopped or report.epoch % training.checkpoint_every == 0 or report.epoch == training.epochs:
                self.checkpoint()
            if stopped and report.epoch < training.epochs:
                return None
        return self._finish()

    def checkpoint(self) -> None:
        """Write everything needed to continue bit for bit, then remove old checkpoints."""
        folder = self.out / "checkpoints"
        manifest = {
            "epoch": self.epoch,
            "data": self._data,
            "untrained": self.untrained,
            "history": self.history,
            "seconds": self._seconds_before + time.perf_counter() - self._started,
        }
        checkpoint.save(folder / f"epoch_{self.epoch:06d}", self.group.snapshot(TRIAL), manifest)
        for old in sorted(folder.glob("epoch_*"))[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)

    def _restore(self, folder: Path) -> None:
        manifest = checkpoint.read_manifest(folder)
        if manifest.get("data") != self._data:
            raise UserError(
                f"{folder}: was trained on other data than {self.config.market.files.path} holds now; bring them back"
            )
        like = new_lanes(self.config, self.prepared, self.prepared.folds, self.group.device)
        folds = tuple(fold.index for fold in self.prepared.folds)
        self.group.restore(
            Resident(TRIAL, self.config, manifest["epoch"], folds, rungs=self.recording.rungs),
            checkpoint.load(folder, like, self.group.device),
        )
        self.untrained, self.history = manifest["untrained"], manifest["history"]
        self._seconds_before = manifest["seconds"]

    def _finish(self) -> dict[str, Any]:
        state = self.group.snapshot(TRIAL)
        run = self.group.greedy_rollout(state)
        curves = paths(state.env_params, self.prepared.table.session_N, run)
        for lane, (fold, curve) in enumerate(zip(self.prepared.folds, curves, strict=True)):
            path = self.out / "equity" / f"fold_{fold.index}.parquet"
            write_equity(path, curve, bars_of(run, lane), self.prepared.table.time_N)
        folds = [fold.index for fold in self.prepared.folds]
        about = _about(self.prepared)
        save_policies(self.out / "policies", policy_of(state), self.config, folds, about)
        save_policies(self.out / "policies" / "best", state.best.policy, self.config, folds, about)
        result = self._result(compare(self.group, state, self.config), state.best.epoch_L.tolist())
        write_json(self.out / "result.json", result)
        return result

    def _result(self, comparisons: Sequence[Comparison], best_epochs: Sequence[int]) -> dict[str, Any]:
        training = self.config.training
        by_fold = [_sharpes(self.history, fold.index) for fold in self.prepared.folds]
        wall = self._seconds_before + time.perf_counter() - self._started
        last = self.history[-1]["folds"]
        return {
            "score": trial_score(by_fold, training.score_epochs),
            "wall_seconds": wall,
            "folds": [
                {
                    "fold": fold.index,
                    "val_sharpe": fold_score(by_fold[index], training.score_epochs),
                    "val_max_drawdown": last[index]["val_max_drawdown"],
                    "val_trades": int(last[index]["val_trades"]),
                    "untrained_val_sharpe": self.untrained[index],
                    "flat_val_sharpe": 0.0,
                    "buy_and_hold_val_sharpe": comparisons[index].buy_and_hold,
                    "random_val_sharpe": comparisons[index].random,
                    "oracle_val_sharpe": comparisons[index].oracle,
                    "best_epoch": best_epochs[index],
                    "q_gap": last[index]["q_gap"],
                    "mechanical_bias": last[index]["mechanical_bias"] > 0.0,
                }
                for index, fold in enumerate(self.prepared.folds)
            ],
            "epochs": self.history,
            "throughput": _throughput(self.config, self.history, len(by_fold)),
        }


def check_empty(out: Path) -> None:
    """Refuse an output folder that holds something or cannot be made, before any work is done.

    Raises:
        UserError: it does or cannot.
    """
    above = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not above.is_dir():
        raise UserError(f"{above}: a file, not a folder; name another --out")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"{above}: not writable; name another --out")
    if above == out and any(out.iterdir()):
        raise UserError(f"{out}: not an empty folder; name another --out, or continue its trial with --resume {out}")


def open_trial(out: Path) -> TrialConfig:
    """The configuration of an unfinished trial.

    Raises:
        UserError: there is none, or it has ended.
    """
    if not (out / "config.toml").is_file():
        raise UserError(f"{out}: no trial to resume here (no config.toml)")
    if (out / "result.json").exists():
        raise UserError(f"{out}: this trial has ended, see {out / 'result.json'}; start another with a profile")
    return load_config(str(out / "config.toml"))


def _history(report: TrialReport) -> dict[str, Any]:
    folds = [{"fold": fold.fold, **fold.numbers()} for fold in report.folds]
    return {
        "epoch": report.epoch,
        "capacity": report.capacity,
        "folds": folds,
        "phase_seconds": dict(report.phase_seconds),
    }


def _sharpes(history: Sequence[Mapping[str, Any]], fold: int) -> list[float]:
    numbers = [each for epoch in history for each in epoch["folds"] if each["fold"] == fold]
    return [each["val_sharpe"] for each in numbers if "val_sharpe" in each]


def _throughput(config: TrialConfig, history: Sequence[Mapping[str, Any]], lanes: int) -> dict[str, float]:
    """Whole-trial rates over all lanes, from the phases' own time."""
    training = config.training
    collect = sum(epoch["phase_seconds"]["collect"] for epoch in history)
    learn = sum(epoch["phase_seconds"]["learn"] for epoch in history)
    env_steps = len(history) * training.collect_steps * training.episodes * lanes
    return {
        "env_steps_per_s": env_steps / collect if collect else 0.0,
        "grad_steps_per_s": len(history) * training.learn_steps * lanes / learn if learn else 0.0,
    }


def _about(prepared: Prepared) -> dict[str, Any]:
    return {
        "features": list(prepared.features.names),
        "order_flow": list(prepared.features.order_flow),
        "trained_until_ns": [int(prepared.table.time_N[fold.train.end - 1]) for fold in prepared.folds],
    }
