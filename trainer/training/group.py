"""A lane group: trials of one static signature, trained together as lanes of one state.

A trial's folds are admitted and evicted together, at epoch boundaries. What a lane computes depends on its own config,
seed and data alone, so trials come and go beside each other without changing a bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from trainer.agent import popart, support
from trainer.agent.explore import epsilon
from trainer.config import TrialConfig
from trainer.errors import UserError
from trainer.evaluation.backtest import Rollout, paths, rollout
from trainer.evaluation.lane_summary import lane_summaries
from trainer.evaluation.metrics import BacktestMetrics, Summary, metrics_of, summarise
from trainer.lanes.tree import concat, map_tensors, put_, take
from trainer.training.capture import LADDER, Parts, Steps, capacity_of, matmul_precision
from trainer.training.collect import Setting
from trainer.training.diagnostics import gradient_norms, learn_watched
from trainer.training.lane_state import LaneState, network_shape, new_lanes, policy_of, slots_of
from trainer.training.prepare import Prepared
from trainer.training.report import FoldReport, TrialReport


@dataclass(frozen=True)
class Resident:
    """A trial in the group."""

    trial_id: str
    config: TrialConfig
    epoch: int  # epochs finished
    folds: tuple[int, ...]
    lanes: tuple[int, ...] = ()  # its rows of the state, one per fold
    rungs: tuple[int, ...] = ()  # epochs at which its score is asked for, beside the last

    @property
    def validates(self) -> bool:
        """Whether the epoch just finished is one that validates: every n-th, and those that a score is made of."""
        training = self.config.training
        scored = any(rung - training.score_epochs < self.epoch <= rung for rung in (*self.rungs, training.epochs))
        return scored or self.epoch % training.validate_every == 0


class LaneGroup:
    """Holds and trains the lanes of trials that share ``config``'s static values.

    Args:
        config: any config of the signature; trials bring their own dynamic values.
        prepared: market and folds.
        device: where the lanes live.
    """

    def __init__(self, config: TrialConfig, prepared: Prepared, device: torch.device) -> None:
        self.signature = config.static_signature()
        self.prepared = prepared
        self.device = device
        self.setting = Setting(
            training=config.training,
            n_step=config.replay.n_step,
            session_episodes=config.env.session_episodes,
            symmetric=config.evaluation.symmetric,
            shape=network_shape(config, prepared),
            market=prepared.market,
            session_start_S=torch.from_numpy(prepared.session_start_S).to(device),
        )
        slots = [s for fold in prepared.folds for s in slots_of(config, prepared.table.session_N, fold.validation)]
        self.validation_steps = max(end - start for start, end in slots) - 1
        self.keeps_rows = device.type == "cuda"
        """Whether rows that the lanes left stay in memory: then another capacity costs no new graphs."""
        self._store: LaneState | None = None  # all rows in memory
        self._state: LaneState | None = None  # the first of them, as many as are computed
        self._steps: dict[int, Steps] = {}  # by capacity, over the store
        self._parts: dict[int, Parts] = {}  # by capacity
        self._kept: dict[int, bool] = {}  # capacities for which compiled code was there when it was looked for
        self._graphs: Any = None  # memory that all graphs of the store work in, one at a time
        self.residents: tuple[Resident, ...] = ()

    @property
    def lanes(self) -> int:
        """Live lanes."""
        return sum(len(resident.lanes) for resident in self.residents)

    @property
    def capacity(self) -> int:
        """Rows of the state, those that are computed; on a GPU some of them may be idle."""
        return 0 if self._state is None else len(self._state.params_LD)

    @property
    def state(self) -> LaneState:
        """The rows' tensors; a resident's ``lanes`` say which rows are its own.

        Raises:
            LookupError: the group is empty.
        """
        if self._state is None:
            raise LookupError("the lane group is empty")
        return self._state

    def admit(
        self, trial_id: str, config: TrialConfig, folds: Sequence[int] | None = None, rungs: Sequence[int] = ()
    ) -> None:
        """Start a trial: one lane per fold (all of them unless named).

        Raises:
            UserError: the trial's static values are not the group's.
        """
        self._check(config)
        chosen = [f for f in self.prepared.folds if folds is None or f.index in folds]
        state = new_lanes(config, self.prepared, chosen, self.device)
        trial = Resident(trial_id, config, 0, tuple(fold.index for fold in chosen), rungs=tuple(rungs))
        self._join(trial, state)

    def restore(self, trial: Resident, snapshot: LaneState) -> None:
        """Continue a trial as it was when :meth:`snapshot` was taken of it."""
        self._check(trial.config)
        self._join(trial, snapshot)

    def snapshot(self, trial_id: str) -> LaneState:
        """A copy of the trial's lanes: everything they need to continue bit for bit."""
        return take(self.state, self._rows(self.resident(trial_id).lanes))

    def evict(self, trial_id: str) -> None:
        """Remove a trial; its rows are given to others, or left out when the next epoch begins."""
        gone = self.resident(trial_id)
        self.residents = tuple(resident for resident in self.residents if resident is not gone)
        if not self.residents:
            self._store = self._state = self._graphs = None
            self._steps = {}

    def advance(self, capacity: int | None = None) -> tuple[TrialReport, ...]:
        """One epoch of every trial: collect, learn, validate those that are due. New ones are validated untrained.

        Args:
            capacity: rows of the state, idle ones included, at least one per lane; left out: as few as there may be.
        """
        training = self.setting.training
        seconds: dict[str, float] = {}
        with self._timed(seconds, "capture"):
            self._fit(capacity)
            state, steps = self.state, self._ready_steps()
        with self._timed(seconds, "validate"):  # here and not when they join: at a capacity that a rerun can replay
            untrained = self._validated([resident for resident in self.residents if resident.epoch == 0])
        with self._timed(seconds, "collect"):
            steps.collect(training.collect_steps)
            self._warm_support_(state)
        with self._timed(seconds, "learn"):
            if training.find_not_finite:
                loss_L = learn_watched(self.setting, state, training.learn_steps, self._owners())
            else:
                loss_L = steps.learn(training.learn_steps)
        with torch.no_grad():
            state.counters.epoch_L.add_(1)
            state.env_params.health_L.copy_(state.signals.health_L)
        self.residents = tuple(replace(resident, epoch=resident.epoch + 1) for resident in self.residents)
        with self._timed(seconds, "validate"):
            validations = self._validated([resident for resident in self.residents if resident.validates])
            if validations:
                self._keep_best_(state, validations)
        with self._timed(seconds, "report"):
            table = self._training_numbers(state, loss_L)
        return tuple(self._report(resident, table, validations, untrained, seconds) for resident in self.residents)

    def greedy_rollout(self, state: LaneState) -> Rollout:
        """The greedy agents' run over their validation ranges."""
        with matmul_precision(self.setting.training.precision):
            return rollout(
                state.env_params,
                self.prepared.market,
                state.fold.normaliser,
                state.fold.validation,
                self.validation_steps,
                self.setting.training.window,
                self.setting.policy(policy_of(state)),
            )

    def _validated(self, residents: Sequence[Resident]) -> dict[int, BacktestMetrics]:
        """Greedy backtests of these trials' lanes on their validation ranges, by row; health is frozen."""
        config_of = {row: resident.config for resident in residents for row in resident.lanes}
        if not config_of:
            return {}
        rows = list(config_of)  # trials need not lie in the order in which they came
        return {
            row: metrics_of(
                seen,
                sessions_per_year=self.prepared.instrument.sessions_per_year,
                min_trades=config_of[row].evaluation.min_trades,
                benchmark_sharpe=config_of[row].evaluation.benchmark_sharpe,
            )
            for row, seen in zip(rows, self._backtests(rows), strict=True)
        }

    def _backtests(self, rows: Sequence[int]) -> list[Summary]:
        """Of these rows: by captured steps, summed up on the device, or eagerly and on the host."""
        steps = self._steps.get(self.capacity)
        if steps is not None and steps.captured:  # sums on a GPU depend on how many rows there are: all, not those due
            capital_L, session_N = self.state.env_params.capital_L, self.prepared.market.session_N
            everyone = lane_summaries(steps.rollout(), capital_L, session_N)
            return [everyone[row] for row in rows]
        state = self.state if list(rows) == list(range(self.capacity)) else take(self.state, self._rows(rows))
        run = self.greedy_rollout(state)
        return [summarise(path) for path in paths(state.env_params, self.prepared.table.session_N, run)]

    def _check(self, config: TrialConfig) -> None:
        if config.static_signature() != self.signature:
            raise UserError("the trial's static values differ from its lane group's; it belongs to another group")

    def _join(self, trial: Resident, state: LaneState) -> None:
        if any(resident.trial_id == trial.trial_id for resident in self.residents):
            raise UserError(f"trial {trial.trial_id} is in the lane group already")
        if len(self._free_rows(self.capacity)) < len(trial.folds):
            self._grow(len(trial.folds))
        rows = self._free_rows(self.capacity)[: len(trial.folds)]
        if len(rows) == len(trial.folds):
            put_(self.state, self._rows(rows), state)
        else:
            rows = list(range(self.lanes, self.lanes + len(trial.folds)))
            self._resize([state])
        self.residents = (*self.residents, replace(trial, lanes=tuple(rows)))

    def _free_rows(self, capacity: int) -> list[int]:
        used = {row for resident in self.residents for row in resident.lanes}
        return [row for row in range(capacity) if row not in used]

    def _grow(self, lanes: int) -> None:
        """Take rows of the store for so many lanes more, if it has them."""
        wanted = capacity_of(self.lanes + lanes, self.device)
        if wanted <= self._stored:
            self._move(wanted)

    @property
    def _stored(self) -> int:
        """Rows in memory."""
        return 0 if self._store is None else len(self._store.params_LD)

    def _fit(self, capacity: int | None) -> None:
        """Leave out rows that the lanes left no longer need, or take as many as are asked for."""
        wanted = self._least() if capacity is None else capacity
        if wanted > self._stored or (wanted != self._stored and not self.keeps_rows):
            self._resize([], wanted)
        elif wanted != self.capacity:
            self._move(wanted)

    def _least(self) -> int:
        """Fewest rows for the lanes there are. Not fewer than there is compiled code for: that would take a minute."""
        least = capacity_of(self.lanes, self.device)
        sizes = [size for size in LADDER if least < size < self.capacity]
        return next((size for size in (least, *sizes) if size >= self.capacity or self._is_kept(size)), self.capacity)

    def _is_kept(self, capacity: int) -> bool:
        if capacity not in self._kept:
            self._kept[capacity] = self._steps_at(capacity).kept
            if not self._kept[capacity]:
                del self._steps[capacity]
        return self._kept[capacity]

    def _move(self, capacity: int) -> None:
        """Compute this many rows of the store: lanes that lie beyond move into free rows before."""
        beyond = [row for resident in self.residents for row in resident.lanes if row >= capacity]
        to = dict(zip(beyond, self._free_rows(capacity), strict=False))
        if beyond:
            put_(self._store, self._rows(list(to.values())), take(self._store, self._rows(beyond)))
        self.residents = tuple(
            replace(resident, lanes=tuple(to.get(row, row) for row in resident.lanes)) for resident in self.residents
        )
        self._state = self._first(capacity)

    def _first(self, capacity: int) -> LaneState:
        """The first rows of the store, not copied."""
        if self._store is None:
            raise LookupError("the lane group is empty")
        return map_tensors(lambda tensor: tensor[:capacity], self._store)

    def _resize(self, joining: list[LaneState], capacity: int | None = None) -> None:
        """Move the lanes to the first rows of a new store, then those of ``joining``, then idle copies."""
        rows = [row for resident in self.residents for row in resident.lanes]
        parts = list(joining)
        if rows:
            unmoved = rows == list(range(self.capacity))
            parts.insert(0, self.state if unmoved else take(self.state, self._rows(rows)))
        lanes = sum(len(part.params_LD) for part in parts)
        idle = (capacity_of(lanes, self.device) if capacity is None else capacity) - lanes
        if idle:
            parts.append(take(parts[-1], self._rows([0] * idle)))
        if len(parts) > 1:
            made = concat(parts)
        else:
            made = map_tensors(torch.clone, parts[0]) if parts[0] is self._state else parts[0]
        self._steps, self._graphs = {}, None
        self._store = self._state = made
        first = 0
        moved = self.residents
        self.residents = ()
        for resident in moved:
            lanes_of_it = tuple(range(first, first + len(resident.lanes)))
            self.residents += (replace(resident, lanes=lanes_of_it),)
            first += len(resident.lanes)

    def _ready_steps(self) -> Steps:
        steps = self._steps_at(self.capacity)
        steps.prepare()
        return steps

    def _steps_at(self, capacity: int) -> Steps:
        if capacity not in self._steps:
            parts = self._parts.setdefault(capacity, Parts(self.setting))
            capture = self.device.type == "cuda"
            if capture and self._graphs is None:
                self._graphs = torch.cuda.graph_pool_handle()
            state = self.state if capacity == self.capacity else self._first(capacity)
            self._steps[capacity] = Steps(parts, state, self.validation_steps, capture=capture, pool=self._graphs)
        return self._steps[capacity]

    def resident(self, trial_id: str) -> Resident:
        """The trial of this id.

        Raises:
            LookupError: it is not in the group.
        """
        for resident in self.residents:
            if resident.trial_id == trial_id:
                return resident
        raise LookupError(f"no trial {trial_id} in the lane group")

    def _rows(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(list(rows), dtype=torch.int64, device=self.device)

    def _warm_support_(self, state: LaneState) -> None:
        """Give lanes that have just collected for the first time a support from the rewards they saw."""
        rows = [r for resident in self.residents if resident.epoch == 0 for r in resident.lanes]
        if not rows or self.residents[0].config.agent.support_start != "warm":
            return
        part = take(state, self._rows(rows))
        seen = min(self.setting.training.collect_steps, part.replay.ring.length)
        reward_LN = part.replay.ring.reward_LTE[:, :seen].flatten(1)
        warm = support.warm(part.agent, self.setting.shape.atoms, reward_LN)
        put_(state.support, self._rows(rows), warm)

    def _keep_best_(self, state: LaneState, validations: dict[int, BacktestMetrics]) -> None:
        best = state.best
        sharpes = [validations[row].sharpe if row in validations else -math.inf for row in range(len(best.sharpe_L))]
        sharpe_L = torch.tensor(sharpes, dtype=best.sharpe_L.dtype, device=best.sharpe_L.device)
        better_L = sharpe_L > best.sharpe_L
        map_tensors(
            lambda kept, new: kept.copy_(torch.where(better_L.view(-1, *(1 for _ in kept.shape[1:])), new, kept)),
            best.policy,
            policy_of(state),
        )
        best.epoch_L.copy_(torch.where(better_L, state.counters.epoch_L, best.epoch_L))
        best.sharpe_L.copy_(torch.maximum(sharpe_L, best.sharpe_L))

    def _owners(self) -> dict[int, str]:
        """Who lives in each row that is not idle."""
        return {
            row: f"{resident.trial_id}, fold {fold}"
            for resident in self.residents
            for fold, row in zip(resident.folds, resident.lanes, strict=True)
        }

    def _training_numbers(self, state: LaneState, loss_L: Tensor) -> dict[str, list[float]]:
        """Numbers of every lane by name, in one transfer from the device."""
        signals = state.signals
        columns = {f.name.removesuffix("_L"): getattr(signals, f.name) for f in fields(signals) if f.name != "steps_L"}
        columns["loss"] = loss_L if self.setting.training.learn_steps else signals.loss_L
        columns["parameter_size"] = state.params_LD.abs().amax(-1)
        columns["sigma"] = popart.sigma(state.popart, state.agent)
        columns["support_low"], columns["support_high"] = state.support.atoms_LA[:, 0], state.support.atoms_LA[:, -1]
        columns["support_jumps"], columns["support_jump"] = state.support.jumps_L, state.support.jump_L
        if self.setting.training.gradient_norms:
            columns |= gradient_norms(self.setting, state)
        columns["epsilon"] = epsilon(state.counters.collect_L, state.agent)
        table_LM = torch.stack([column.double() for column in columns.values()], dim=-1).tolist()
        return {name: [row[index] for row in table_LM] for index, name in enumerate(columns)}

    def _report(
        self,
        resident: Resident,
        table: dict[str, list[float]],
        validations: dict[int, BacktestMetrics],
        untrained: dict[int, BacktestMetrics],
        seconds: dict[str, float],
    ) -> TrialReport:
        folds = tuple(
            FoldReport(
                fold=fold,
                training={name: column[row] for name, column in table.items()},
                validation=validations.get(row),
            )
            for fold, row in zip(resident.folds, resident.lanes, strict=True)
        )
        before = tuple(untrained[row].sharpe for row in resident.lanes if row in untrained)
        return TrialReport(resident.trial_id, resident.epoch, folds, dict(seconds), self.capacity, before)

    @contextmanager
    def _timed(self, seconds: dict[str, float], phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start
