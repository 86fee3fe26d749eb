"""Lanes beside one process per trial on the same card, under MPS too, and beside ``torch.func.vmap``::

    python -m benchmarks.gpu_processes [--out benchmarks/results/h200_DATE_processes] [--seconds 5]
        [--variants plain eager captured] [--processes 1 8 16] [--vmap 8 32 128] [--ours gpu.json] [--no-mps]
    python -m benchmarks.gpu_processes --device cpu --tiny     # the same mechanics in two minutes

Every process trains one lane of the reference network (:func:`benchmarks.gpu.reference`, batch 512, 64k transitions) by
learn steps alone; they begin at one moment and train for the same time. The number is the sum of their steps a second.

plain      an ``nn.Module``, Adam(fused), double DQN, prioritised replay: what one writes today (gpu_plain.py)
eager      our own step without compilation or capture, one lane
captured   our own step compiled and as a CUDA graph, one lane: the strongest process per trial that we know
vmap       the plain network stacked, ``vmap(grad)``, one process; the largest stack under ``torch.compile`` too

Ours is one process with 128 lanes, from ``--ours`` or measured first. Children that do not answer in time are killed,
and the table says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.children import Child, ChildError, end_all, orders, say, together
from benchmarks.gpu_table import Line, default_out, markdown, write

LANES = 128
OURS = f"learn, {LANES} lanes"
UNIT = "learner steps/s"
BARS = {"plain": 100.0, "eager": 100.0, "captured": 20.0}
READY_S = {"captured": 240.0, "ours": 300.0, "vmap compiled": 90.0}
OTHERS_READY_S = 120.0
ANSWER_S = 20.0  # of the MPS control
LATE_S = 20.0  # a child that should have stopped has this long to say so
ABOUT = """Learner steps a second, all processes together (`python -m benchmarks.gpu_processes`). Every process trains
one lane of the reference network by learn steps alone, batch 512. *plain* is PyTorch as one writes it today, *eager*
and *captured* are our own step with one lane, *vmap* stacks the plain network in one process. Ours is one process of
128 lanes."""


@dataclass
class Found:
    """What was measured so far; told and written as it comes."""

    out: Path
    ours: float | None = None
    totals: dict[str, float] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, total: float, **more: Any) -> None:
        self.totals[name] = total
        self.values |= {f"{name}, {what}": value for what, value in more.items()}
        ratio = "" if not self.ours else f", ours is {self.ours / total:.1f} times that"
        print(f"{name}: {total:,.1f} {UNIT}{ratio} {more or ''}", flush=True)
        self.write()

    def failed(self, name: str, because: str) -> None:
        self.failures[name] = because
        print(f"{name}: not measured ({because})", flush=True)
        self.write()

    def lines(self) -> list[Line]:
        """Ours beside each peer."""
        ours = self.ours if self.ours is not None else float("nan")
        return [Line(OURS, ours, UNIT, peer=name, theirs=total, bar=_bar(name)) for name, total in self.totals.items()]

    def write(self) -> None:
        told = "\n".join(f"- {name}: not measured ({because})" for name, because in self.failures.items())
        failures = f"\n\n{told}" if told else ""
        values = {**self.values, "not measured": self.failures}
        write(
            self.out,
            "One process per trial on one card",
            ABOUT + failures,
            self.lines(),
            values,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or be one of the processes measured."""
    asked = parse(arguments)
    if asked.child is not None:
        child(asked)
        return
    found = compare(asked)
    print(markdown(found.lines()))


def compare(asked: argparse.Namespace, ours: float | None = None) -> Found:
    """Everything asked for; ``ours`` where it was measured before."""
    found = Found(asked.out, ours)
    if ours is not None:
        found.values["ours from"] = "the same run"
    elif asked.ours is not None:
        found.ours = ours_of(json.loads(asked.ours.read_text(encoding="utf-8")))
        found.values["ours from"] = asked.ours.name
    else:
        found.ours = _alone(asked, "ours", found, f"ours, {asked.lanes} lanes")
    for variant in asked.variants:
        _crowd(asked, variant, asked.processes, found)
    if asked.device == "cuda" and not asked.no_mps:
        with mps() as (environment, because):
            for variant in asked.variants if environment else ():
                _crowd(asked, variant, [n for n in asked.processes if n > 1], found, environment)
            if not environment:
                found.failed("MPS", because)
    for lanes in asked.vmap:
        _alone(asked, "vmap", found, f"vmap over {lanes} modules", lanes)
    for lanes in sorted(asked.vmap)[-1:]:
        _alone(asked, "vmap compiled", found, f"vmap compiled over {lanes} modules", lanes)
    return found


