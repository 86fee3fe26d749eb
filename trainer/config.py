"""The configuration of one trial: TOML profile, then ``--set`` overrides, into one frozen model.

No torch here: thin clients read configs too.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ValidationError

from trainer.agent.config import AgentConfig
from trainer.env.config import EnvConfig
from trainer.errors import UserError
from trainer.evaluation.config import EvaluationConfig
from trainer.fields import Frozen, dynamic, field_kind, walk
from trainer.market.config import MarketConfig
from trainer.market.folds_config import FoldsConfig
from trainer.replay.config import ReplayConfig
from trainer.training.config import TrainingConfig

M = TypeVar("M", bound=BaseModel)

PROFILES = Path(__file__).resolve().parents[1] / "configs"


class TrialConfig(Frozen):
    """Everything one walk-forward trial depends on."""

    seed: int = dynamic(0, unit="", ge=0, lt=2**31, doc="seed of all randomness of the trial")
    market: MarketConfig = MarketConfig()
    folds: FoldsConfig = FoldsConfig()
    env: EnvConfig = EnvConfig()
    agent: AgentConfig = AgentConfig()
    replay: ReplayConfig = ReplayConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    def static_signature(self) -> str:
        """Lanes whose configs agree in this string may share a lane group."""
        values = {path: value for path, field, value in walk(self) if field_kind(field) == "static"}
        return json.dumps(values, sort_keys=True, default=str)


def load_config(profile: str, overrides: Sequence[str] = ()) -> TrialConfig:
    """Read a profile by name or path and apply ``dotted.key=value`` overrides (values in TOML notation or bare text).

    Raises:
        UserError: no such profile, not TOML, unknown key (with the nearest valid name), value out of bounds.
    """
    path = profile_path(profile)
    tree = read_toml(path)
    tree.pop("sweep", None)  # the search's part of a profile; `search` reads it
    for override in overrides:
        apply_override(tree, override)
    return validate(TrialConfig, tree, where=str(path), overrides=overrides)


def profile_path(profile: str) -> Path:
    """The file of a profile given by name or path."""
    named = PROFILES / f"{profile}.toml"
    path = named if named.is_file() else Path(profile)
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PROFILES.glob("*.toml")))
        raise UserError(f"profile '{profile}': no such profile or file; profiles are {known}")
    return path


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        UserError: naming file and position.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def write_toml(config: Frozen, path: Path) -> None:
    """Write the resolved config so that :func:`load_config` of the file gives the same config back."""
    path.write_text(tomli_w.dumps(config.model_dump(mode="json", exclude_none=True)), encoding="utf-8")


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Set ``dotted.key=value`` in a parsed TOML tree."""
    key, separator, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not separator or not all(parts):
        raise UserError(f"--set {override}: write dotted.key=value, for example agent.lr=1e-4")
    node = tree
    for part in parts[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise UserError(f"--set {override}: '{part}' is a value, not a table")
        node = child
    node[parts[-1]] = parse_value(text.strip())


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none (so that ``--set market.source=bars`` needs no quotes)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def validate(model: type[M], tree: dict[str, Any], *, where: str, overrides: Sequence[str] = ()) -> M:
    """Build ``model`` from a parsed tree; every fault becomes one :class:`UserError` that names its key and origin."""
    origins = {override.partition("=")[0].strip(): f"--set {override}" for override in overrides}
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise UserError("; ".join(_explain(model, dict(e), where, origins) for e in error.errors())) from error


def _explain(model: type[BaseModel], error: dict[str, Any], where: str, origins: Mapping[str, str]) -> str:
    location = [str(part) for part in error["loc"]]
    key = ".".join(location)
    where = next((origin for set_key, origin in origins.items() if f"{key}.".startswith(f"{set_key}.")), where)
    if error["type"] == "extra_forbidden":
        names = _names_at(model, location[:-1])
        near = difflib.get_close_matches(location[-1], names, n=1, cutoff=0.0)
        return f"{where}: unknown key '{key}'; did you mean '{'.'.join([*location[:-1], *near])}'?"
    message = error["msg"].removeprefix("Value error, ")
    value = "" if isinstance(error["input"], (Mapping, BaseModel)) else f" = {error['input']!r}"
    return f"{where}: {key or 'config'}{value}: {message[:1].lower()}{message[1:]}"


def _names_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)
