"""The market on the device: one causal table of bars, shared by every lane and never copied per lane.

Legend: N bars, F features. Prices are points (they become money once, through the contract multiplier, in
``trainer.env``); times are nanoseconds UTC and label the *end* of a bar. Row t holds only what was known at its close.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from trainer.lanes.tree import map_tensors


class Parity(IntEnum):
    """What a feature becomes in the mirrored market, where every price move changes its sign (S12)."""

    EVEN = 0  # unchanged: volumes, spreads, volatility, time
    ODD = 1  # negated: returns, slopes, imbalances
    REFLECTED = 2  # c - x, with c given by the feature (100 for RSI)
    SWAPPED = 3  # takes the value of its partner: bid depth and ask depth


@dataclass(frozen=True)
class MirrorView:
    """``mirrored[f] = offset_F[f] + sign_F[f] * features[partner_F[f]]``."""

    sign_F: Tensor  # float32
    offset_F: Tensor  # float32
    partner_F: Tensor  # int64


@dataclass(frozen=True)
class Market:
    """Bars on the device."""

    time_N: Tensor  # int64, ns UTC, end of the bar
    open_N: Tensor  # float64 points, like all prices
    high_N: Tensor
    low_N: Tensor
    close_N: Tensor  # mid at the close where quotes exist, else last trade
    spread_N: Tensor  # float64 points, full bid-ask spread at the close
    funding_N: Tensor  # float64, share of notional a long pays at the bar's close (perpetuals), else 0
    features_NF: Tensor  # float32, raw (not normalised), finite
    session_N: Tensor  # int64, 0-based, never decreasing
    bars_left_N: Tensor  # int64, bars that follow within the session; 0 on its last bar
    flat_N: Tensor  # bool, nothing may be held beyond this close: session end (if overnight is off), contract roll
    mirror: MirrorView

    @property
    def bars(self) -> int:
        return self.close_N.shape[0]

    def to(self, device: torch.device | str) -> Market:
        return map_tensors(lambda tensor: tensor.to(device), self)
