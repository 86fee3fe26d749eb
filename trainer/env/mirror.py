"""The mirror universe (S12): the agent sees the market with every move negated, and its exposure is negated in turn.

Prices, costs and the book stay real: the equity path of (mirrored view, mirrored actions) is that of (view, actions).
What a feature becomes is declared with the feature (``trainer.market.market.Parity``) and applied before normalisation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.market.market import MirrorView


def side_sign(mirror: Tensor) -> Tensor:
    """-1 where ``mirror``, else 1, float64: turns an agent's side into the market's and back."""
    return 1.0 - 2.0 * mirror.double()


def mirror_where(view: MirrorView, mirror: Tensor, features: Tensor) -> Tensor:
    """``offset[f] + sign[f] * features[..., partner[f]]`` where ``mirror``, else the features as they are.

    Args:
        view: one entry per feature.
        mirror: bool ``[...]``, broadcast over the leading axes of ``features``.
        features: float32 ``[..., F]``, raw.
    """
    mirrored = features.index_select(-1, view.partner_F).mul_(view.sign_F).add_(view.offset_F)
    return torch.where(mirror.unsqueeze(-1), mirrored, features)
