"""The flat parameter buffer (S40): round trip, views without copies, one gradient."""

from __future__ import annotations

import pytest
import torch

from trainer.lanes.flat import FlatLayout

LAYOUT = FlatLayout.of({"trunk.weight": (3, 5), "trunk.bias": (5,), "scale": (), "head": (64,), "last": (2, 1, 65)})


def named(lanes: int) -> dict[str, torch.Tensor]:
    return {
        name: torch.arange(lanes * torch.Size(shape).numel(), dtype=torch.float32).reshape(lanes, *shape) + 1
        for name, shape in zip(LAYOUT.names, LAYOUT.shapes, strict=True)
    }


def test_every_parameter_starts_at_a_multiple_of_64() -> None:
    assert LAYOUT.offsets == (0, 64, 128, 192, 256)
    assert LAYOUT.size == 256 + 192


@pytest.mark.parametrize("lanes", [1, 3])
def test_pack_and_views_are_a_round_trip(lanes: int) -> None:
    flat = LAYOUT.pack(named(lanes))
    assert flat.shape == (lanes, LAYOUT.size)
    views = LAYOUT.views(flat)
    assert list(views) == list(LAYOUT.names)
    for name, tensor in named(lanes).items():
        assert torch.equal(views[name], tensor)
    assert torch.equal(LAYOUT.pack(views), flat)


def test_views_share_memory_with_the_buffer_at_the_declared_offsets() -> None:
    flat = LAYOUT.zeros(2, torch.device("cpu"))
    for offset, view in zip(LAYOUT.offsets, LAYOUT.views(flat).values(), strict=True):
        view.fill_(offset + 1)
        assert view.data_ptr() == flat.data_ptr() + 4 * offset
        assert torch.equal(flat[:, offset], torch.full((2,), float(offset + 1)))


def test_the_gradient_of_the_buffer_holds_each_parameters_gradient_and_zero_padding() -> None:
    flat = LAYOUT.pack(named(2)).requires_grad_()
    views = LAYOUT.views(flat)
    (gradient,) = torch.autograd.grad(views["trunk.weight"].square().sum() + 3 * views["last"].sum(), flat)
    expected = {name: torch.zeros_like(tensor) for name, tensor in named(2).items()}
    expected["trunk.weight"] = 2 * named(2)["trunk.weight"]
    expected["last"] = torch.full((2, 2, 1, 65), 3.0)
    assert torch.equal(gradient, LAYOUT.pack(expected))


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(KeyError, match="scale"):
        LAYOUT.pack({name: tensor for name, tensor in named(1).items() if name != "scale"})
