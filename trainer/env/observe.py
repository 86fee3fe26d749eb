"""What the agent sees: the last ``window`` rows of features and its own portfolio.

Legend: L lanes, E episodes, B rows per lane, W window, F market features, P portfolio features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from trainer.env.caps import cap_share
from trainer.env.mirror import mirror_where, side_sign
from trainer.env.reward import churn_intensity
from trainer.env.state import EnvParams, EnvState
from trainer.market.market import Market
from trainer.market.normalise import Scaling

PORTFOLIO_FEATURES: tuple[str, ...] = (
    "exposure",  # position / max_position, negated in a mirrored episode
    "cap",  # share of max_position that margin, Kelly and health allow now
    "trip",  # t / (1 + |t|), t = profit of the open position in units of reward
    "equity",  # equity / capital - 1
    "drawdown",  # share of the peak that is lost
    "flip_price",  # churn intensity of a flip now, signed as the latest direction, negated when mirrored
    "session_end",  # 1 / (1 + bars left in the session)
)


@dataclass(frozen=True)
class Normaliser:
    """``clip((x - shift) / scale)`` per lane and feature, fitted on the lane's train range only."""

    shift_LF: Tensor  # float32
    scale_LF: Tensor  # float32, positive
    clip_L: Tensor  # float32, positive


def stack_normaliser(scalings: Sequence[Scaling], device: torch.device) -> Normaliser:
    """One fitted scaling per lane, as tensors."""
    return Normaliser(
        shift_LF=torch.from_numpy(np.stack([scaling.shift_F for scaling in scalings])).to(device),
        scale_LF=torch.from_numpy(np.stack([scaling.scale_F for scaling in scalings])).to(device),
        clip_L=torch.tensor([scaling.clip for scaling in scalings], dtype=torch.float32, device=device),
    )


@dataclass(frozen=True)
class Observation:
    """Input of the network."""

    features: Tensor  # float32 [L, B, W, F], normalised; rows before the session's first bar are 0
    portfolio: Tensor  # float32 [L, B, P]
    hold_only: Tensor  # bool [L, B], hold is the only action that has an effect


def side_by_side(first: Observation, second: Observation) -> Observation:
    """The rows of both, for one pass of a network, ``[L, 2 B, ...]``."""
    parts = zip(vars(first).values(), vars(second).values(), strict=True)
    return Observation(*(torch.cat(pair, dim=1) for pair in parts))


def portfolio_features(params: EnvParams, market: Market, state: EnvState) -> Tensor:
    """``[L, E, P]`` float32, in the order of :data:`PORTFOLIO_FEATURES`."""
    sign_LE = side_sign(state.mirror_LE)
    trip_LE = state.trip_LE / params.reward_unit_L[:, None]
    values = (
        sign_LE * state.position_LE / params.max_position_L[:, None],
        cap_share(params, state, market.close_N[state.bar_LE]),
        trip_LE / (1.0 + trip_LE.abs()),
        state.equity_LE / params.capital_L[:, None] - 1.0,
        1.0 - state.equity_LE / state.peak_LE,
        sign_LE * state.side_LE * churn_intensity(params, state.side_bars_LE + 1.0),
        1.0 / (1.0 + market.bars_left_N[state.bar_LE].double()),
    )
    return torch.stack(values, dim=-1).float()


def observe(
    market: Market, normaliser: Normaliser, bar_LB: Tensor, mirror_LB: Tensor, portfolio_LBP: Tensor, window: int
) -> Observation:
    """Gather the rows up to ``bar_LB``, mirror them where asked, then normalise. Nothing after ``bar_LB`` is read."""
    lanes, batch = bar_LB.shape
    row_LBW = bar_LB.unsqueeze(-1) + torch.arange(1 - window, 1, device=bar_LB.device)
    session_LBW = market.session_N[row_LBW.clamp(min=0)]
    known_LBW = (row_LBW >= 0) & (session_LBW == market.session_N[bar_LB].unsqueeze(-1))
    rows = market.features_NF.index_select(0, row_LBW.clamp(min=0).flatten())
    raw_LBWF = rows.view(lanes, batch, window, -1)
    seen_LBWF = mirror_where(market.mirror, mirror_LB.unsqueeze(-1), raw_LBWF)
    shift_LF, scale_LF = normaliser.shift_LF[:, None, None], normaliser.scale_LF[:, None, None]
    clip_L = normaliser.clip_L[:, None, None, None]
    scaled_LBWF = seen_LBWF.sub_(shift_LF).div_(scale_LF).clamp_(-clip_L, clip_L)  # in place: the gather's own copy
    return Observation(
        features=scaled_LBWF.mul_(known_LBW.unsqueeze(-1)),
        portfolio=portfolio_LBP,
        hold_only=market.flat_N[bar_LB],
    )


class See(Protocol):
    """What the agents of a state see, made when asked; ``flipped``: as if every episode's mirror were turned."""

    def __call__(self, *, flipped: bool = False) -> Observation: ...


def seeing(params: EnvParams, market: Market, normaliser: Normaliser, state: EnvState, window: int) -> See:
    """The view of ``state``."""

    def see(*, flipped: bool = False) -> Observation:
        shown = replace(state, mirror_LE=~state.mirror_LE) if flipped else state
        portfolio_LEP = portfolio_features(params, market, shown)
        return observe(market, normaliser, shown.bar_LE, shown.mirror_LE, portfolio_LEP, window)

    return see
