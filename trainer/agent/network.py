"""Branching duelling distributional network of a lane group (S16, S39).

What: market features of each bar pass a narrow bottleneck, order-flow features an embedding of their own; the window's
bars are joined, the portfolio is appended, residual blocks with RMSNorm follow, then ONE value stream and an advantage
stream for each of the four branches. The advantages are centred over the actions of their branch, never over atoms
(Wang et al. 2016, eq. 9; Tavakoli et al. 2018, eq. 1). Centring is linear, so it is done on the weights, and all
branches become one matrix product, the atoms of every action padded to whole 16 bytes. The gains of the norms go into
the weights that follow them too: their gradient is then a sum over those and not over the rows of the batch.

Why ReLU and explicit square roots: exact operations have the same bits at any group size; transcendental ones have
not at vector tails. Linear layers are batched matrix products over the lanes.

Legend: L lanes, B rows, W window, F features, P portfolio features, C channels of one bar, H hidden width, K = 13
actions of all branches, A atoms, D parameters of one lane, N = K x A with each A padded, I inputs of the first layer
(the joined ones and the columns of ones that meet its bias), R = H + 1 rows of a weight (the last is the bias).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import relu

from trainer.agent.branches import ACTIONS, chosen
from trainer.agent.config import AgentConfig
from trainer.agent.distribution import expectation, moments
from trainer.env.actions import BRANCHES
from trainer.errors import UserError
from trainer.lanes.flat import FlatLayout
from trainer.lanes.random import Stream, uniform

Weights = Mapping[str, Tensor]

_NORM_EPSILON = 1e-6
_HEAD_GAIN = 0.1  # small first logits: nearly uniform distributions, nearly equal actions
_MASKED = -1e9
_HEAD = "head"
_ROW_BYTES = 16  # what the widest loads of matrix products want rows to be a multiple of


class Observation(Protocol):
    """What the network reads: features ``[L, B, W, F]``, portfolio ``[L, B, P]``, and where only hold is allowed."""

    @property
    def features(self) -> Tensor: ...
    @property
    def portfolio(self) -> Tensor: ...
    @property
    def hold_only(self) -> Tensor: ...


@dataclass(frozen=True)
class NetworkShape:
    """Everything that shapes the network's tensors; ``flow`` are the positions of the order-flow features."""

    features: int
    portfolio: int
    window: int
    flow: tuple[int, ...]
    hidden: int
    blocks: int
    atoms: int
    bottleneck_dim: int
    flow_dim: int
    temporal: str
    attention_heads: int
    attention_dim: int

    @staticmethod
    def of(
        config: AgentConfig, *, features: int, portfolio: int, window: int, flow: tuple[int, ...] = ()
    ) -> NetworkShape:
        """Shape for a market of ``features`` columns, those at ``flow`` being order flow.

        Raises:
            UserError: a flow position that is no feature.
        """
        wrong = [position for position in flow if not 0 <= position < features]
        if wrong or len(set(flow)) != len(flow):
            raise UserError(f"order-flow features {flow}: need distinct positions in 0..{features - 1}")
        return NetworkShape(
            features=features,
            portfolio=portfolio,
            window=window,
            flow=tuple(flow),
            hidden=config.hidden,
            blocks=config.blocks,
            atoms=config.atoms,
            bottleneck_dim=config.bottleneck_dim,
            flow_dim=config.flow_dim,
            temporal=config.temporal,
            attention_heads=config.attention_heads,
            attention_dim=config.attention_dim,
        )

    @property
    def market(self) -> tuple[int, ...]:
        """Positions of the features that are not order flow."""
        return _market(self.features, self.flow)

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Slices of the rows (market, then flow) that, one after the other, are the features in their own order."""
        return _runs(self.features, self.flow)

    @property
    def channels(self) -> int:
        """C, the width of one encoded bar."""
        return (self.bottleneck_dim if self.market else 0) + (self.flow_dim if self.flow else 0)

    @property
    def joined(self) -> int:
        """Width of the trunk's input."""
        attended = self.channels + self.attention_heads * self.attention_dim
        return (self.window * self.channels if self.temporal == "flat" else attended) + self.portfolio


