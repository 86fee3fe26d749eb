"""Compile a function of records for exactly the shapes of its arguments.

What: the function runs once on fake tensors while every tensor operation is recorded, gradients included; Inductor
turns that list into kernels. So nothing in the code that is compiled has to know of it, and no guard or second shape
can change its bits later: a lane group compiles each capacity on its own. Inductor keeps what it made on disk, between
processes too.

In-place changes of the arguments' tensors happen in the compiled function as well. Tensors that are read and written by
data-dependent index (the replay ring) stay outside: Inductor would copy them whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from trainer.lanes.tree import flatten, map_tensors, unflatten

A = TypeVar("A")
R = TypeVar("R")


def compile_for(function: Callable[[A], R], argument: A) -> Callable[[A], R]:
    """``function`` compiled for a record shaped like ``argument``; both it and its result are records of tensors."""
    import torch._inductor as inductor

    names, tensors = zip(*flatten(argument).items(), strict=True)
    results: list[R] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        result = function(unflatten(argument, dict(zip(names, tensors, strict=True))))
        results.append(result)
        return list(flatten(result).values())

    function(map_tensors(torch.clone, argument))  # constants that the code keeps must exist before it sees fake tensors
    graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    compiled: Any = inductor.compile(graph, list(tensors), options=_OPTIONS)
    like = results[0]
    made = list(flatten(like))

    def call(argument: A) -> R:
        with torch.no_grad():
            outputs = compiled(*flatten(argument).values())
        return unflatten(like, dict(zip(made, outputs, strict=True)))

    return call


_OPTIONS = {"assert_indirect_indexing": False}
"""Indices come from the program itself and are tested eagerly; asserting them on the device would cost registers."""
