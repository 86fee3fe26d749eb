"""Configuration of a sweep: the ``[sweep]`` table of a profile beside the trial's own tables.

``--set`` reaches both: ``agent.lr=1e-4`` is a field of every trial, ``sweep.trials=200`` one of the sweep, and
``sweep.space.agent.lr.high=1e-3`` changes a dimension. No torch here.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, field_validator, model_validator

from cluster.config import PoolConfig
from search.searchers.config import OptunaConfig, PsoConfig
from search.space import Space, load_space
from search.space_config import DimensionConfig
from trainer.config import TrialConfig, apply_override, parse_value, profile_path, read_toml, validate
from trainer.errors import UserError
from trainer.fields import Frozen, static

_SPACE_OVERRIDE = "sweep.space."
_DURATION = re.compile(r"^\s*(?:(\d+(?:\.\d+)?)h)?\s*(?:(\d+(?:\.\d+)?)m)?\s*(?:(\d+(?:\.\d+)?)s?)?\s*$")


class SchedulerConfig(Frozen):
    """Early stopping, on whole trials. ``grace_epochs`` and ``reduction`` place the rungs of ASHA and Hyperband."""

    name: Literal["asha", "median", "hyperband", "none"] = static(
        "asha", doc="asynchronous successive halving; median stopping; asynchronous Hyperband; every trial to its end"
    )
    grace_epochs: int = static(1, unit="epochs", ge=1, le=1_000_000, doc="no trial is stopped before; the first rung")
    reduction: int = static(3, ge=2, le=64, doc="how much later each rung is; 1 trial in so many goes on")
    brackets: int = static(3, ge=1, le=16, doc="hyperband: bracket k has its first rung at grace_epochs * reduction^k")
    rung_epochs: int = static(5, unit="epochs", ge=1, le=1_000_000, doc="median: epochs between two rungs")
    min_samples: int = static(3, unit="trials", ge=1, le=10_000, doc="median: others at a rung before it stops any")


class SweepConfig(Frozen):
    """One search over a space."""

    searcher: Literal["pso", "optuna", "random"] = static("pso", doc="who proposes configurations")
    trials: int = static(16, unit="trials", ge=1, le=1_000_000, doc="configurations to try, failed ones too")
    time_budget: float | None = static(
        None, unit="s", gt=0, doc="no longer than this, then park what runs; also 90s, 30m, 2h or 1h30m"
    )
    seed: int = static(0, ge=0, lt=2**31, doc="seed of the searcher, not of the trials")
    concurrent: int | None = static(
        None, unit="trials", ge=1, le=100_000, doc="trials with the pool at once; left out: as many as it has room for"
    )
    waiting: int = static(2, unit="trials", ge=0, le=1_000, doc="trials beyond those, to refill lanes at once")
    chain: int = static(500, unit="trials", ge=1, le=1_000, doc="trials of one Tune run; longer sweeps chain several")
    experiment: str = static("paceline", min_length=1, doc="MLflow experiment")
    tracking_uri: str | None = static(
        None, doc="MLflow tracking URI; left out: MLFLOW_TRACKING_URI, else mlflow.db beside the sweep's folder"
    )
    first: tuple[dict[str, StrictBool | StrictInt | StrictFloat | StrictStr], ...] = static(
        (), doc="points to try before the searcher's own, by dimension"
    )
    warm_start: tuple[str, ...] = static((), doc="folders of earlier sweeps whose results the searcher starts from")
    scheduler: SchedulerConfig = SchedulerConfig()
    pso: PsoConfig = PsoConfig()
    optuna: OptunaConfig = OptunaConfig()
    pool: PoolConfig = PoolConfig()
    space: dict[str, DimensionConfig] = Field({}, description="dimensions by the dotted name of the field they vary")

    @field_validator("time_budget", mode="before")
    @classmethod
    def _duration(cls, value: Any) -> Any:
        return seconds(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_space(self) -> Self:
        if not self.space:
            raise ValueError('a sweep needs a space: at least one table such as [sweep.space."agent.lr"]')
        return self


@dataclass(frozen=True)
class Profile:
    """A sweep's whole configuration."""

    trial: TrialConfig  # what every trial has where the space says nothing
    sweep: SweepConfig
    space: Space


def load_profile(profile: str, overrides: Sequence[str] = ()) -> Profile:
    """Read a profile by name or path, apply overrides and check everything, the space against the fields' bounds.

    Raises:
        UserError: no such profile, no ``[sweep]`` table, a key or value that is wrong, a space without a valid config.
    """
    path = profile_path(profile)
    tree = read_toml(path)
    for override in overrides:
        _apply(tree, override)
    sweep = tree.pop("sweep", None)
    if not isinstance(sweep, dict):
        raise UserError(f"{path}: no [sweep] table, so there is nothing to search; see configs/smoketest.toml for one")
    trial = validate(TrialConfig, tree, where=str(path))
    config = validate(SweepConfig, sweep, where=f"{path}: sweep")
    _check_rungs(config, trial, path)
    space = load_space({name: dimension.model_dump() for name, dimension in config.space.items()}, trial, "sweep.space")
    for point in config.first:
        space.encode(point)
    return Profile(trial, config, space)


def write_profile(profile: Profile, path: Path) -> None:
    """Write trial and sweep so that :func:`load_profile` of the file gives the same again; whole or not at all."""
    tree = profile.trial.model_dump(mode="json", exclude_none=True)
    tree["sweep"] = profile.sweep.model_dump(mode="json", exclude_none=True)
    write_whole(path, tomli_w.dumps(tree))


def seconds(text: str) -> float:
    """``2h``, ``30m``, ``90s``, ``1h30m`` or a number of seconds.

    Raises:
        ValueError: none of these.
    """
    found = _DURATION.match(text)
    if found is None or not any(found.groups()):
        raise ValueError("a duration is written as 2h, 30m, 90s or 1h30m")
    hours, minutes, rest = (float(part) if part else 0.0 for part in found.groups())
    return 3600.0 * hours + 60.0 * minutes + rest


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one rename, so that a crash leaves the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


def _apply(tree: dict[str, Any], override: str) -> None:
    """As the trainer's overrides, but a dimension's dotted name is one key."""
    key, separator, text = override.partition("=")
    if not key.startswith(_SPACE_OVERRIDE) or not separator:
        apply_override(tree, override)
        return
    name, _, attribute = key.removeprefix(_SPACE_OVERRIDE).strip().rpartition(".")
    space = tree.setdefault("sweep", {}).setdefault("space", {})
    space.setdefault(name.replace('"', ""), {})[attribute] = parse_value(text.strip())


def _check_rungs(config: SweepConfig, trial: TrialConfig, path: Path) -> None:
    budget, grace = trial.training.epochs, config.scheduler.grace_epochs
    if config.scheduler.name != "none" and grace > budget:
        raise UserError(
            f"{path}: sweep.scheduler.grace_epochs = {grace} is beyond training.epochs = {budget}; "
            'choose less, or sweep.scheduler.name = "none"'
        )
