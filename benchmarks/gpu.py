"""Speed of the captured steps on one NVIDIA GPU, beside peers on the same card and beside what the card could do::

    python -m benchmarks.gpu [--out benchmarks/results/h200_2026-12-01] [--lanes 1 8 32 128] [--precision bf16]
        [--no-peers] [--env] [--large-batch]

The reference network of design.md: state 96 (88 channels, 7 of the portfolio and the bias), hidden 256, 4 branches, 13
actions, 52 atoms; batch 512 per lane, 64k transitions per lane. Each number is the median of several rounds of graph
replays. The limit beside it is the rate that counted work allows: floating-point operations over the matrix rate, or
bytes (everything once) over the copy rate, whichever takes longer; both rates are measured in the same run. Peers are
those of :mod:`benchmarks.gpu_processes`, in the same run as well. A whole sweep is :mod:`benchmarks.gpu_sweep`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import gpu_processes
from benchmarks.gpu_table import Line, default_out, markdown, write
from trainer.agent.network import NetworkShape, layout
from trainer.config import TrialConfig
from trainer.env.actions import ACTIONS as JOINT
from trainer.env.actions import unflatten_action
from trainer.env.step import env_step
from trainer.lanes.random import Stream, randint
from trainer.lanes.tree import copy_, map_tensors, take
from trainer.training.capture import Parts, Steps, captured
from trainer.training.compiled import compile_for
from trainer.training.group import LaneGroup
from trainer.training.lane_state import LaneState, new_lanes
from trainer.training.prepare import Prepared, prepare

GPU = torch.device("cuda")


def reference(**training: Any) -> TrialConfig:
    """The reference network and batch on the embedded market."""
    return TrialConfig.model_validate(
        {
            "market": {"synthetic": {"preset": "hard"}},
            "env": {"session_episodes": True},
            "agent": {"hidden": 256, "blocks": 2, "atoms": 52, "bottleneck_dim": 64, "flow_dim": 24},
            "replay": {"capacity": 65_536},
            "training": {"episodes": 1024, "batch": 512, "collect_steps": 64, "learn_steps": 64} | training,
        }
    )


@dataclass(frozen=True)
class Card:
    """Rates measured in this run."""

    name: str
    copy_bytes_per_s: float  # read plus written
    matmul_flops: dict[str, float]  # by precision


@dataclass(frozen=True)
class Row:
    """One measured number and its floors, seconds a step of all lanes."""

    what: str
    seconds: float
    per_second: float  # lane-steps or environment steps
    unit: str
    flops: float
    bytes: float
    bar: float | None = None

    def line(self, card: Card) -> Line:
        """Beside the rate that the larger floor allows."""
        matmul = card.matmul_flops[next((p for p in card.matmul_flops if p in self.what), "tf32")]
        floor = max(self.flops / matmul, self.bytes / card.copy_bytes_per_s)
        limit = self.per_second * self.seconds / floor if floor else None
        note = f"{self.seconds * 1e6:,.1f} us a step, floor {floor * 1e6:,.1f} us" if floor else ""
        return Line(self.what, self.per_second, self.unit, limit=limit, bar=self.bar, note=note)


BARS = {"learn 128 x 512": 60_000.0, "learn 1 x 512": 6_000.0, "learn 8 x 8192": 4_500.0, "collect 128 x 512": 50e6}
"""Aimed at, by kind of step, lanes and batch."""
ABOUT = """`python -m benchmarks.gpu`: reference network (state 95, hidden 256, 4 branches, 13 actions, 52 atoms), batch
512 and 65,536 transitions per lane, 1,024 episodes per lane; medians of CUDA-graph replays. *Of the limit*: ours over
the rate that counted work allows at the measured copy and matrix rates."""


def main() -> None:
    """Measure, print the table, write it."""
    asked = _parse()
    card = measure_card()
    print(card, flush=True)
    lines: list[Line] = []
    prepared = prepare(reference(), GPU)
    compiles = not asked.no_compile
    sizes = [(lanes, 512) for lanes in asked.lanes] + ([(8, 8192)] if asked.large_batch else [])
    for precision in asked.precision:
        for lanes, batch in sizes:
            config = reference(precision=precision, compile=compiles, batch=batch)
            lines += [row.line(card) for row in measure(config, prepared, lanes, asked.profile)]
            report(asked.out, card, lines)
    if asked.env:
        lines += [row.line(card) for row in measure_env(reference(compile=compiles), prepared, 128)]
        report(asked.out, card, lines)
    if not asked.no_peers:
        lines += peers(asked.out, lines)
        report(asked.out, card, lines)
    print(markdown(lines))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="results without suffix; .json and .md are written")
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--precision", nargs="+", default=["bf16"])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--profile", type=Path, help="folder for kernel tables")
    parser.add_argument("--env", action="store_true", help="environment steps too")
    parser.add_argument("--large-batch", action="store_true", help="8 lanes x batch 8,192 too")
    asked = parser.parse_args()
    if asked.out is None:
        asked.out = default_out()
    return asked


def peers(out: Path, lines: Sequence[Line]) -> list[Line]:
    """Processes and stacked modules on the same card, beside the best 128-lane rate of ``lines``."""
    ours = [line.ours for line in lines if line.what.startswith("learn") and "128 x 512" in line.what]
    torch.cuda.empty_cache()
    beside = out.with_name(out.name + "_processes")
    options = f"--no-mps --variants plain captured --processes 8 16 --vmap 128 --out {beside}"
    return gpu_processes.compare(gpu_processes.parse(options.split()), max(ours, default=None)).lines()


def report(out: Path, card: Card, lines: Sequence[Line]) -> None:
    """Write what there is so far."""
    rates = {f"matmul {name}, FLOP/s": rate for name, rate in card.matmul_flops.items()}
    matmul = ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in card.matmul_flops.items())
    about = f"{ABOUT} Copy {card.copy_bytes_per_s / 1e12:.2f} TB/s; matrix products, TFLOP/s: {matmul}."
    write(out, card.name, about, lines, {"copy, bytes/s": card.copy_bytes_per_s, **rates})


def measure(config: TrialConfig, prepared: Prepared, lanes: int, profile: Path | None) -> list[Row]:
    """Collect, learn and evaluation steps at one capacity."""
    training = config.training
    group = LaneGroup(config, prepared, GPU)
    state = many_lanes(config, prepared, lanes)
    started = time.perf_counter()
    steps = Steps(Parts(group.setting), state, group.validation_steps, capture=True)
    steps.collect(0)
    steps.learn(0)
    steps.rollout()
    torch.cuda.synchronize()
    ready = time.perf_counter() - started
    name = f"{training.precision}{' compiled' if training.compile else ''}, {lanes} x {training.batch}"
    steps.collect(state.replay.ring.length)
    torch.cuda.synchronize()
    collect = median_seconds(lambda: steps.collect(8)) / 8
    learn = (
        median_seconds(lambda: steps.learn(64), repeats=1) / 64
    )  # as in an epoch: beginning one copies the parameters
    evaluate = median_seconds(steps.rollout, rounds=3) / group.validation_steps
    slots = state.fold.validation.start_LV.shape[1]
    print(
        f"{name}: ready in {ready:.1f} s, collect {collect * 1e6:.0f} us, learn {learn * 1e6:.0f} us, "
        f"evaluate {evaluate * 1e6:.0f} us, memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB",
        flush=True,
    )
    if profile is not None:
        for kind, step in (("learn", steps.learn), ("collect", steps.collect)):
            table = kernels(step, 4)
            (profile / f"{kind}_{lanes}_{training.batch}_{training.precision}.txt").write_text(table)
            print(f"{name} {kind}\n" + "\n".join(table.splitlines()[:22]), flush=True)
    shape, size = group.setting.shape, 2 if training.precision == "bf16" else 4
    return [
        Row(
            f"learn {name}",
            learn,
            lanes / learn,
            "lane-steps/s",
            *learn_work(shape, lanes, training.batch, size),
            bar=BARS.get(f"learn {lanes} x {training.batch}"),
        ),
        Row(
            f"collect {name}, {training.episodes} episodes",
            collect,
            lanes * training.episodes / collect,
            "env steps/s, policy",
            *policy_work(shape, lanes, training.episodes, size),
            bar=BARS.get(f"collect {lanes} x {training.batch}"),
        ),
        Row(
            f"evaluate {name}, {slots} slots",
            evaluate,
            lanes * slots / evaluate,
            "env steps/s, greedy",
            *policy_work(shape, lanes, slots, 4),
        ),
        Row(f"start-up {name}", ready, ready, "s", 0.0, 0.0, bar=10.0),
    ]


def measure_env(config: TrialConfig, prepared: Prepared, lanes: int) -> list[Row]:
    """The environment alone, with random actions."""
    from trainer.training.collect import new_episodes

    group = LaneGroup(config, prepared, GPU)
    state = many_lanes(config, prepared, lanes)
    counted = group.setting

    @dataclass(frozen=True)
    class World:
        market: Any
        session_start_S: Tensor
        state: LaneState

    def bar(world: World) -> Paid:
        lane, setting = world.state, replace(counted, market=world.market, session_start_S=world.session_start_S)
        episodes = (config.training.episodes,)
        joint_LE = randint(lane.counters.seed_L, Stream.BASELINE, lane.counters.collect_L, episodes, JOINT)
        with torch.no_grad():
            step = env_step(lane.env_params, world.market, lane.env, unflatten_action(joint_LE))
            fresh = new_episodes(setting, lane)

            def pick(kept: Tensor, new: Tensor) -> Tensor:
                over = step.state.done_LE if kept.dim() == 2 else step.state.done_LE.unsqueeze(-1)
                return torch.where(over, new, kept)

            copy_(lane.env, map_tensors(pick, step.state, fresh))
            lane.counters.collect_L.add_(1)
        return Paid(step.reward_LE)

    world = World(counted.market, counted.session_start_S, state)
    function = compile_for(bar, world, Paid, "environment alone") if config.training.compile else bar

    def step(world: World) -> None:
        function(world)

    replay = captured(step, world, torch.cuda.graph_pool_handle())
    for _ in range(64):
        replay()
    seconds = median_seconds(replay)
    moved = sum(t.numel() * t.element_size() for t in vars(state.env).values()) * 2
    count = lanes * config.training.episodes
    return [
        Row(
            f"environment, {lanes} lanes x {config.training.episodes}",
            seconds,
            count / seconds,
            "env steps/s, random",
            0.0,
            float(moved),
            bar=500e6,
        )
    ]


@dataclass(frozen=True)
class Paid:
    """What the environment paid."""

    reward_LE: Tensor


def many_lanes(config: TrialConfig, prepared: Prepared, lanes: int, device: torch.device = GPU) -> LaneState:
    """Lanes of one fold that differ in their seeds."""
    one = new_lanes(config, prepared, prepared.folds[:1], device)
    state = take(one, torch.zeros(lanes, dtype=torch.int64, device=device))
    state.counters.seed_L.copy_(torch.arange(lanes, device=device) + 1)
    return state


def median_seconds(call: Callable[[], Any], rounds: int = 9, repeats: int = 4) -> float:
    """Median over rounds of the mean of ``repeats`` calls, by device events."""
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e-3 / repeats)
    return float(statistics.median(times))


def measure_card() -> Card:
    """Copy rate and matrix rates of this card, on random data."""
    big = torch.randn(2**29, device=GPU)
    other = torch.empty_like(big)
    copy = 2 * big.numel() * 4 / median_seconds(lambda: other.copy_(big))
    rates = {}
    for precision, dtype in (("bf16", torch.bfloat16), ("tf32", torch.float32), ("float32", torch.float32)):
        torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
        a = torch.randn(8192, 8192, device=GPU, dtype=dtype)
        b = torch.randn(8192, 8192, device=GPU, dtype=dtype)
        rates[precision] = 2 * 8192**3 / median_seconds(partial(torch.matmul, a, b), rounds=5)
    torch.set_float32_matmul_precision("highest")
    return Card(torch.cuda.get_device_name(), copy, rates)


def weights_of(shape: NetworkShape) -> int:
    """Multiplications of one row through the network."""
    named = dict(zip(layout(shape).names, layout(shape).shapes, strict=True))
    return sum(torch.Size(s).numel() for name, s in named.items() if "gain" not in name and "bias" not in name)


def activations_of(shape: NetworkShape) -> int:
    """Values that one row must write and read once: each layer's output (no logits)."""
    return shape.channels + shape.hidden * (1 + 2 * shape.blocks)


