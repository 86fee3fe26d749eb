"""The TOML shape of one dimension of a search space.

::

    [space."agent.lr"]
    type = "log"          # "uniform" | "log" | "integer" | "categorical"
    low = 1e-7
    high = 1e-4

    [space."agent.head"]
    type = "categorical"
    choices = ["c51", "iqn"]

    [space."agent.iqn_lambda"]
    type = "uniform"
    low = 0.1
    high = 2.0
    when = { "agent.head" = ["iqn"] }     # searched only where the other dimension has one of these values

The key is the dotted name of a config field. ``log`` on a field of whole numbers searches whole numbers, log warped.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from trainer.fields import Frozen

Value = StrictBool | StrictInt | StrictFloat | StrictStr


class DimensionConfig(Frozen):
    """One dimension as a person writes it; ``search.space`` checks it against the field it names."""

    type: Literal["uniform", "log", "integer", "categorical"] = Field(description="how values are spread")
    low: StrictInt | StrictFloat | None = Field(None, description="smallest value; not for categorical")
    high: StrictInt | StrictFloat | None = Field(None, description="largest value, inclusive; not for categorical")
    choices: tuple[Value, ...] | None = Field(None, description="the values of a categorical")
    when: dict[str, tuple[Value, ...]] = Field({}, description="other dimensions and their values that switch this on")