def ours_of(values: Mapping[str, Any]) -> float:
    """The 128-lane learn rate in a results file of :mod:`benchmarks.gpu`, the best precision there."""
    rates = [v for name, v in values.items() if name.startswith("learn") and f"{LANES} x 512" in name]
    if not rates:
        raise SystemExit(f"--ours: no 'learn ..., {LANES} x 512' in it")
    return float(max(rates))


def _crowd(
    asked: argparse.Namespace,
    variant: str,
    counts: Sequence[int],
    found: Found,
    mps_environment: Mapping[str, str] | None = None,
) -> None:
    """Start as many processes as the largest crowd needs, then let so many of them train at once."""
    environment = mps_environment or {}
    most, name = max(counts, default=1), f"{variant}, MPS" if mps_environment else variant
    ready_s = READY_S.get(variant, OTHERS_READY_S)
    with tempfile.TemporaryDirectory(prefix="paceline-processes-") as folder:
        logs = [Path(folder) / f"{index}.log" for index in range(most)]
        started = time.monotonic()
        children = [_child(asked, variant, 1, logs[0], environment)]
        try:
            first = children[0].hear(ready_s)  # alone: what it compiles the others find on disk
            single = {**environment, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
            children += [_child(asked, variant, 1, log, single) for log in logs[1:]]
            deadline = time.monotonic() + ready_s
            for each in children[1:]:
                each.hear(deadline - time.monotonic())
            print(f"{name}: {most} processes ready in {time.monotonic() - started:.0f} s ({first})", flush=True)
            for count in counts:
                total, rates = _together(children[:count], asked.seconds)
                found.add(f"{name}, {count} processes", total, slowest=min(rates), fastest=max(rates))
        except ChildError as error:
            found.failed(name, str(error))
        finally:
            end_all(children)


def _alone(asked: argparse.Namespace, variant: str, found: Found, name: str, lanes: int | None = None) -> float | None:
    """One process with many lanes."""
    count = asked.lanes if lanes is None else lanes
    with tempfile.TemporaryDirectory(prefix="paceline-processes-") as folder:
        one = _child(asked, variant, count, Path(folder) / "0.log", {})
        try:
            one.hear(READY_S.get(variant, OTHERS_READY_S))
            steps, _ = _together([one], asked.seconds)
        except ChildError as error:
            found.failed(name, str(error))
            return None
        finally:
            end_all([one])
    if variant == "ours":
        print(f"{name}: {steps * count:,.0f} {UNIT}", flush=True)
    else:
        found.add(name, steps * count)
    return steps * count


def _together(children: Sequence[Child], seconds: float) -> tuple[float, list[float]]:
    """Steps a second of all of them, training from one moment on; and each one's own."""
    said = together(children, seconds + LATE_S, seconds=seconds)
    rates = [one["steps"] / one["seconds"] for one in said]
    return sum(rates), rates


def _child(asked: argparse.Namespace, variant: str, lanes: int, log: Path, environment: Mapping[str, str]) -> Child:
    arguments = ["benchmarks.gpu_processes", "--child", variant, "--lanes", str(lanes), "--device", asked.device]
    return Child([*arguments, *(["--tiny"] if asked.tiny else [])], log, environment)


@contextlib.contextmanager
def mps() -> Iterator[tuple[dict[str, str], str]]:
    """A Multi-Process Service of our own: the variables that lead to it, none and a reason where it does not start.

    It lives in folders of its own and changes no setting of the card.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield {}, "no nvidia-cuda-mps-control here"
        return
    with tempfile.TemporaryDirectory(prefix="paceline-mps-") as folder:
        ours = {f"CUDA_MPS_{kind}_DIRECTORY": str(Path(folder) / kind.lower()) for kind in ("PIPE", "LOG")}
        for path in ours.values():
            Path(path).mkdir()
        said = Path(folder) / "said"

        def ask(*arguments: str, text: str = "") -> bool:
            with said.open("w") as file:  # no pipe: the daemon would keep it open
                try:
                    done = subprocess.run(
                        [control, *arguments],
                        input=text,
                        env={**os.environ, **ours},
                        stdout=file,
                        stderr=file,
                        text=True,
                        timeout=ANSWER_S,
                    )
                except (OSError, subprocess.SubprocessError) as error:
                    file.write(str(error))
                    return False
            return done.returncode == 0

        if not ask("-d"):
            yield {}, f"it did not start: {said.read_text().strip()}"
            return
        try:
            yield ours, ""
            asked = ask(text="get_server_list")
            servers = said.read_text().strip() if asked else ""
            print(f"MPS servers: {servers or 'none, so no process went through it'}", flush=True)
        finally:
            ask(text="quit")


def child(asked: argparse.Namespace) -> None:
    """Get ready, say so, train when told, say how far that went; until the parent's end of the pipe closes."""
    import torch

    torch.set_num_threads(1)
    began = time.monotonic()
    device = torch.device(asked.device)
    step, each = _learner(asked.child, asked.lanes, device, tiny=asked.tiny)
    for _ in range(3):
        step()
    _wait(device)
    say(ready=round(time.monotonic() - began, 1))
    for order in orders():
        steps, seconds = _train(step, each, order["seconds"], device)
        say(steps=steps, seconds=seconds)


def _train(step: Callable[[], None], each: int, seconds: float, device: Any) -> tuple[int, float]:
    """Steps for so long, ``each`` a call; at most two calls wait for the card."""
    import torch

    began, steps = time.monotonic(), 0
    marks: deque[Any] = deque()
    while time.monotonic() - began < seconds:
        step()
        steps += each
        if device.type == "cuda":
            mark = torch.cuda.Event()
            mark.record()
            marks.append(mark)
            if len(marks) > 2:
                marks.popleft().synchronize()
    _wait(device)
    return steps, time.monotonic() - began


def _wait(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()


def _learner(variant: str, lanes: int, device: Any, *, tiny: bool) -> tuple[Callable[[], None], int]:
    """A call that takes learn steps of all lanes, and how many it takes."""
    import torch

    from trainer.training.lane_state import network_shape
    from trainer.training.prepare import prepare

    ours = variant in ("eager", "captured", "ours")
    config = _config(compiled=ours and variant != "eager" and device.type == "cuda", tiny=tiny)
    prepared = prepare(config, device)
    if ours:
        each = 1 if variant == "eager" or device.type == "cpu" else 16
        return _own(config, prepared, lanes, device, each), each
    from benchmarks.gpu_plain import Learner, Vmapped

    torch.set_float32_matmul_precision("high")
    shape, batch, size = network_shape(config, prepared), config.training.batch, config.replay.capacity
    match variant:
        case "plain":
            return Learner(shape, batch, size, device).step, 1
        case "vmap" | "vmap compiled":
            return Vmapped(shape, lanes, batch, size, device, compiled=variant == "vmap compiled").step, 1
    raise SystemExit(f"--child {variant}: no such learner")


def _own(config: Any, prepared: Any, lanes: int, device: Any, each: int) -> Callable[[], None]:
    """Our learn step over a full ring, captured where it is compiled."""
    from benchmarks.gpu import many_lanes
    from trainer.training.capture import Parts, Steps, matmul_precision
    from trainer.training.group import LaneGroup

    group, state = LaneGroup(config, prepared, device), many_lanes(config, prepared, lanes, device)
    uncompiled = replace(group.setting, training=config.training.model_copy(update={"compile": False}))
    filling = Steps(Parts(uncompiled), state, group.validation_steps, capture=False)
    steps = Steps(Parts(group.setting), state, group.validation_steps, capture=config.training.compile)

    def step() -> None:
        with matmul_precision(config.training.precision):
            steps.learn(each)

    with matmul_precision(config.training.precision):
        filling.collect(state.replay.ring.length)
    return step


def _config(*, compiled: bool, tiny: bool) -> Any:
    from benchmarks.gpu import reference

    config = reference(precision="bf16", compile=compiled)
    if not tiny:
        return config
    small: dict[str, dict[str, Any]] = {
        "agent": {"hidden": 32, "bottleneck_dim": 8, "flow_dim": 8},
        "training": {"batch": 64, "episodes": 64},
        "replay": {"capacity": 1024},
    }
    return config.model_copy(update={part: getattr(config, part).model_copy(update=new) for part, new in small.items()})


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="results without suffix; .json and .md are written")
    parser.add_argument("--ours", type=Path, help="JSON of benchmarks.gpu; left out: ours is measured here")
    parser.add_argument("--variants", nargs="*", default=["plain", "eager", "captured"], choices=list(BARS))
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--vmap", type=int, nargs="*", default=[8, 32, 128], help="stacked modules")
    parser.add_argument("--seconds", type=float, default=5.0, help="training of each crowd")
    parser.add_argument("--no-mps", action="store_true")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the mechanics on a CPU")
    parser.add_argument("--lanes", type=int, default=LANES, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.out is None:
        asked.out = default_out("_processes")
    return asked


def _bar(name: str) -> float | None:
    counted = name.endswith((", 8 processes", ", 16 processes"))
    return BARS.get(name.partition(",")[0]) if counted and "MPS" not in name else None


if __name__ == "__main__":
    main()
