"""Costs in money (S3): points and notional turn into money once, through the contract multiplier.

One ES market round trip at 5,000 with a spread of 0.25: 0.25 x 50 = 12.50, plus 0.18 bps of 250,000 = 4.50: 17.00 USD.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.env.state import EnvParams


def money(params: EnvParams, contracts_LE: Tensor, points_LE: Tensor) -> Tensor:
    """``contracts * points * multiplier``, ``[L, E]``; 0 where there is no contract, whatever the price (NaN too)."""
    return torch.where(contracts_LE == 0.0, 0.0, contracts_LE * points_LE * params.multiplier_L[:, None])


def commission(params: EnvParams, contracts_LE: Tensor, price_LE: Tensor) -> Tensor:
    """Commission in money on trading ``contracts_LE`` (either sign), the *change* of position, at ``price_LE``."""
    return money(params, contracts_LE, price_LE).abs() * (params.commission_rate_L * params.cost_scale_L)[:, None]
