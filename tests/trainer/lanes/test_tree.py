"""Records of tensors: select, join, overwrite, name and rebuild."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from trainer.fields import Frozen, dynamic
from trainer.lanes.tree import build, concat, flatten, map_tensors, names_of, put_, stack_dynamic, take, unflatten


@dataclass(frozen=True)
class Inner:
    a: Tensor


@dataclass(frozen=True)
class Outer:
    inner: Inner
    b: Tensor


@dataclass(frozen=True)
class Rates:
    lr_L: Tensor
    tau_L: Tensor
    extra_L: Tensor


class RatesConfig(Frozen):
    lr: float = dynamic(0.1, unit="1", doc="rate")
    tau: float = dynamic(0.5, unit="1", doc="mix")


def record(lanes: int, start: float = 0.0) -> Outer:
    return Outer(Inner(torch.arange(lanes) + start), torch.arange(2.0 * lanes).reshape(lanes, 2) + start)


def equal(one: Outer, other: Outer) -> bool:
    return torch.equal(one.inner.a, other.inner.a) and torch.equal(one.b, other.b)


def test_take_selects_lanes_in_the_given_order_as_copies() -> None:
    source = record(4)
    taken = take(source, torch.tensor([3, 1]))
    assert taken.inner.a.tolist() == [3, 1]
    assert taken.b.tolist() == [[6, 7], [2, 3]]
    taken.b.zero_()
    assert equal(source, record(4))


def test_put_overwrites_only_the_named_lanes() -> None:
    target = record(4)
    put_(target, torch.tensor([2, 0]), record(2, 100.0))
    assert target.inner.a.tolist() == [101, 1, 100, 3]
    assert target.b.tolist() == [[102, 103], [2, 3], [100, 101], [6, 7]]


def test_concat_joins_lanes() -> None:
    both = concat([record(1), record(2, 10.0)])
    assert both.inner.a.tolist() == [0, 10, 11]
    assert both.b.shape == (3, 2)


def test_map_pairs_the_tensors_at_the_same_place() -> None:
    assert equal(map_tensors(torch.add, record(3), record(3, 5.0)), map_tensors(lambda x: 2 * x + 5, record(3)))


def test_flatten_names_tensors_by_path_and_unflatten_inverts_it() -> None:
    named = flatten(record(2))
    assert list(named) == ["inner.a", "b"]
    assert equal(unflatten(record(5), named), record(2))
    with pytest.raises(KeyError, match="b"):
        unflatten(record(5), {"inner.a": named["inner.a"]})


def test_a_record_is_built_from_its_type_alone() -> None:
    named = flatten(record(2))
    assert names_of(Outer) == list(named)
    assert equal(build(Outer, named), record(2))
    with pytest.raises(KeyError, match="b"):
        build(Outer, {"inner.a": named["inner.a"]})


def test_a_leaf_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match="not float"):
        map_tensors(lambda x: x, Inner(1.5))  # type: ignore[arg-type]


def test_stack_dynamic_makes_float64_columns_by_field_name() -> None:
    configs = [RatesConfig(), RatesConfig(lr=0.3)]
    rates = stack_dynamic(Rates, configs, torch.device("cpu"), extra_L=torch.zeros(2))
    assert rates.lr_L.dtype == torch.float64
    assert rates.lr_L.tolist() == [0.1, 0.3]
    assert rates.tau_L.tolist() == [0.5, 0.5]
