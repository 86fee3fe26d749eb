"""Compile a function of records for exactly the shapes of its arguments, once for all processes of a machine.

What: the function runs once on fake tensors while every tensor operation is recorded, gradients included; Inductor
turns that list into kernels. So nothing in the code that is compiled has to know of it, and no guard or second shape
can change its bits later: a lane group compiles each capacity on its own.

Recording and Inductor's own Python take most of a start, so what they made is kept on disk (:mod:`.artifacts`) and
loaded without either. It is found by a fingerprint of everything it follows from: the trainer's sources, versions, the
device, the shapes of the argument, and the caller's name for the function with all static values in it.

In-place changes of the arguments' tensors happen in the compiled function as well. Tensors that are read and written by
data-dependent index (the replay ring) stay outside: Inductor would copy them whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeVar

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from trainer import kernels
from trainer.lanes.tree import build, flatten, names_of, unflatten
from trainer.market.sources.read import cache_folder
from trainer.training import artifacts
from trainer.training.rehearsal import undone

A = TypeVar("A")
R = TypeVar("R")

_CODE, _CONSTANTS = "inductor", "safetensors"
_LOG = logging.getLogger(__name__)
_ROOT = Path(__file__).resolve().parents[1]
_OPTIONS = {
    # Indices come from the program itself and are tested eagerly; asserting them on the device would cost registers.
    "assert_indirect_indexing": False,
    # Kernels are tuned by their first run: on made-up inputs some would read wherever a random number leads.
    "triton.autotune_at_compile_time": False,
}


def compile_for(function: Callable[[A], R], argument: A, made: type[R], name: str) -> Callable[[A], R]:
    """``function`` compiled for a record shaped like ``argument``.

    Args:
        function: from a record of tensors to another one.
        argument: its tensors are not changed.
        made: type of the result.
        name: says which function it is, with every value in it that is no tensor of the argument.
    """
    folder = _folder()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))  # kernels and how they were tuned
    key = fingerprint(name, argument)
    made_before = _load(folder, key, next(iter(flatten(argument).values())).device)
    compiled, constants = _make(function, argument, folder, key) if made_before is None else made_before
    names = names_of(made)

    def call(argument: A) -> R:
        with torch.no_grad():
            outputs = compiled(*flatten(argument).values(), *constants)
        return build(made, dict(zip(names, outputs, strict=True)))

    return call


def is_kept(argument: Any, name: str) -> bool:
    """Whether :func:`compile_for` with these would find its code on disk."""
    return artifacts.load(_folder(), fingerprint(name, argument), (_CODE, _CONSTANTS)) is not None


def _folder() -> Path:
    return cache_folder() / "compiled"


def fingerprint(name: str, argument: Any) -> str:
    """SHA-256 of what compiled code follows from."""
    tensors = {path: (str(t.dtype), list(t.shape), list(t.stride())) for path, t in flatten(argument).items()}
    device = next(iter(flatten(argument).values())).device
    card = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    about = {
        "name": name,
        "tensors": tensors,
        "sources": _sources(),
        "torch": [torch.__version__, torch.version.cuda],
        "device": [str(device), "" if card is None else f"{card.name} {card.major}.{card.minor}"],
        "matmul": torch.get_float32_matmul_precision(),
        "options": _OPTIONS,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


@cache
def _sources() -> str:
    """SHA-256 of the trainer's code."""
    whole = hashlib.sha256()
    for path in sorted(_ROOT.rglob("*.py")):
        whole.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()


def _load(folder: Path, key: str, device: torch.device) -> tuple[Any, list[Tensor]] | None:
    from torch._inductor.standalone_compile import CompiledArtifact

    parts = artifacts.load(folder, key, (_CODE, _CONSTANTS))
    if parts is None:
        return None
    if device.type == "cuda":
        _know_operators()
    try:
        named = load_tensors(parts[_CONSTANTS].read_bytes())
        compiled = CompiledArtifact.load(path=str(parts[_CODE]), format="binary")
    except Exception as error:  # whatever its reader does not like: it is made again
        _LOG.warning("%s cannot be used again: %r", parts[_CODE], error)
        return None
    return compiled, [named[at].to(device if at.endswith(device.type) else "cpu") for at in sorted(named)]


def _know_operators() -> None:
    """Compiled code calls the kernels' operators by name, and importing their modules is what makes the names known."""
    for module in iter_modules(kernels.__path__):
        import_module(f"{kernels.__name__}.{module.name}")


def _make(function: Callable[[A], R], argument: A, folder: Path, key: str) -> tuple[Any, list[Tensor]]:
    import torch._inductor as inductor

    names, tensors = zip(*flatten(argument).items(), strict=True)

    def flat(*tensors: Tensor) -> list[Tensor]:
        return list(flatten(function(unflatten(argument, dict(zip(names, tensors, strict=True))))).values())

    with undone(argument, 1):
        function(argument)  # constants that the code keeps must exist before it sees fake tensors
    graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    constants = _lift_constants(graph)
    compiled = inductor.standalone_compile(
        graph,
        [*tensors, *constants],
        dynamic_shapes="from_example_inputs",
        options={"config_patches": _OPTIONS},
    )
    named = {f"{at:04d} {each.device.type}": each.detach().cpu().clone() for at, each in enumerate(constants)}
    try:
        artifacts.store(
            folder,
            key,
            {
                _CODE: lambda path: compiled.save(path=str(path), format="binary"),
                _CONSTANTS: lambda path: path.write_bytes(save_tensors(named)),
            },
        )
    except Exception as error:  # what is not kept is made again by the next process; this one has it
        _LOG.warning("compiled code cannot be kept for the next start: %r", error)
    return compiled, constants


def _lift_constants(graph: GraphModule) -> list[Tensor]:
    """Make the tensors that the code keeps inputs of the graph, after the others, so that what is loaded has them."""
    constants: dict[str, Tensor] = {}
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    inputs: dict[str, Node] = {}
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        if node.target not in inputs:
            constants[node.target] = getattr(graph, node.target).contiguous()  # as it is kept
            with graph.graph.inserting_after(last):
                last = inputs[node.target] = graph.graph.placeholder(f"constant_{len(constants)}")
        node.replace_all_uses_with(inputs[node.target])
        graph.graph.erase_node(node)
    for name, _ in [*graph.named_buffers(), *graph.named_parameters()]:
        delattr(graph, name)
    graph.recompile()
    return list(constants.values())