def learn_work(shape: NetworkShape, lanes: int, batch: int, size: int) -> tuple[float, float]:
    """FLOPs and bytes of a learn step: three passes forward, one back (twice the work); optimizer state once."""
    rows = lanes * batch
    flops = 2.0 * weights_of(shape) * rows * 5
    moved = layout(shape).size * lanes * 4 * 9 + activations_of(shape) * rows * size * (3 + 2) * 2
    return flops, float(moved + rows * shape.features * 4 * 2)


def policy_work(shape: NetworkShape, lanes: int, rows_each: int, size: int) -> tuple[float, float]:
    """FLOPs and bytes of one pass of the network."""
    rows = lanes * rows_each
    moved = layout(shape).size * lanes * size + activations_of(shape) * rows * size * 2 + rows * shape.features * 4
    return 2.0 * weights_of(shape) * rows, float(moved)


def kernels(step: Callable[[int], Any], steps: int) -> str:
    """Time by kernel, microseconds a step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step(steps)
        torch.cuda.synchronize()
    found = [(e.self_device_time_total / steps, e.count / steps, e.key) for e in seen.key_averages()]
    found = sorted((f for f in found if f[0] > 0), reverse=True)
    total, count = sum(f[0] for f in found), sum(f[1] for f in found)
    lines = [f"{total:9.1f} us {count:6.1f} kernels"]
    return "\n".join(lines + [f"{us:9.1f} us {n:6.1f} x {key[:110]}" for us, n, key in found])


if __name__ == "__main__":
    main()
