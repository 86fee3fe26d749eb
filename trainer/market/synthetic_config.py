"""Settings of the embedded synthetic market; four strengths of its planted alpha are pinned by name.

A number left at None takes the preset's value, so an override of the preset never keeps another preset's alpha. No
torch here: thin clients read configs too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from pydantic import model_validator

from trainer.fields import Frozen, static

PresetName = Literal["easy", "hard", "barely", "none"]


@dataclass(frozen=True)
class Planted:
    """What a preset pins."""

    signal: float  # standard deviation of the alpha over the volatility of a bar
    phi: float  # first-order autocorrelation of the alpha from bar to bar
    flow_noise: float  # noise of one order-flow column, over the standard deviation of the alpha it shows
    half_spread: float  # half the bid-ask spread over the volatility of a bar
    sessions: int


# The commission of configs/instruments/synthetic.toml (0.09 bps a side) adds 0.009 bar volatilities of 10 bps to
# half_spread. Cost of one side over the alpha's deviation: easy 0.25, hard 0.5, barely 0.7.
PRESETS: dict[PresetName, Planted] = {
    "easy": Planted(signal=0.12, phi=0.97, flow_noise=0.8, half_spread=0.021, sessions=400),
    "hard": Planted(signal=0.08, phi=0.93, flow_noise=1.5, half_spread=0.031, sessions=600),
    "barely": Planted(signal=0.02, phi=0.95, flow_noise=3.0, half_spread=0.005, sessions=800),
    "none": Planted(signal=0.0, phi=0.97, flow_noise=0.8, half_spread=0.021, sessions=400),
}


class SyntheticConfig(Frozen):
    """The synthetic market; see :mod:`trainer.market.synthetic` for the process these numbers belong to."""

    preset: PresetName = static("easy", doc="strength of the planted alpha; pins the numbers below that are not given")
    seed: int = static(0, ge=0, lt=2**63, doc="seed of the market's path")
    signal: float | None = static(
        None, unit="bar volatilities", ge=0.0, le=0.5, doc="standard deviation of the alpha; exactly 0 is a martingale"
    )
    phi: float | None = static(
        None, ge=0.0, lt=1.0, doc="autocorrelation of the alpha; half-life = ln 0.5 / ln phi bars"
    )
    flow_noise: float | None = static(
        None, unit="alpha deviations", gt=0.0, le=100.0, doc="noise of one order-flow column around the alpha"
    )
    half_spread: float | None = static(None, unit="bar volatilities", ge=0.0, le=1.0, doc="half the bid-ask spread")
    sessions: int | None = static(None, unit="sessions", ge=1, le=1_000_000, doc="trading days")
    bars_per_session: int = static(128, unit="bars", ge=2, le=100_000, doc="bars of one trading day")
    bar_seconds: int = static(180, unit="s", ge=1, le=43_200, doc="length of a bar")
    flows: int = static(
        3, unit="columns", ge=1, le=16, doc="order-flow columns that show the alpha, each with its own noise"
    )
    start_price: float = static(5000.0, unit="points", gt=0.0, doc="price before the first bar")
    volatility: float = static(
        10.0, unit="bps", gt=0.0, le=100.0, doc="mean-square volatility of a bar over both regimes"
    )
    regime_ratio: float = static(2.0, ge=1.0, le=10.0, doc="volatility of the wild regime over that of the calm one")
    regime_bars: float = static(256.0, unit="bars", ge=2.0, doc="mean length of a stay in either regime")
    tail_degrees: float = static(5.0, gt=2.0, le=1e6, doc="degrees of freedom of the Student t returns")
    open_gap: float = static(
        0.02, ge=0.0, lt=1.0, doc="share of a bar's variance that falls between the last close and its open"
    )
    overnight_gap: float = static(
        4.0, unit="bar volatilities", ge=0.0, le=50.0, doc="deviation of the gap between sessions"
    )
    leak: bool = static(False, doc="canary: the first order-flow column shows the next bar's return")

    @property
    def planted(self) -> Planted:
        """The numbers in force: those given, else the preset's."""
        pinned = PRESETS[self.preset]
        given = {f.name: getattr(self, f.name) for f in fields(Planted)}
        return Planted(**{name: getattr(pinned, name) if value is None else value for name, value in given.items()})

    @property
    def half_life(self) -> float:
        """Bars after which half of the alpha is gone; 0 where it does not persist."""
        phi = self.planted.phi
        return 0.0 if phi == 0.0 else math.log(0.5) / math.log(phi)

    @model_validator(mode="after")
    def _session_fits_a_day(self) -> SyntheticConfig:
        if self.bars_per_session * self.bar_seconds > 86_400:
            seconds = self.bars_per_session * self.bar_seconds
            raise ValueError(f"bars_per_session x bar_seconds = {seconds} s is longer than a day of 86400 s")
        return self
