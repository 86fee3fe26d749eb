"""Trained agents and their validation on disk: policies as folders, equity curves as Parquet."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from trainer.agent.network import NetworkShape, layout
from trainer.config import TrialConfig, validate
from trainer.env.observe import PORTFOLIO_FEATURES, Normaliser
from trainer.errors import UserError
from trainer.evaluation.metrics import BacktestPath
from trainer.evaluation.policy import Policy
from trainer.lanes.tree import take
from trainer.market.sources.read import source_fingerprint
from trainer.training.checkpoint import latest, load, read_manifest, save
from trainer.training.prepare import choose_instrument


@dataclass(frozen=True)
class SavedPolicy:
    """One exported agent."""

    policy: Policy
    config: TrialConfig
    features: tuple[str, ...]  # columns of the market it was trained on, in order
    order_flow: tuple[int, ...]
    fold: int
    trained_until_ns: int  # end of the last bar of its train range
    data: str  # fingerprint of the bars it was trained and validated on, holdout included

    @property
    def shape(self) -> NetworkShape:
        return NetworkShape.of(
            self.config.agent,
            features=len(self.features),
            portfolio=len(PORTFOLIO_FEATURES),
            window=self.config.training.window,
            flow=self.order_flow,
        )


def save_policies(folder: Path, policy: Policy, config: TrialConfig, folds: list[int], about: dict[str, Any]) -> None:
    """Write ``folder/fold_<k>`` for every lane of ``policy``."""
    data = source_fingerprint(config.market, choose_instrument(config.market))
    for lane, fold in enumerate(folds):
        one = take(policy, torch.tensor([lane], device=policy.params_LD.device))
        manifest = {"config": config.model_dump(mode="json"), "fold": fold, "data": data, **about}
        manifest["trained_until_ns"] = about["trained_until_ns"][lane]
        save(folder / f"fold_{fold}", one, manifest)


def load_policy(folder: Path, device: torch.device) -> SavedPolicy:
    """Read one exported policy.

    Raises:
        UserError: no policy there, or damaged.
    """
    manifest = read_manifest(folder)
    if "trained_until_ns" not in manifest:
        raise UserError(f"{folder}: a checkpoint, not a policy; policies are in the trial's 'policies' folder")
    try:
        config = validate(TrialConfig, manifest["config"], where=str(folder))
        features, order_flow = tuple(manifest["features"]), tuple(manifest["order_flow"])
        saved = SavedPolicy(
            policy=_blank(config, len(features), order_flow),
            config=config,
            features=features,
            order_flow=order_flow,
            fold=int(manifest["fold"]),
            trained_until_ns=int(manifest["trained_until_ns"]),
            data=str(manifest["data"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder}: its manifest is not one of a policy ({error!r})") from error
    return replace(saved, policy=load(folder, saved.policy, device))


def find_policies(path: Path) -> list[Path]:
    """The policy folders that a path means: itself, or those of a trial's final agents.

    Raises:
        UserError: there are none.
    """
    if (path / "manifest.json").is_file():
        return [path]
    for parent in (path / "policies", path):
        if latest(parent) is not None:
            return sorted(p.parent for p in parent.glob("*/manifest.json"))
    raise UserError(f"{path}: no policy here; give a trial's folder or one of its 'policies/fold_*'")


def write_equity(path: Path, curve: BacktestPath, bars: np.ndarray, time_N: np.ndarray) -> None:
    """One row per bar of a backtest: time, session, equity (money), position (contracts), traded notional (money)."""
    frame = pd.DataFrame(
        {
            "time": pd.to_datetime(time_N[bars], utc=True),
            "session": curve.session_M,
            "equity": curve.equity_M,
            "position": curve.held_M,
            "notional": curve.notional_M,
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    frame.to_parquet(temporary, index=False)
    temporary.replace(path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON under a temporary name and rename."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")
    temporary.replace(path)


def _blank(config: TrialConfig, features: int, order_flow: tuple[int, ...]) -> Policy:
    shape = NetworkShape.of(
        config.agent,
        features=features,
        portfolio=len(PORTFOLIO_FEATURES),
        window=config.training.window,
        flow=order_flow,
    )
    return Policy(
        params_LD=torch.zeros(1, layout(shape).size),
        atoms_LA=torch.zeros(1, config.agent.atoms),
        normaliser=Normaliser(torch.zeros(1, features), torch.zeros(1, features), torch.zeros(1)),
        health_L=torch.zeros(1, dtype=torch.float64),
        reward_unit_L=torch.zeros(1, dtype=torch.float64),
    )
