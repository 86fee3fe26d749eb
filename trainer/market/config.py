"""Where the bars come from and which features they carry."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from trainer.fields import Frozen, static
from trainer.market.bar_config import BarConfig
from trainer.market.features.config import FeatureConfig
from trainer.market.normalise_config import NormaliseConfig
from trainer.market.sources.config import FileConfig
from trainer.market.synthetic_config import SyntheticConfig


class MarketConfig(Frozen):
    """``synthetic`` is the embedded market, ``bars`` a Parquet or CSV file, ``dbn`` Databento MBP-10 and trades,
    ``exchange_json`` the raw messages of a perpetual's exchange."""

    source: Literal["synthetic", "bars", "dbn", "exchange_json"] = static("synthetic", doc="kind of market data")
    instrument: str = static(
        "auto", doc="name in configs/instruments, path of a TOML record, or auto: told by the data's name"
    )

    synthetic: SyntheticConfig = SyntheticConfig()
    files: FileConfig = FileConfig()
    bar: BarConfig = BarConfig()
    features: FeatureConfig = FeatureConfig()
    normalise: NormaliseConfig = NormaliseConfig()

    @model_validator(mode="after")
    def _path_given(self) -> MarketConfig:
        if self.source != "synthetic" and self.files.path is None:
            raise ValueError(f"source '{self.source}' needs market.files.path (or --data PATH)")
        return self

    @model_validator(mode="after")
    def _bar_file_settings_are_for_bar_files(self) -> MarketConfig:
        if self.source in ("dbn", "exchange_json"):
            for name, usual in FileConfig():
                if name != "path" and getattr(self.files, name) != usual:
                    raise ValueError(
                        f"files.{name} is for files of bars; source '{self.source}' takes the hours of the instrument "
                        "(its `open` and `close`), sizes as they are, and bars as market.bar says"
                    )
        return self
