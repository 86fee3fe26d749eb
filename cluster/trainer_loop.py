"""What a trainer actor does, without Ray: lane groups by static signature, trials that come and go at epoch boundaries.

:meth:`TrainerLoop.step` trains one epoch of one group; groups take turns. In between the trainer tells its news and
obeys orders. It never waits for a verdict: a trial goes on past its rung, and what it trained beyond is dropped when it
is stopped.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cluster.capacity import Capacity
from cluster.config import PoolConfig
from cluster.epoch_log import FOLDER, EpochLog
from cluster.protocol import Admission, News, Orders, RungReport
from cluster.trial_folder import History, TrialFolder, history_entry, numbers_of, score_at
from cluster.writer import Job, Writer
from trainer.config import TrialConfig, validate, write_toml
from trainer.errors import UserError
from trainer.training import checkpoint
from trainer.training.export import save_policies, write_json
from trainer.training.group import LaneGroup, Resident
from trainer.training.lane_state import new_lanes, policy_of
from trainer.training.prepare import Prepared, prepare
from trainer.training.report import TrialReport

Record = Callable[[str, int, Mapping[str, float], int], None]
"""Takes (trial id, epoch, numbers, time in ms) for tracking. The same again changes nothing there."""

WRITERS = 4
"""Threads that write a GPU trainer's files."""
BUSY_PHASES = ("collect", "learn", "validate")
"""Of an epoch; the rest is capturing graphs and counting up."""


@dataclass
class _Trial:
    admission: Admission
    config: TrialConfig
    group: LaneGroup
    folder: TrialFolder
    untrained: list[float] = field(default_factory=list)
    history: History = field(default_factory=list)
    checkpointed: int = 0
    recorded: int = 0
    passed: int = 0

    @property
    def trial_id(self) -> str:
        return self.admission.request.trial_id

    @property
    def epoch(self) -> int:
        return int(self.history[-1]["epoch"]) if self.history else 0

    @property
    def capacities(self) -> tuple[int, ...]:
        return tuple(entry["capacity"] for entry in self.history)

    @property
    def wanted_epoch(self) -> int:
        rungs = self.admission.request.rungs
        return next((rung for rung in rungs if rung > self.passed), rungs[-1])

    @property
    def budget(self) -> int:
        return self.config.training.epochs


