"""Compiled code is made once, kept on disk and loaded by other processes without being traced again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.library import custom_op

from trainer.lanes.tree import flatten, map_tensors
from trainer.training import artifacts, compiled
from trainer.training.compiled import compile_for, fingerprint

ROOT = Path(__file__).resolve().parents[3]
TABLE_5 = torch.linspace(0.5, 1.5, 5)


@custom_op("paceline_test::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return 2.0 * x


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@dataclass(frozen=True)
class Inner:
    moment_L5: Tensor


@dataclass(frozen=True)
class Before:
    x_L5: Tensor
    inner: Inner


@dataclass(frozen=True)
class After:
    loss_L: Tensor
    inner: Inner


def learn_(before: Before) -> After:
    """A custom operation, a constant of the code, a gradient, a change in place: what a learn step is made of."""
    leaf_L5 = before.x_L5.detach().requires_grad_()
    loss_L = (doubled(before.inner.moment_L5) * leaf_L5 * TABLE_5).square().sum(-1)
    (grad_L5,) = torch.autograd.grad(loss_L.sum(), leaf_L5)
    with torch.no_grad():
        before.x_L5.sub_(0.01 * grad_L5)
    return After(loss_L.detach(), Inner(before.inner.moment_L5 + grad_L5))


def record(lanes: int = 3) -> Before:
    generator = torch.Generator().manual_seed(lanes)
    return Before(torch.randn(lanes, 5, generator=generator), Inner(torch.randn(lanes, 5, generator=generator)))


def run(function: Callable[[Before], After]) -> dict[str, Tensor]:
    before = record()
    return {**flatten(function(before)), **flatten(before)}


def bits(found: dict[str, Tensor]) -> str:
    return " ".join(tensor.numpy().tobytes().hex() for tensor in found.values())


def script(cache: str) -> None:
    """Another process: it may not trace."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("traced")

    compiled.make_fx = refuse  # type: ignore[assignment]
    compiled.cache_folder = lambda: Path(cache)  # type: ignore[attr-defined]
    print(bits(run(compile_for(learn_, record(), After, "learn"))))


@pytest.mark.slow
def test_code_is_kept_loaded_elsewhere_without_tracing_and_made_again_where_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    traced: list[int] = []
    trace = compiled.make_fx
    monkeypatch.setattr(compiled, "make_fx", lambda *a, **k: traced.append(1) or trace(*a, **k))  # type: ignore[func-returns-value]

    argument = record()
    fresh = run(compile_for(learn_, argument, After, "learn"))
    assert bits(flatten(argument)) == bits(flatten(record()))  # compiling changed nothing
    for name, tensor in run(learn_).items():
        torch.testing.assert_close(fresh[name], tensor)
    assert len(traced) == 1

    where = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from {__name__} import script; script({str(tmp_path)!r})"
    other = subprocess.run([sys.executable, "-c", where], capture_output=True, text=True, cwd=ROOT, timeout=500)
    assert other.returncode == 0, other.stderr
    assert other.stdout.strip() == bits(fresh)

    (code,) = (tmp_path / "compiled").glob("*.inductor")
    code.write_bytes(code.read_bytes()[:-1])
    assert bits(run(compile_for(learn_, record(), After, "learn"))) == bits(fresh)
    assert len(traced) == 2


def test_a_fingerprint_follows_from_name_shapes_sources_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    one = fingerprint("a", record())
    assert one == fingerprint("a", map_tensors(torch.zeros_like, record()))
    wide = replace(record(), inner=Inner(torch.zeros(3, 5).T.contiguous().T))
    others = [fingerprint("b", record()), fingerprint("a", record(4)), fingerprint("a", wide)]
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_sources", lambda: "changed")
        others.append(fingerprint("a", record()))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if before == "highest" else "highest")
    others.append(fingerprint("a", record()))
    torch.set_float32_matmul_precision(before)
    assert len({one, *others}) == 6


def test_artifacts_are_whole_or_absent(tmp_path: Path) -> None:
    def stored(key: str, text: str) -> None:
        artifacts.store(
            tmp_path, key, {"a": lambda path: path.write_text(text), "b": lambda path: path.write_text("b")}
        )

    assert artifacts.load(tmp_path, "one", ("a", "b")) is None
    stored("one", "text")
    found = artifacts.load(tmp_path, "one", ("a", "b"))
    assert found is not None
    assert found["a"].read_text() == "text"
    stored("one", "other text")  # by a process that made it at the same time
    again = artifacts.load(tmp_path, "one", ("a", "b"))
    assert again is not None
    assert again["a"].read_text() == "other text"
    assert artifacts.load(tmp_path, "one", ("a", "c")) is None
    again["b"].write_text("damaged")
    assert artifacts.load(tmp_path, "one", ("a", "b")) is None
    (tmp_path / "one.json").write_text("[]")
    assert artifacts.load(tmp_path, "one", ("a", "b")) is None
    assert not list(tmp_path.glob("*.tmp"))


def test_a_part_that_cannot_be_written_leaves_no_entry(tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        artifacts.store(tmp_path, "one", {"a": broken})
    assert list(tmp_path.iterdir()) == []


def test_entries_that_nobody_used_for_a_month_go_when_another_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("old", "used"):
        artifacts.store(tmp_path, key, {"a": lambda path: path.write_text("x")})
    now = artifacts.time.time()
    monkeypatch.setattr(artifacts.time, "time", lambda: now + 1.1 * artifacts.UNUSED_S)
    artifacts.os.utime(tmp_path / "used.json", (now + artifacts.UNUSED_S,) * 2)
    artifacts.store(tmp_path, "new", {"a": lambda path: path.write_text("x")})
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"used", "new"}
