"""n-step returns (S33), formed from the ring when sampled.

The window of a drawn transition ends after n steps, or earlier at a termination, a cut (truncation, session end, reset)
or the newest stored step: never past the write cursor, where old data begins. Whatever ends it, the value of the true
last state is bootstrapped with gamma**n_eff, unless that state is terminal.

Source: Sutton and Barto (2018), eq. 7.1; truncation as in Pardo et al., "Time limits in RL", ICML 2018.

Legend: L lanes, B batch rows per lane.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.replay.ring import Ring, read, rows


@dataclass(frozen=True)
class Window:
    """Return float32 ``[L, B]``, discount of the bootstrap value (0 after termination), slot of the last step."""

    return_LB: Tensor
    discount_LB: Tensor
    last_LB: Tensor


def n_step_window(ring: Ring, index_LB: Tensor, gamma_L: Tensor, n_step: int) -> Window:
    """Sum up to ``n_step`` rewards from slot ``index_LB`` on; ``gamma_L`` is float64 ``[L]``, per bar."""
    gamma_LB = gamma_L.unsqueeze(-1).expand_as(index_LB)
    newest_L1 = ((ring.cursor_L - 1) % ring.length).unsqueeze(-1)

    def step(slot_LB: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        row_LB = rows(ring, slot_LB)
        terminated_LB = read(ring.terminated_LTE, row_LB)
        ends_LB = terminated_LB | read(ring.cut_LTE, row_LB) | (slot_LB // ring.episodes == newest_L1)
        return read(ring.reward_LTE, row_LB).double(), terminated_LB, ends_LB

    last_LB, discount_LB = index_LB, gamma_LB
    return_LB, terminated_LB, ended_LB = step(index_LB)
    for _ in range(n_step - 1):
        last_LB = torch.where(ended_LB, last_LB, (last_LB + ring.episodes) % (ring.length * ring.episodes))
        reward_LB, terminated_LB, ends_LB = step(last_LB)
        return_LB = torch.where(ended_LB, return_LB, return_LB + discount_LB * reward_LB)
        discount_LB = torch.where(ended_LB, discount_LB, discount_LB * gamma_LB)
        ended_LB = ended_LB | ends_LB
    discount_LB = torch.where(terminated_LB, torch.zeros_like(discount_LB), discount_LB)
    return Window(return_LB.float(), discount_LB.float(), last_LB)