class TrainerLoop:
    """The trials of one trainer.

    Args:
        sweep_dir: the sweep's folder, the same for all trainers.
        config: limits.
        device: where to train.
        record: where per-epoch numbers go.
        slots: trainers that share this machine's memory.
        label: the device's name for people.
        name: the trainer's own.
    """

    def __init__(
        self,
        sweep_dir: Path,
        config: PoolConfig,
        device: torch.device,
        record: Record,
        slots: int = 1,
        label: str = "",
        name: str = "trainer",
    ) -> None:
        self.sweep_dir, self.device, self.record, self.label = sweep_dir, device, record, label
        self.capacity = Capacity(config, device, slots)
        self._trials: dict[str, _Trial] = {}
        self._waiting: dict[str, tuple[Admission, TrialConfig]] = {}  # for lanes that others are about to leave
        self._groups: dict[str, LaneGroup] = {}  # by signature; the first is the next to train
        self._prepared: dict[str, Prepared] = {}
        self._reports: list[tuple[int, RungReport]] = []
        self._returned: list[tuple[int, str]] = []
        self._since_s, self._busy_s = time.perf_counter(), 0.0
        self._epochs = EpochLog(sweep_dir / FOLDER / f"{name}.jsonl")
        self.writer = Writer(WRITERS if device.type == "cuda" else 0, device)

    @property
    def idle(self) -> bool:
        """Nothing to train, and nothing to tell once it is written."""
        return not self._trials and not self.writer.busy

    def obey(self, orders: Orders) -> None:
        """Stop, give back, then admit; or, told to leave, checkpoint every trial and let go of it.

        Who leaves or gives back has written everything when this returns.
        """
        for trial_id in orders.stop:
            self._waiting.pop(trial_id, None)
            if trial_id in self._trials:
                self._evict(self._trials[trial_id])
        for trial_id in tuple(self._waiting) if orders.leave else orders.give_back:
            self._give_back(trial_id)
        for trial_id, epoch in orders.passed.items():
            if trial_id in self._trials:
                self._trials[trial_id].passed = epoch
                self._record(self._trials[trial_id], self._trials[trial_id].wanted_epoch)
        for admission in orders.admit:
            self._expect(admission)
        self._admit_waiting()
        if orders.leave:
            for trial in list(self._trials.values()):
                parked = RungReport(trial.trial_id, trial.epoch, None, parked=True)
                self.writer.put(trial.trial_id, self._checkpoint(trial), partial(self._report, trial, parked))
                self._record(trial, trial.epoch)
                self._evict(trial)
            self.writer.finish()

    def news(self) -> News:
        """What happened since the last time, and the room there is."""
        self.writer.settle()
        lanes, leaving = self._lanes(), self._leaving()
        for _, config in self._waiting.values():
            signature = config.static_signature()
            lanes[signature] = lanes.get(signature, 0) + config.folds.count
        news = News(
            self.capacity.offer(lanes, leaving),
            tuple(self._reports),
            tuple(self._returned),
            dict.fromkeys(self._waiting, 0) | {trial_id: trial.epoch for trial_id, trial in self._trials.items()},
            f"{socket.gethostname()}:{os.getpid()}",
            self.label,
            self._busy_s / max(time.perf_counter() - self._since_s, 1e-9),
        )
        self._reports, self._returned = [], []
        return news

    def step(self) -> None:
        """One epoch of the group whose turn it is; where there is none, what is being written."""
        groups = [(signature, group) for signature, group in self._groups.items() if group.lanes]
        if not groups:
            self.writer.settle(wait_s=1.0)
            return
        signature, group = groups[0]
        self._groups[signature] = self._groups.pop(signature)
        group.keeps_rows = self.device.type == "cuda" and len(groups) == 1  # else others want the memory
        lanes, began_s = group.lanes, time.perf_counter()
        try:
            self.capacity.before_epoch()
            reports = group.advance()
            self.capacity.after_epoch(signature, lanes)
        except torch.OutOfMemoryError as error:
            self._out_of_memory(group, str(error))
            return
        self._busy_s += sum(reports[0].phase_seconds[phase] for phase in BUSY_PHASES)
        self._epochs.add(
            began_s,
            reports[0].phase_seconds,
            lanes=lanes,
            capacity=group.capacity,
            trials=len(reports),
            steps=group.setting.training.learn_steps,
        )
        for report in reports:
            self._finish_epoch(self._trials[report.trial_id], report)
        self._admit_waiting()

    def _finish_epoch(self, trial: _Trial, report: TrialReport) -> None:
        training = trial.config.training
        trial.history.append(history_entry(report))
        if report.untrained:
            trial.untrained = list(report.untrained)
        scored = report.failed is None and report.epoch in trial.admission.request.rungs
        if scored:
            trial.history[-1]["score"] = score_at(trial.history, report.epoch, training.score_epochs)
        ends = report.failed is not None or report.epoch == trial.budget
        self._record(trial, report.epoch if ends else trial.wanted_epoch)
        if report.failed is not None:
            error = f"epoch {report.epoch}: {report.failed}; lower agent.lr or look at the data"
            self._report(
                trial, RungReport(trial.trial_id, report.epoch, None, error=error, capacities=trial.capacities)
            )
            self._evict(trial)
            return
        files = self._checkpoint(trial) if scored or report.epoch % training.checkpoint_every == 0 else []
        if report.epoch == trial.budget:
            files.append(self._export(trial))
            self._evict(trial)
        if files or scored:
            told = [self._rung_report(trial, report.epoch)] if scored else []
            self.writer.put(trial.trial_id, files, partial(self._report, trial, *told))

    def _expect(self, admission: Admission) -> None:
        """Take in a trial; one whose configuration is at fault ends at once."""
        request = admission.request
        try:
            config = validate(TrialConfig, dict(request.config), where=f"trial {request.trial_id}")
        except UserError as error:
            self._reports.append((admission.attempt, RungReport(request.trial_id, 0, None, error=str(error))))
        else:
            self._waiting[request.trial_id] = (admission, config)

    def _admit_waiting(self) -> None:
        """Admit those that came, in their order, as far as there is room beside trials that are about to leave."""
        while self._waiting:
            admission, config = next(iter(self._waiting.values()))
            if not self._has_room(config):
                return
            del self._waiting[admission.request.trial_id]
            self._admit(admission, config)

    def _has_room(self, config: TrialConfig) -> bool:
        """Whether a trial fits now. It was offered room: where nobody is about to leave it is tried."""
        if not self._leaving():
            return True
        lanes, wanted, signature = self._lanes(), config.folds.count, config.static_signature()
        offer = self.capacity.offer(lanes, {})
        return (
            wanted <= offer.lanes
            and wanted * offer.lane_bytes.get(signature, 0) <= offer.bytes_free
            and lanes.get(signature, 0) + wanted <= offer.lane_limit.get(signature, lanes.get(signature, 0) + wanted)
        )

    def _lanes(self) -> dict[str, int]:
        """Resident lanes by signature."""
        return {signature: group.lanes for signature, group in self._groups.items()}

    def _leaving(self) -> dict[str, int]:
        """Those of them in their last epoch."""
        leaving: dict[str, int] = {}
        for trial in self._trials.values():
            if trial.epoch + 1 == trial.budget:
                signature = trial.group.signature
                leaving[signature] = leaving.get(signature, 0) + trial.config.folds.count
        return leaving

    def _admit(self, admission: Admission, config: TrialConfig) -> None:
        request = admission.request
        alone = self.idle
        try:
            self._start(admission, config)
        except UserError as error:
            self._reports.append((admission.attempt, RungReport(request.trial_id, 0, None, error=str(error))))
        except torch.OutOfMemoryError as error:
            if alone:
                text = f"does not fit into the memory of {self.device}, even alone: {error}"
                self._reports.append((admission.attempt, RungReport(request.trial_id, 0, None, error=text)))
            else:
                self._returned.append((admission.attempt, request.trial_id))

    def _start(self, admission: Admission, config: TrialConfig) -> None:
        request, signature = admission.request, config.static_signature()
        group = self._groups.get(signature)
        if group is None:
            self._drop_empty_groups()
            group = LaneGroup(config, self._prepare(config), self.device)
        folder = TrialFolder(self.sweep_dir / "trials" / request.trial_id)
        trial = _Trial(admission, config, group, folder, recorded=admission.recorded, passed=admission.passed)
        newest = folder.newest()
        if newest is not None:
            path, manifest = newest
            trial.untrained, trial.history = manifest["untrained"], manifest["history"]
            trial.checkpointed = trial.epoch
            like = new_lanes(config, group.prepared, group.prepared.folds, self.device)
            folds = tuple(fold.index for fold in group.prepared.folds)
            resident = Resident(request.trial_id, config, trial.epoch, folds, rungs=request.rungs)
            group.restore(resident, checkpoint.load(path, like, self.device))
        else:
            folder.path.mkdir(parents=True, exist_ok=True)
            write_toml(config, folder.path / "config.toml")
            group.admit(request.trial_id, config, rungs=request.rungs)
        self.capacity.admitted(signature, group.state)
        self._groups[signature] = group
        self._trials[request.trial_id] = trial
        self._record(trial, trial.epoch if trial.epoch == trial.budget else trial.wanted_epoch)
        files = []
        if trial.epoch == trial.budget:
            files.append(self._export(trial))
            self._evict(trial)
        told = [self._rung_report(trial, rung) for rung in request.rungs if rung <= trial.epoch]
        if told:
            self.writer.put(trial.trial_id, files, partial(self._report, trial, *told))

    def _record(self, trial: _Trial, until: int) -> None:
        """Give tracking the epochs up to ``until`` that it does not have."""
        for entry in trial.history:
            if trial.recorded < entry["epoch"] <= until:
                self.record(trial.trial_id, entry["epoch"], numbers_of(entry), entry["time_ms"])
                trial.recorded = entry["epoch"]

    def _prepare(self, config: TrialConfig) -> Prepared:
        """Market and folds, shared between signatures that agree on them."""
        look_back = max(config.training.window, config.replay.n_step)
        parts = [config.market.model_dump(mode="json"), config.folds.model_dump(mode="json")]
        key = json.dumps([*parts, look_back, config.env.allow_overnight], sort_keys=True)
        if key not in self._prepared:
            used = [group.prepared for group in self._groups.values()]
            self._prepared = {k: p for k, p in self._prepared.items() if any(p is u for u in used)}
            self._prepared[key] = prepare(config, self.device)
        return self._prepared[key]

    def _drop_empty_groups(self) -> None:
        """Empty groups are kept for what they compiled, while there are not too many."""
        for signature in [signature for signature, group in self._groups.items() if group.lanes == 0]:
            if len(self._groups) >= self.capacity.config.groups:
                del self._groups[signature]

    def _out_of_memory(self, group: LaneGroup, error: str) -> None:
        """The epoch broke off half-way: every trial of the group goes back to its checkpoint, and fewer come again."""
        lanes = group.lanes
        self.writer.finish()
        trials = [trial for trial in self._trials.values() if trial.group is group]
        alone = len(self._trials) == 1
        for trial in trials:
            if alone:
                text = f"does not fit into the memory of {self.device}, even alone: {error}"
                self._report(trial, RungReport(trial.trial_id, trial.epoch, None, error=text))
            else:
                self._returned.append((trial.admission.attempt, trial.trial_id))
            self._evict(trial)
        del self._groups[group.signature]
        self.capacity.exceeded(group.signature, lanes)

    def _give_back(self, trial_id: str) -> None:
        """Return a trial to the pool, with its checkpoint if it has trained; one that is not here is passed over."""
        if trial_id in self._waiting:
            admission, _ = self._waiting.pop(trial_id)
            self._returned.append((admission.attempt, trial_id))
        elif trial_id in self._trials:
            trial = self._trials[trial_id]
            returned = (trial.admission.attempt, trial_id)
            self.writer.put(trial_id, self._checkpoint(trial), partial(self._returned.append, returned))
            self.writer.finish(trial_id)
            self._evict(trial)

    def _evict(self, trial: _Trial) -> None:
        trial.group.evict(trial.trial_id)
        del self._trials[trial.trial_id]

    def _checkpoint(self, trial: _Trial) -> list[Job]:
        """What writes the trial as it is now; nothing where that was done."""
        if trial.checkpointed == trial.epoch:
            return []
        manifest = {"untrained": trial.untrained, "history": list(trial.history)}
        snapshot = trial.group.snapshot(trial.trial_id)
        trial.checkpointed = trial.epoch
        return [partial(trial.folder.save, trial.admission.attempt, trial.epoch, snapshot, manifest)]

    def _rung_report(self, trial: _Trial, epoch: int) -> RungReport:
        until = [entry for entry in trial.history if entry["epoch"] <= epoch]
        return RungReport(
            trial.trial_id,
            epoch,
            until[-1]["score"] if "score" in until[-1] else score_at(until, epoch, trial.config.training.score_epochs),
            folds=tuple(until[-1]["folds"]),
            final=epoch == trial.budget,
            capacities=trial.capacities[: len(until)],
        )

    def _report(self, trial: _Trial, *reports: RungReport) -> None:
        self._reports.extend((trial.admission.attempt, report) for report in reports)

    def _export(self, trial: _Trial) -> Job:
        """What leaves the agents and the numbers of a trial that used up its budget."""
        prepared, state = trial.group.prepared, trial.group.snapshot(trial.trial_id)
        folds = [fold.index for fold in prepared.folds]
        about: dict[str, Any] = {
            "features": list(prepared.features.names),
            "order_flow": list(prepared.features.order_flow),
            "trained_until_ns": [int(prepared.table.time_N[fold.train.end - 1]) for fold in prepared.folds],
        }

        def write() -> None:
            save_policies(trial.folder.path / "policies", policy_of(state), trial.config, folds, about)
            save_policies(trial.folder.path / "policies" / "best", state.best.policy, trial.config, folds, about)
            result = {
                "trial_id": trial.trial_id,
                "score": trial.history[-1]["score"],
                "untrained_val_sharpe": trial.untrained,
                "best_epoch": state.best.epoch_L.tolist(),
                "epochs": trial.history,
            }
            write_json(trial.folder.path / "result.json", result)

        return write