@cache
def _market(features: int, flow: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(position for position in range(features) if position not in flow)


@cache
def _runs(features: int, flow: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    row_of = {feature: row for row, feature in enumerate((*_market(features, flow), *flow))}
    rows = [row_of[feature] for feature in range(features)]
    breaks = [0, *(at for at in range(1, len(rows)) if rows[at] != rows[at - 1] + 1), len(rows)]
    return tuple((rows[first], rows[first] + end - first) for first, end in pairwise(breaks))


@cache
def layout(shape: NetworkShape) -> FlatLayout:
    """Names and shapes of one lane's parameters; the last row of every ``[in + 1, out]`` weight is its bias."""
    named: dict[str, tuple[int, ...]] = {}
    if shape.market:
        named["bottleneck"] = (len(shape.market), shape.bottleneck_dim)
    if shape.flow:
        named["flow"] = (len(shape.flow), shape.flow_dim)
    named["bar_bias"] = (shape.channels,)
    if shape.temporal == "attention":
        width = shape.attention_heads * shape.attention_dim
        named["attention.query"] = (shape.channels, width)
        named["attention.key"] = (shape.channels, width)
        named["attention.value"] = (shape.channels, width)
        named["attention.age"] = (shape.attention_heads, shape.window)
    named["input"] = (shape.joined + 1, shape.hidden)
    for block in range(shape.blocks):
        named[f"block{block}.gain"] = (shape.hidden,)
        named[f"block{block}.up"] = (shape.hidden + 1, shape.hidden)
        named[f"block{block}.down"] = (shape.hidden + 1, shape.hidden)
    named["head.gain"] = (shape.hidden,)
    named["head.value"] = (shape.hidden + 1, shape.atoms)
    named["head.advantage"] = (shape.hidden + 1, ACTIONS, shape.atoms)
    return FlatLayout.of(named)


def initialise(shape: NetworkShape, seed_L: Tensor, device: torch.device) -> Tensor:
    """First parameters ``[L, D]``: uniform of variance 1 / inputs (small in the heads), gains 1, biases 0.

    A lane's parameters depend on its own seed alone.
    """
    seed_L = seed_L.to(device)
    plan = layout(shape)
    drawn: dict[str, Tensor] = {}
    for position, (name, parameter) in enumerate(zip(plan.names, plan.shapes, strict=True)):
        if name.endswith(".gain"):
            drawn[name] = torch.ones(len(seed_L), *parameter, device=device)
        elif name in ("bar_bias", "attention.age"):
            drawn[name] = torch.zeros(len(seed_L), *parameter, device=device)
        else:
            drawn[name] = _weight(seed_L, name, position, parameter)
    return plan.pack(drawn)


def forward(shape: NetworkShape, weights: Weights, obs: Observation) -> Tensor:
    """Logits ``[L, B, K, A]`` of every action's value distribution, duelling streams already combined.

    Args:
        weights: ``layout(shape).views`` of a ``[L, D]`` buffer, or those :func:`with_head`; their dtype is the dtype
            of the computation.
    """
    logits_LBN = _affine(trunk(shape, weights, obs), with_head(weights)[_HEAD])
    return logits_LBN.view(*logits_LBN.shape[:2], ACTIONS, -1)[..., : shape.atoms]


def head_product(shape: NetworkShape, weights: Weights, obs: Observation) -> tuple[Tensor, Tensor]:
    """The logits of :func:`forward`, padded, in two parts: a product ``[L, B, N]`` and what is to be added, ``[L, N]``.

    For who adds them where they are read; the gradient of their sum is to be given to the product alone.
    """
    head_LRN = with_head(weights)[_HEAD]
    product_LBN: Tensor = _Product.apply(trunk(shape, weights, obs), head_LRN)  # type: ignore[no-untyped-call]
    return product_LBN, head_LRN[:, -1].detach()


def with_head(weights: Weights) -> Weights:
    """The weights with what :func:`duelling` makes of them, for those who call :func:`forward` more than once."""
    return weights if _HEAD in weights else {**weights, _HEAD: duelling(weights)}


def action_values(shape: NetworkShape, weights: Weights, obs: Observation, atoms_LA: Tensor) -> Tensor:
    """Value ``[L, B, K]`` of every action: its distribution's mean, float32, reward units; no gradient."""
    if not _fused(shape, weights):
        return expectation(forward(shape, weights, obs), atoms_LA)
    return _fused_moments(shape, weights, obs, atoms_LA)[0]


def action_moments(shape: NetworkShape, weights: Weights, obs: Observation, atoms_LA: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every action's distribution, float32 ``[L, B, K]``, reward units; no gradient."""
    if not _fused(shape, weights):
        return moments(forward(shape, weights, obs), atoms_LA)
    mean, square = _fused_moments(shape, weights, obs, atoms_LA)
    return mean, (square - mean * mean).clamp(min=0.0).sqrt()


def _fused_moments(shape: NetworkShape, weights: Weights, obs: Observation, atoms_LA: Tensor) -> tuple[Tensor, Tensor]:
    from trainer.kernels.heads import all_moments

    return all_moments(_trunk_weights(shape, weights), with_head(weights)[_HEAD], joined(shape, weights, obs), atoms_LA)


def chosen_logits(shape: NetworkShape, weights: Weights, obs: Observation, action_LBG: Tensor) -> Tensor:
    """Logits ``[L, B, G, A]`` of the chosen action of each branch; no gradient."""
    return (_fused_chosen if _fused(shape, weights) else _eager_chosen)(shape, weights, obs, action_LBG)


def _eager_chosen(shape: NetworkShape, weights: Weights, obs: Observation, action_LBG: Tensor) -> Tensor:
    return chosen(forward(shape, weights, obs), action_LBG)


def _fused_chosen(shape: NetworkShape, weights: Weights, obs: Observation, action_LBG: Tensor) -> Tensor:
    from trainer.kernels import heads

    trunk_weights, head_LRN = _trunk_weights(shape, weights), with_head(weights)[_HEAD]
    return heads.chosen_logits(trunk_weights, head_LRN, joined(shape, weights, obs), action_LBG, shape.atoms)


def _fused(shape: NetworkShape, weights: Weights) -> bool:
    """Whether the kernels take the trunk and the heads."""
    if not weights["input"].is_cuda:
        return False
    from trainer.kernels.heads import fits

    return fits(shape.hidden, shape.atoms, weights["input"].dtype)


def _trunk_weights(shape: NetworkShape, weights: Weights) -> Any:
    from trainer.kernels.heads import Trunk

    def of(part: str) -> list[Tensor]:
        return [weights[f"block{block}.{part}"] for block in range(shape.blocks)]

    return Trunk(weights["input"], of("gain"), of("up"), of("down"))


def duelling(weights: Weights) -> Tensor:
    """Weights ``[L, R, N]`` that give value + advantage - branch mean of the advantages for all actions at once, from
    hidden states that the last norm has not yet multiplied by its gains.

    Made by one product of small matrices, so that their gradient is one too; on a GPU, where products of 13 rows would
    leave its units idle, by a kernel of plain sums.
    """
    value_LRA, advantage_LRKA, gain_LH = weights["head.value"], weights["head.advantage"], weights["head.gain"]
    if value_LRA.is_cuda:
        from trainer.kernels.duelling import combine

        return combine(value_LRA, advantage_LRKA, gain_LH)
    streams = torch.cat((value_LRA.unsqueeze(2), advantage_LRKA), dim=2)
    summed = torch.matmul(_combination(streams.device, streams.dtype), streams)
    padded = torch.nn.functional.pad(summed, (0, _missing(summed.shape[3], summed)))
    return _scaled(padded.flatten(2), gain_LH)


def _missing(width: int, like: Tensor) -> int:
    """Columns that a row of ``width`` lacks."""
    return -width % (_ROW_BYTES // like.element_size())


def joined(shape: NetworkShape, weights: Weights, obs: Observation) -> Tensor:
    """Input ``[L, B, I]`` of the first layer: the encoded bars of the window, or what the last one attends to, the
    portfolio, and ones: the first meets the bias, those that fill a GPU's rows to whole 16 bytes no weight."""
    dtype = weights["input"].dtype
    bars_LBWC = _encode_bars(shape, weights, obs.features.to(dtype))
    bars = bars_LBWC.flatten(2) if shape.temporal == "flat" else _attend(shape, weights, bars_LBWC, obs.features)
    ones = 1 + (_missing(shape.joined + 1, bars) if bars.is_cuda else 0)
    return torch.cat((bars, obs.portfolio.to(dtype), bars.new_ones(*bars.shape[:2], ones)), dim=-1)


def trunk(shape: NetworkShape, weights: Weights, obs: Observation) -> Tensor:
    """Hidden state ``[L, B, H]`` that all streams share, normalised, without the gains of its norm."""
    joined_LBI, first = joined(shape, weights, obs), weights["input"]
    hidden_LBH = relu(torch.bmm(joined_LBI, _more_rows(first, joined_LBI.shape[2] - first.shape[1])))
    for block in range(shape.blocks):
        up = _scaled(weights[f"block{block}.up"], weights[f"block{block}.gain"])
        inner_LBH = relu(_affine(_rms_norm(hidden_LBH), up))
        hidden_LBH = hidden_LBH + _affine(inner_LBH, weights[f"block{block}.down"])
    return _rms_norm(hidden_LBH)


def _encode_bars(shape: NetworkShape, weights: Weights, features_LBWF: Tensor) -> Tensor:
    """Bottleneck and order-flow embedding of each bar in one product, ``[L, B, W, C]``.

    The two weights are placed in one ``[F, C]`` matrix (zero where a feature does not feed a channel), so that the
    large features need no gather.
    """
    lanes, rows, window, _ = features_LBWF.shape
    parts = []
    if shape.market:
        parts.append(torch.nn.functional.pad(weights["bottleneck"], (0, shape.channels - shape.bottleneck_dim)))
    if shape.flow:
        parts.append(torch.nn.functional.pad(weights["flow"], (shape.channels - shape.flow_dim, 0)))
    stacked = torch.cat(parts, dim=1)
    if len(shape.runs) > 1:
        stacked = torch.cat([stacked[:, first:end] for first, end in shape.runs], dim=1)
    flat_LNF = features_LBWF.flatten(1, 2)
    missing = _missing(shape.features, flat_LNF)
    if flat_LNF.is_cuda and missing:
        flat_LNF, stacked = torch.nn.functional.pad(flat_LNF, (0, missing)), _more_rows(stacked, missing)
    bars = torch.bmm(flat_LNF, stacked) + weights["bar_bias"].unsqueeze(1)
    return bars.view(lanes, rows, window, shape.channels)


def _attend(shape: NetworkShape, weights: Weights, bars_LBWC: Tensor, features_LBWF: Tensor) -> Tensor:
    """The last bar and what it attends to in the window, ``[L, B, C + heads x dim]`` (Vaswani et al. 2017, eq. 1).

    Bars before the session's first one (all features zero) are masked; the last bar never is. Each head learns a bias
    for each age of a bar.
    """
    lanes, rows, window, _ = bars_LBWC.shape
    heads, dim = shape.attention_heads, shape.attention_dim
    last_LBC = bars_LBWC[:, :, -1]
    flat = bars_LBWC.flatten(1, 2)
    query = torch.bmm(last_LBC, weights["attention.query"]).view(lanes, rows, heads, 1, dim)
    key = torch.bmm(flat, weights["attention.key"]).view(lanes, rows, window, heads, dim).permute(0, 1, 3, 4, 2)
    value = torch.bmm(flat, weights["attention.value"]).view(lanes, rows, window, heads, dim).transpose(2, 3)
    scores = torch.matmul(query, key).squeeze(3) / math.sqrt(dim) + weights["attention.age"].unsqueeze(1)
    absent_LBW = (features_LBWF == 0).all(-1)
    absent_LBW = torch.cat((absent_LBW[..., :-1], torch.zeros_like(absent_LBW[..., -1:])), dim=-1)
    share = torch.softmax(scores.masked_fill(absent_LBW.unsqueeze(2), _MASKED), dim=-1)
    context = torch.matmul(share.unsqueeze(3), value).reshape(lanes, rows, heads * dim)
    return torch.cat((last_LBC, context), dim=-1)


@cache
def _combination(device: torch.device, dtype: torch.dtype) -> Tensor:
    """``[K, 1 + K]``: what each action's logits take from the value stream and from every action's advantages."""
    matrix = torch.zeros(ACTIONS, 1 + ACTIONS, dtype=dtype, device=device)
    matrix[:, 0] = 1.0
    first = 0
    for size in BRANCHES:
        matrix[first : first + size, 1 + first : 1 + first + size] = -1.0 / size
        first += size
    matrix.diagonal(offset=1).add_(1.0)
    return matrix


def _affine(x_LBI: Tensor, weight_LIO: Tensor) -> Tensor:
    """``x W + b`` where the last row of the weight is b: one product, and one more for both their gradients.

    On a GPU, whose fast kernels want no rows of odd width, the bias is added to the product; a compiler fuses the
    addition with what follows.
    """
    if x_LBI.is_cuda:
        product: Tensor = _Product.apply(x_LBI, weight_LIO)  # type: ignore[no-untyped-call]
        return product + weight_LIO[:, -1:].detach()
    return torch.bmm(torch.nn.functional.pad(x_LBI, (0, 1), value=1.0), weight_LIO)


class _Product(torch.autograd.Function):
    """``x W`` without the bias, with the gradient of ``x W + b`` as one tensor: autograd would add two padded ones."""

    @staticmethod
    def forward(ctx: Any, x_LBI: Tensor, weight_LIO: Tensor) -> Tensor:
        ctx.save_for_backward(x_LBI, weight_LIO)
        return torch.bmm(x_LBI, weight_LIO[:, :-1])

    @staticmethod
    def backward(ctx: Any, grad_LBO: Tensor) -> tuple[Tensor, Tensor]:
        x_LBI, weight_LIO = ctx.saved_tensors
        # by a product too: a compiler's sum over rows took twice its memory traffic and slowed what was fused with it
        of_bias_L1O = torch.bmm(grad_LBO.new_ones(len(grad_LBO), 1, grad_LBO.shape[1]), grad_LBO)
        of_weight = torch.cat((torch.bmm(x_LBI.mT, grad_LBO), of_bias_L1O), dim=1)
        return torch.bmm(grad_LBO, weight_LIO[:, :-1].mT), of_weight


def _more_rows(weight_LRO: Tensor, missing: int) -> Tensor:
    return torch.nn.functional.pad(weight_LRO, (0, 0, 0, missing)) if missing else weight_LRO


def _scaled(weight_LRO: Tensor, gain_LH: Tensor) -> Tensor:
    """The weight for inputs that were not multiplied by their gains; the bias, its last row, stays."""
    return weight_LRO * torch.nn.functional.pad(gain_LH, (0, 1), value=1.0).unsqueeze(-1)


def _rms_norm(x_LBH: Tensor) -> Tensor:
    """``x / rms(x)`` (Zhang and Sennrich 2019, eq. 4, without its gain)."""
    return x_LBH / ((x_LBH * x_LBH).mean(-1, keepdim=True) + _NORM_EPSILON).sqrt()


def _weight(seed_L: Tensor, name: str, position: int, parameter: tuple[int, ...]) -> Tensor:
    has_bias = name == "input" or name.startswith(("block", "head"))
    inputs = parameter[0] - 1 if has_bias else parameter[0]
    bound = math.sqrt(3.0 / inputs) * (_HEAD_GAIN if name.startswith("head") else 1.0)
    weight = (uniform(seed_L, Stream.INIT, position, parameter) * 2.0 - 1.0) * bound
    if has_bias:
        weight[:, -1] = 0.0
    return weight
