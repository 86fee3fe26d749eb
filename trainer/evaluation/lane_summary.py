"""Sum up the backtests of many lanes where they lie, on the device.

Why beside :func:`trainer.evaluation.metrics.summarise`: on the host a validation of 125 lanes of 10,000 bars took
0.7 s, as long as the epoch before it, and the card waited. The tests hold one against the other. Sums run over a lane's
own bars alone, so a lane's numbers depend on no neighbour; they are summed in another order than on the host, so the
last bits differ between the two.

Legend: S steps, L lanes, V slots, M = V S steps of a lane, slot by slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.evaluation.backtest import Rollout
from trainer.evaluation.metrics import Summary


def lane_summaries(run: Rollout, capital_L: Tensor, session_N: Tensor) -> list[Summary]:
    """One per lane of a rollout, in one transfer to the host.

    Args:
        capital_L: money, float64.
        session_N: session of every bar of the market.
    """
    capital_L1 = capital_L.unsqueeze(-1)
    live_LM = _in_order(run.live_SLV)
    change_LM = torch.where(live_LM, _in_order(run.change_SLV), 0.0)
    equity_LM = capital_L1 + change_LM.cumsum(-1)
    finite_L = torch.isfinite(equity_LM).all(-1)
    last_LM = _session_ends(live_LM, session_N[_in_order(run.bar_SLV)])
    sessions = _moments((equity_LM - _before(equity_LM, last_LM, capital_L1)) / capital_L1, last_LM)
    bars = _moments(change_LM / capital_L1, live_LM)
    peak_LM = torch.maximum(equity_LM, capital_L1).cummax(-1).values
    fall_LM = peak_LM - equity_LM
    share_LM = torch.where(peak_LM > 0.0, fall_LM / peak_LM, 0.0)
    held_LM = live_LM & (_in_order(run.held_SLV) != 0.0)
    notional_LM = torch.where(live_LM, _in_order(run.notional_SLV), 0.0)
    final = run.final
    columns = {
        "capital": capital_L,
        "finite": finite_L,
        "profit": equity_LM[:, -1] - capital_L,
        "max_drawdown": fall_LM.amax(-1),
        "max_drawdown_share": share_LM.amax(-1),
        "sessions": sessions.count_L,
        "session_mean": sessions.mean_L,
        "session_deviation": torch.where(sessions.vary_L, sessions.deviation_L, 0.0),
        "session_downside": sessions.downside_L,
        "session_skew": torch.where(sessions.vary_L, sessions.skew_L, 0.0),
        "session_kurtosis": torch.where(sessions.vary_L, sessions.kurtosis_L, 3.0),
        "sessions_vary": sessions.vary_L,
        "bars": bars.count_L,
        "bar_sharpe": torch.where(bars.vary_L, bars.mean_L / bars.deviation_L, 0.0),
        "bars_held": held_LM.sum(-1),
        "notional": notional_LM.sum(-1),
        "wins": final.wins_LE.sum(-1).round(),
        "losses": final.losses_LE.sum(-1).round(),
        "win_sum": final.win_sum_LE.sum(-1),
        "loss_sum": final.loss_sum_LE.sum(-1),
    }
    rows = torch.stack([column.double() for column in columns.values()], dim=-1).tolist()
    return [_summary(dict(zip(columns, row, strict=True))) for row in rows]


_COUNTS = ("sessions", "bars", "bars_held", "wins", "losses")
_FLAGS = ("finite", "sessions_vary")
_NOTHING_IF_NOT_FINITE = ("profit", "max_drawdown", "session_mean")


def _summary(row: dict[str, float]) -> Summary:
    values: dict[str, float | int | bool] = dict(row)
    values |= {name: int(row[name]) for name in _COUNTS} | {name: bool(row[name]) for name in _FLAGS}
    if not values["finite"]:
        values |= dict.fromkeys(_NOTHING_IF_NOT_FINITE, float("nan")) | {"max_drawdown_share": 0.0}
    return Summary(**values)  # type: ignore[arg-type]


def _in_order(tensor_SLV: Tensor) -> Tensor:
    """``[L, M]``: a lane's slots one after the other."""
    return tensor_SLV.permute(1, 2, 0).flatten(1)


def _session_ends(live_LM: Tensor, session_LM: Tensor) -> Tensor:
    """Steps that are the last of their session, ``[L, M]``: the next live step is in another one, or there is none."""
    steps = live_LM.shape[1]
    at_M = torch.arange(steps, device=live_LM.device)
    live_at_LM = torch.where(live_LM, at_M, steps)
    from_here_LM = live_at_LM.flip(-1).cummin(-1).values.flip(-1)
    next_LM = torch.cat((from_here_LM[:, 1:], torch.full_like(from_here_LM[:, :1], steps)), dim=-1)
    follows_LM = next_LM < steps
    next_session_LM = session_LM.gather(-1, next_LM.clamp(max=steps - 1))
    return live_LM & ~(follows_LM & (next_session_LM == session_LM))


def _before(equity_LM: Tensor, last_LM: Tensor, start_L1: Tensor) -> Tensor:
    """Equity at the close of the session before, ``[L, M]``."""
    at_M = torch.arange(last_LM.shape[1], device=last_LM.device)
    newest_LM = torch.where(last_LM, at_M, -1).cummax(-1).values
    before_LM = torch.cat((torch.full_like(newest_LM[:, :1], -1), newest_LM[:, :-1]), dim=-1)
    return torch.where(before_LM >= 0, equity_LM.gather(-1, before_LM.clamp(min=0)), start_L1)


@dataclass(frozen=True)
class _Moments:
    """Of returns, ``[L]`` each; as :mod:`trainer.evaluation.metrics` defines them."""

    count_L: Tensor
    mean_L: Tensor
    deviation_L: Tensor
    downside_L: Tensor
    skew_L: Tensor
    kurtosis_L: Tensor
    vary_L: Tensor


def _moments(return_LM: Tensor, counted_LM: Tensor) -> _Moments:
    count_L = counted_LM.sum(-1)
    return_LM = torch.where(counted_LM, return_LM, 0.0)
    mean_L = return_LM.sum(-1) / count_L
    from_mean_LM = torch.where(counted_LM, return_LM - mean_L.unsqueeze(-1), 0.0)
    squares_L = from_mean_LM.square().sum(-1)
    variance_L = squares_L / count_L
    return _Moments(
        count_L=count_L,
        mean_L=mean_L,
        deviation_L=(squares_L / (count_L - 1)).sqrt(),
        downside_L=(return_LM.clamp(max=0.0).square().sum(-1) / count_L).sqrt(),
        skew_L=from_mean_LM.pow(3).sum(-1) / count_L / variance_L.pow(1.5),
        kurtosis_L=from_mean_LM.pow(4).sum(-1) / count_L / variance_L.square(),
        vary_L=(count_L >= 2) & ~(variance_L.sqrt() <= 1e-10 * return_LM.abs().amax(-1)),
    )
