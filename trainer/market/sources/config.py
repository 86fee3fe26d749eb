"""Where bar files lie and how their columns and clocks are to be read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trainer.fields import Frozen, static

Role = Literal[
    "time",
    "open",
    "high",
    "low",
    "close",
    "volume",
    "contract",
    "bid_open",
    "ask_open",
    "bid",
    "ask",
    "buy_volume",
    "sell_volume",
    "funding",
]


class FileConfig(Frozen):
    """Bars in Parquet or CSV (.gz), alone or as a pair ``..._trade`` and ``..._quote`` in one folder."""

    path: str | None = static(None, doc="file, folder, or the common beginning of a trade and quote pair")
    quotes: str | None = static(None, doc="quote file; none: the `_quote` beside a `_trade` file, where there is one")
    label: Literal["auto", "start", "end"] = static(
        "auto",
        doc="whether times are the start or the end of a bar; auto compares them with the session hours, and takes "
        "start where those do not tell",
    )
    shift_seconds: float = static(
        0.0, unit="s", doc="added to every time, for files whose labels are off", ge=-3600.0, le=3600.0
    )
    bar_seconds: float | None = static(
        None, unit="s", doc="length of a bar; none: the commonest step", gt=0.0, le=86400.0
    )
    timezone: str | None = static(None, doc="clock of times that name no zone; none: the instrument's")
    columns: dict[Role, str] = Field(
        default_factory=dict,
        description="column names by role, where they are not found by their usual names",
        json_schema_extra={"kind": "static", "unit": ""},
    )
    hours: Literal["regular", "all"] = static(
        "regular",
        doc="regular: of a session that has bars within the instrument's hours, drop those outside; all: keep them",
    )
    volume_in_lots: bool = static(False, doc="volume counts lots of the instrument: multiplied by `lot`")
    max_move: float = static(
        0.5, unit="share of price", doc="a move inside a session beyond this is a fault of the data", gt=0.0, le=10.0
    )
    max_spread: float = static(
        0.05,
        unit="share of price",
        doc="a quote wider than this, or as far from the trades, is dropped",
        gt=0.0,
        le=1.0,
    )

    @model_validator(mode="after")
    def _quotes_need_path(self) -> FileConfig:
        if self.quotes is not None and self.path is None:
            raise ValueError("`quotes` needs `path`, the file with the trades")
        return self
