"""The steps of a lane group as CUDA graphs (S43); on the CPU the same steps run as they are written.

What: one graph each for the collect step, the learn step and one bar of the greedy rollout, all over the group's own
tensors. A replay draws fresh random numbers and sees changed hyperparameters, because counters and hyperparameters are
tensors of the lane state. A graph belongs to one capacity: groups on a GPU hold a state of one of the :data:`LADDER`'s
sizes, put lanes into free rows and let idle rows compute along.

Legend: L rows of the state (lanes, idle ones included), V slots, S steps, D parameters of one lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from trainer.agent.network import layout
from trainer.env.state import EnvParams, EnvState
from trainer.evaluation.backtest import Happened, Rollout, Slots, begin, empty_happened, joined, rollout_step
from trainer.evaluation.policy import Policy
from trainer.fields import field_kind, walk
from trainer.lanes.tree import copy_, map_tensors
from trainer.market.market import Market
from trainer.training.collect import Collected, Setting, store_, trade
from trainer.training.compiled import compile_for, is_kept
from trainer.training.lane_state import LaneState, policy_of
from trainer.training.learn import Learned, Narrow, improve_, store_priorities_
from trainer.training.rehearsal import undone

A = TypeVar("A")
R = TypeVar("R")

LADDER = (1, 8, 16, 32, 64, 96, 128, 160)
"""Capacities that are captured; larger groups come in multiples of the last."""
_REHEARSALS = 2
_ARGUMENTS = ("training", "market", "session_start_S")  # of a setting; what is static in the first is taken apart


def capacity_of(lanes: int, device: torch.device) -> int:
    """Rows of the state that holds ``lanes``: on a GPU the next size of the ladder, elsewhere exactly as many."""
    if device.type != "cuda" or lanes == 0:
        return lanes
    fitting = [size for size in LADDER if size >= lanes]
    return fitting[0] if fitting else -(-lanes // LADDER[-1]) * LADDER[-1]


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Let float32 matrix products use the tensor cores (``tf32``, ``bf16``) or not (``float32``)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class Work:
    """Every tensor that the collect and the learn step read or write."""

    market: Market
    session_start_S: Tensor
    state: LaneState
    narrow: Narrow
    loss_L: Tensor  # float64, sum over the epoch's learn steps


@dataclass(frozen=True)
class Play:
    """Every tensor that one bar of the greedy rollout reads or writes."""

    market: Market
    policy: Policy
    env_params: EnvParams
    validation: Slots
    env_LV: EnvState
    happened_SLV: Happened
    bar_1: Tensor  # int64, the step that comes next


@dataclass(frozen=True)
class Played:
    """Result of one bar of the rollout."""

    happened_LV: Happened
    env_LV: EnvState


class Parts:
    """What a step computes, compiled for one capacity where the setting asks for it; made when first needed."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._made: dict[str, Callable[[Any], Any]] = {}

    def collect_(self, work: Work) -> None:
        """One collect step."""
        store_(work.state, self._part("trade", self._trade, work, Collected))

    def learn_(self, work: Work) -> None:
        """One learn step."""
        seen = self._part("improve", self._improve, work, Learned)
        store_priorities_(work.state, seen)
        work.loss_L.add_(seen.loss_L)

    def evaluate_(self, play: Play) -> None:
        """One bar of the greedy rollout."""
        seen = self._part("bar", self._bar, play, Played)
        map_tensors(
            lambda whole, one: whole.index_copy_(0, play.bar_1, one.unsqueeze(0)), play.happened_SLV, seen.happened_LV
        )
        copy_(play.env_LV, seen.env_LV)
        play.bar_1.add_(1)

    def kept(self, work: Work, play: Play) -> bool:
        """Whether nothing has to be compiled to run these steps: it is here, or was kept on disk."""
        needed: dict[str, Any] = {"trade": work, "improve": work, "bar": play} if self._compiles else {}
        return all(name in self._made or is_kept(of, self._about(name)) for name, of in needed.items())

    @property
    def _compiles(self) -> bool:
        return self.setting.training.compile and self.setting.market.close_N.is_cuda

    def _about(self, name: str) -> str:
        return f"{name} {_static_values(self.setting)}"

    def _part(self, name: str, function: Callable[[A], R], argument: A, made: type[R]) -> R:
        if name not in self._made:
            compiles = self._compiles
            self._made[name] = compile_for(function, argument, made, self._about(name)) if compiles else function
        result: R = self._made[name](argument)
        return result

    def _trade(self, work: Work) -> Collected:
        return trade(self._over(work), work.state, layout(self.setting.shape).views(work.narrow.online_LD))

    def _improve(self, work: Work) -> Learned:
        return improve_(self._over(work), work.state, work.narrow)

    def _bar(self, play: Play) -> Played:
        window, policy = self.setting.training.window, self.setting.policy(play.policy)
        happened, env = rollout_step(
            play.env_params, play.market, play.policy.normaliser, window, policy, 0, play.env_LV
        )
        return Played(happened, env)

    def _over(self, work: Work) -> Setting:
        return replace(self.setting, market=work.market, session_start_S=work.session_start_S)


