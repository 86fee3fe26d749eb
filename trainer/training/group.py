"""A lane group: trials of one static signature, trained together as lanes of one state.

A trial's folds are admitted and evicted together, at epoch boundaries. What a lane computes depends on its own config,
seed and data alone, so trials come and go beside each other without changing a bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from trainer.agent import popart, support
from trainer.agent.explore import epsilon
from trainer.agent.network import layout
from trainer.config import TrialConfig
from trainer.errors import UserError
from trainer.evaluation.backtest import Rollout, paths, rollout
from trainer.evaluation.metrics import backtest_metrics
from trainer.evaluation.policy import greedy_policy
from trainer.lanes.tree import concat, map_tensors, put_, take
from trainer.training.collect import Setting, collect_step_
from trainer.training.lane_state import LaneState, network_shape, new_lanes, policy_of, slots_of
from trainer.training.learn import learn_step_
from trainer.training.prepare import Prepared
from trainer.training.report import FoldReport, TrialReport, Validation


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
            shape=network_shape(config, prepared),
            market=prepared.market,
            session_start_S=torch.from_numpy(prepared.session_start_S).to(device),
        )
        slots = [s for fold in prepared.folds for s in slots_of(config, prepared.table.session_N, fold.validation)]
        self.validation_steps = max(end - start for start, end in slots) - 1
        self._state: LaneState | None = None
        self.residents: tuple[Resident, ...] = ()

    @property
    def lanes(self) -> int:
        """Live lanes."""
        return sum(len(resident.lanes) for resident in self.residents)

    @property
    def state(self) -> LaneState:
        """The lanes' tensors.

        Raises:
            LookupError: the group is empty.
        """
        if self._state is None:
            raise LookupError("the lane group is empty")
        return self._state

    def admit(
        self, trial_id: str, config: TrialConfig, folds: Sequence[int] | None = None, rungs: Sequence[int] = ()
    ) -> tuple[Validation, ...]:
        """Start a trial: one lane per fold (all of them unless named). Returns the untrained agents' validation.

        Raises:
            UserError: the trial's static values are not the group's.
        """
        self._check(config)
        chosen = [f for f in self.prepared.folds if folds is None or f.index in folds]
        state = new_lanes(config, self.prepared, chosen, self.device)
        untrained = self.validate(state, config)
        self._join(Resident(trial_id, config, 0, tuple(fold.index for fold in chosen), rungs=tuple(rungs)), state)
        return untrained

    def restore(self, trial: Resident, snapshot: LaneState) -> None:
        """Continue a trial as it was when :meth:`snapshot` was taken of it."""
        self._check(trial.config)
        self._join(trial, snapshot)

    def snapshot(self, trial_id: str) -> LaneState:
        """A copy of the trial's lanes: everything they need to continue bit for bit."""
        return take(self.state, self._rows(self.resident(trial_id).lanes))

    def evict(self, trial_id: str) -> None:
        """Remove a trial; the group shrinks to the lanes that are left."""
        gone = self.resident(trial_id)
        kept = [resident for resident in self.residents if resident is not gone]
        rows = [row for resident in kept for row in resident.lanes]
        self._state = take(self.state, self._rows(rows)) if rows else None
        first = 0
        self.residents = ()
        for resident in kept:
            self.residents += (replace(resident, lanes=tuple(range(first, first + len(resident.lanes)))),)
            first += len(resident.lanes)

    def advance(self) -> tuple[TrialReport, ...]:
        """One epoch of every trial: collect, learn, validate those that are due."""
        state, training = self.state, self.setting.training
        seconds: dict[str, float] = {}
        with self._timed(seconds, "collect"):
            weights = layout(self.setting.shape).views(state.params_LD)
            for _ in range(training.collect_steps):
                collect_step_(self.setting, state, weights)
            self._warm_support_(state)
        losses: list[Tensor] = []
        with self._timed(seconds, "learn"):
            for _ in range(training.learn_steps):
                losses.append(learn_step_(self.setting, state).loss_L)
        with torch.no_grad():
            state.counters.epoch_L.add_(1)
            state.env_params.health_L.copy_(state.signals.health_L)
        self.residents = tuple(replace(resident, epoch=resident.epoch + 1) for resident in self.residents)
        validations: dict[int, Validation] = {}
        with self._timed(seconds, "validate"):
            due = [resident for resident in self.residents if resident.validates]
            if due:
                rows = [row for resident in due for row in resident.lanes]
                part = take(state, self._rows(rows)) if len(rows) < self.lanes else state
                validations = dict(zip(rows, self.validate(part, due[0].config), strict=True))
                self._keep_best_(state, validations)
        with self._timed(seconds, "report"):
            table = self._training_numbers(state, losses)
        return tuple(self._report(resident, table, validations, seconds) for resident in self.residents)

    def validate(self, state: LaneState, config: TrialConfig) -> tuple[Validation, ...]:
        """Greedy backtest of every lane of ``state`` on its validation range, with its health frozen."""
        run = self.greedy_rollout(state)
        return tuple(
            Validation(
                backtest_metrics(
                    path,
                    sessions_per_year=self.prepared.instrument.sessions_per_year,
                    min_trades=config.evaluation.min_trades,
                    benchmark_sharpe=config.evaluation.benchmark_sharpe,
                ),
                path,
            )
            for path in paths(state.env_params, self.prepared.table.session_N, run)
        )

    def greedy_rollout(self, state: LaneState) -> Rollout:
        """The greedy agents' run over their validation ranges."""
        return rollout(
            state.env_params,
            self.prepared.market,
            state.fold.normaliser,
            state.fold.validation,
            self.validation_steps,
            self.setting.training.window,
            greedy_policy(self.setting.shape, policy_of(state)),
        )

    def _check(self, config: TrialConfig) -> None:
        if config.static_signature() != self.signature:
            raise UserError("the trial's static values differ from its lane group's; it belongs to another group")

    def _join(self, trial: Resident, state: LaneState) -> None:
        if any(resident.trial_id == trial.trial_id for resident in self.residents):
            raise UserError(f"trial {trial.trial_id} is in the lane group already")
        first = self.lanes
        self._state = state if self._state is None else concat([self._state, state])
        self.residents = (*self.residents, replace(trial, lanes=tuple(range(first, first + len(trial.folds)))))

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

    def _keep_best_(self, state: LaneState, validations: dict[int, Validation]) -> None:
        best = state.best
        sharpe_L = best.sharpe_L.clone()
        for row, validation in validations.items():
            sharpe_L[row] = max(validation.metrics.sharpe, float(sharpe_L[row]))
        better_L = sharpe_L > best.sharpe_L
        map_tensors(
            lambda kept, new: kept.copy_(torch.where(better_L.view(-1, *(1 for _ in kept.shape[1:])), new, kept)),
            best.policy,
            policy_of(state),
        )
        best.epoch_L.copy_(torch.where(better_L, state.counters.epoch_L, best.epoch_L))
        best.sharpe_L.copy_(sharpe_L)

    def _training_numbers(self, state: LaneState, losses: list[Tensor]) -> dict[str, list[float]]:
        """Numbers of every lane by name, in one transfer from the device."""
        signals = state.signals
        columns = {f.name.removesuffix("_L"): getattr(signals, f.name) for f in fields(signals) if f.name != "steps_L"}
        columns["loss"] = torch.stack(losses, dim=-1).mean(-1) if losses else signals.loss_L
        columns["parameter_size"] = state.params_LD.abs().amax(-1)
        columns["sigma"] = popart.sigma(state.popart, state.agent)
        columns["support_low"], columns["support_high"] = state.support.atoms_LA[:, 0], state.support.atoms_LA[:, -1]
        columns["support_jumps"], columns["support_jump"] = state.support.jumps_L, state.support.jump_L
        columns["epsilon"] = epsilon(state.counters.collect_L, state.agent)
        table_LM = torch.stack([column.double() for column in columns.values()], dim=-1).tolist()
        return {name: [row[index] for row in table_LM] for index, name in enumerate(columns)}

    def _report(
        self,
        resident: Resident,
        table: dict[str, list[float]],
        validations: dict[int, Validation],
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
        return TrialReport(resident.trial_id, resident.epoch, folds, dict(seconds), self.lanes)

    @contextmanager
    def _timed(self, seconds: dict[str, float], phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds[phase] = time.perf_counter() - start