class Steps:
    """The steps of one state: its tensors are kept and changed in place.

    Args:
        parts: compiled parts, shared by all states of one capacity.
        validation_steps: bars of the longest validation slot.
        capture: replay the steps as CUDA graphs.
        pool: memory that they share with graphs which never run at the same time; their own if left out.
    """

    def __init__(
        self, parts: Parts, state: LaneState, validation_steps: int, *, capture: bool, pool: Any = None
    ) -> None:
        self.parts, self.state, self._validation_steps = parts, state, validation_steps
        setting = parts.setting
        self._work = Work(
            market=setting.market,
            session_start_S=setting.session_start_S,
            state=state,
            narrow=Narrow.of(setting, state),
            loss_L=torch.zeros(len(state.params_LD), dtype=torch.float64, device=state.params_LD.device),
        )
        self._capture = capture
        self._pool = torch.cuda.graph_pool_handle() if capture and pool is None else pool
        self._made: dict[str, Callable[[], None]] = {}
        self._play: Play | None = None

    @property
    def captured(self) -> bool:
        """Whether the steps are CUDA graphs."""
        return self._capture

    def collect(self, steps: int) -> None:
        """Advance all episodes by ``steps`` bars."""
        collect = self._ready("collect", self.parts.collect_, self._work)
        self._refresh()
        for _ in range(steps):
            collect()

    def learn(self, steps: int) -> Tensor:
        """Take ``steps`` gradient steps; returns the mean loss of each row, ``[L]`` float64."""
        learn = self._ready("learn", self.parts.learn_, self._work)
        self._refresh()
        self._work.loss_L.zero_()
        for _ in range(steps):
            learn()
        return self._work.loss_L / max(steps, 1)

    def rollout(self) -> Rollout:
        """The greedy agents over their validation ranges; its tensors are overwritten by the next call."""
        state, play = self.state, self._playing()
        evaluate = self._ready("evaluate", self.parts.evaluate_, play)
        copy_(play.env_LV, begin(state.env_params, self.parts.setting.market, state.fold.validation))
        play.bar_1.zero_()
        for _ in range(self._validation_steps):
            evaluate()
        return joined(play.happened_SLV, play.env_LV)

    def prepare(self) -> None:
        """Compile and capture everything now; changes no tensor of the state."""
        self._ready("collect", self.parts.collect_, self._work)
        self._ready("learn", self.parts.learn_, self._work)
        self._ready("evaluate", self.parts.evaluate_, self._playing())

    @property
    def kept(self) -> bool:
        """Whether nothing of this has to be compiled."""
        with matmul_precision(self.parts.setting.training.precision):  # code is kept for one
            return self.parts.kept(self._work, self._playing())

    def _playing(self) -> Play:
        if self._play is None:
            self._play = _play(self.parts.setting, self.state, self._validation_steps)
        return self._play

    def _refresh(self) -> None:
        """Follow masters that others may have written since: a lane joined."""
        narrow = self._work.narrow
        if narrow.online_LD.dtype != self.state.params_LD.dtype:
            copy_(narrow, Narrow.of(self.parts.setting, self.state))

    def _ready(self, name: str, step: Callable[[A], None], argument: A) -> Callable[[], None]:
        """The step as it is run; compiled and captured when first asked for, which changes no tensor of the state."""
        if name not in self._made:
            if not self._capture:
                self._made[name] = lambda: step(argument)
            else:
                with matmul_precision(self.parts.setting.training.precision):
                    self._made[name] = captured(step, argument, self._pool)
        return self._made[name]


def captured(step: Callable[[A], None], argument: A, pool: Any) -> Callable[[], None]:
    """``step(argument)`` as a CUDA graph; replays read and write the argument's tensors where they are now.

    The step is rehearsed first and what it did undone, so that libraries are loaded and kernels compiled; the tensors
    change at replays only.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with undone(argument, _REHEARSALS):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_REHEARSALS):
                step(argument)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # others may copy to the host meanwhile
        step(argument)
    return graph.replay


def _static_values(setting: Setting) -> str:
    """Everything in a setting that compiled code has inside; its tensors are arguments."""
    values: dict[str, object] = {
        path: value for path, field, value in walk(setting.training) if field_kind(field) == "static"
    }
    values |= {f.name: getattr(setting, f.name) for f in fields(setting) if f.name not in _ARGUMENTS}
    return repr(sorted(values.items()))


def _play(setting: Setting, state: LaneState, steps: int) -> Play:
    return Play(
        market=setting.market,
        policy=policy_of(state),
        env_params=state.env_params,
        validation=state.fold.validation,
        env_LV=map_tensors(torch.clone, begin(state.env_params, setting.market, state.fold.validation)),
        happened_SLV=empty_happened(steps, state.fold.validation),
        bar_1=torch.zeros(1, dtype=torch.int64, device=state.params_LD.device),
    )
