"""Which trial trains where: the pool's decisions as a plain object, without Ray, clocks or threads.

Trials wait in the order in which they came; one that lost its trainer goes back to its old place. A trainer's offer is
filled with trials of the signatures it holds, then with others, up to its fair share of all live lanes. When none wait,
the fullest trainer gives trials back for one that has far less to do. Whatever a trainer tells of an attempt that is
not the trial's present one is ignored: a trainer given up for dead does no harm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from cluster.config import PoolConfig
from cluster.protocol import Admission, News, Offer, Orders, RungReport, TrialRequest
from trainer.config import TrialConfig, validate
from trainer.errors import UserError

Phase = Literal["waiting", "training", "ended"]

UNEVEN = 3
"""A trainer with so many times the lanes of another gives trials back for it when none wait."""


@dataclass
class Entry:
    """One submitted trial."""

    request: TrialRequest
    order: int
    signature: str
    lanes: int
    phase: Phase = "waiting"
    trainer: str | None = None
    attempt: int = 0
    epoch: int = 0
    losses: int = 0
    moved: bool = False  # was given back for another trainer: once is enough
    passed: int = 0  # rung past which its client asked for more
    reports: list[RungReport] = field(default_factory=list)  # rungs in order, then the one that ends it

    @property
    def live(self) -> bool:
        return self.phase != "ended"

    @property
    def wanted_epoch(self) -> int:
        """The next rung of which nobody has said yet whether the trial goes on; numbers past it are not tracked."""
        return next((rung for rung in self.request.rungs if rung > self.passed), self.request.rungs[-1])


@dataclass
class _Trainer:
    stops: dict[str, Entry] = field(default_factory=dict)  # trials to stop, told at its next call
    place: str = ""
    device: str = ""
    busy: float = 0.0
    full: bool = False  # something that waited did not fit at its last call


class PoolState:
    """All trials and trainers of one sweep.

    Args:
        config: limits.
    """

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.entries: dict[str, Entry] = {}
        self.draining = False
        self.touched: set[str] = set()  # trials with something new to tell; whoever tells it empties this
        self._trainers: dict[str, _Trainer] = {}
        self._gone: dict[str, _Trainer] = {}
        self._submitted = self._attempts = 0

    def submit(self, request: TrialRequest) -> Entry:
        """Queue a trial; a configuration at fault ends it at once with an error report.

        Raises:
            UserError: the trial is live already.
        """
        before = self.entries.get(request.trial_id)
        if before is not None and before.live:
            raise UserError(f"trial {request.trial_id} is in the pool already; stop it before it is submitted again")
        entry = Entry(request, self._submitted, "", 0)
        self._submitted += 1
        self.entries[request.trial_id] = entry
        try:
            config = validate(TrialConfig, dict(request.config), where=f"trial {request.trial_id}")
            check_rungs(request, config)
        except UserError as error:
            self._end(entry, RungReport(request.trial_id, 0, None, error=str(error)))
            return entry
        entry.signature, entry.lanes = config.static_signature(), config.folds.count
        if self.draining:
            self._park(entry)
        return entry

    def next_report(self, trial_id: str, after: int) -> RungReport | None:
        """The trial's first report past epoch ``after``, or the one that ended it; None while there is none yet.

        Raises:
            UserError: no such trial.
        """
        entry = self.entry(trial_id)
        entry.passed = max(entry.passed, after)
        for report in entry.reports:
            if report.epoch > after or report.ends:
                return report
        return None

    def go_on(self, trial_id: str, epoch: int) -> None:
        """Somebody wants the trial to go on past its rung at ``epoch``; one that is gone is passed over."""
        entry = self.entries.get(trial_id)
        if entry is not None:
            entry.passed = max(entry.passed, epoch)

    def due(self) -> tuple[str, ...]:
        """Trials with a report past the last rung at which somebody wanted them to go on."""
        return tuple(
            trial_id
            for trial_id, entry in self.entries.items()
            if any(report.epoch > entry.passed or report.ends for report in entry.reports)
        )

    def stop(self, trial_id: str) -> None:
        """Forget a trial, ended or not; what it trains beyond is discarded. It may be submitted again."""
        entry = self.entries.pop(trial_id, None)
        self.touched.add(trial_id)
        trainer = None if entry is None else self._trainers.get(entry.trainer or "")
        if entry is not None and trainer is not None:
            trainer.stops[trial_id] = entry

    def exchange(self, trainer_id: str, news: News, trainers: int) -> Orders:
        """Take a trainer's news and fill its offer.

        Args:
            trainer_id: who calls; a trainer that was declared lost is told to leave.
            news: what happened since its last call.
            trainers: trainers among which the live lanes are to be spread.
        """
        trainer = self._trainers.get(trainer_id)
        if trainer is None:
            return Orders(leave=True)
        trainer.place, trainer.device = news.place or trainer.place, news.device or trainer.device
        trainer.busy = news.busy or trainer.busy
        for trial_id, epoch in news.epochs.items():
            entry = self.entries.get(trial_id)
            if entry is not None and entry.trainer == trainer_id and epoch > entry.epoch:
                entry.epoch, entry.losses = epoch, 0
        for attempt, report in news.reports:
            self._hear(trainer_id, attempt, report)
        for attempt, trial_id in news.returned:
            entry = self._current(trainer_id, attempt, trial_id)
            if entry is not None:
                (self._park if self.draining else self._leave)(entry)
        stops, trainer.stops = trainer.stops, {}
        if self.draining:
            return Orders(stop=tuple(stops), leave=True)
        freed = sum(entry.lanes for entry in stops.values() if _holds(news, entry))
        chosen = self._choose(trainer_id, news.offer, freed, trainers)
        passed = {entry.request.trial_id: entry.passed for entry in self._of(trainer_id) if entry.passed}
        given = () if chosen else self._give_back(trainer_id)
        admissions = tuple(self._admit(trainer_id, entry) for entry in chosen)
        return Orders(admit=admissions, stop=tuple(stops), give_back=given, passed=passed)

    def joined(self, trainer_id: str) -> None:
        """A trainer is there."""
        self._trainers.setdefault(trainer_id, _Trainer())

    def lost(self, trainer_id: str) -> None:
        """A trainer is gone: its trials go back to their places in the queue; one that cost too many trainers fails."""
        if trainer_id in self._trainers:
            self._gone[trainer_id] = self._trainers.pop(trainer_id)
        for entry in self.entries.values():
            if entry.trainer != trainer_id or not entry.live:
                continue
            self._leave(entry)
            entry.losses += 1
            if self.draining:
                self._park(entry)
            elif entry.losses >= self.config.losses:
                error = f"{entry.losses} trainers died under this trial without finishing epoch {entry.epoch + 1}"
                self._end(entry, RungReport(entry.request.trial_id, entry.epoch, None, error=error))

    def drain(self) -> None:
        """Give no trial out any more; trials that wait are parked at once, others when their trainer says so."""
        self.draining = True
        for entry in self.entries.values():
            if entry.phase == "waiting":
                self._park(entry)

    def give_up(self) -> tuple[str, ...]:
        """Park what trainers still hold, as after their loss; returns those trials."""
        late = self.training
        for trial_id in late:
            self._park(self.entries[trial_id])
        return late

    @property
    def training(self) -> tuple[str, ...]:
        """Trials that a trainer holds."""
        return tuple(trial_id for trial_id, entry in self.entries.items() if entry.phase == "training")

    @property
    def trainers(self) -> tuple[str, ...]:
        """Trainers that joined and were not lost."""
        return tuple(self._trainers)

    def live_lanes(self) -> int:
        """Lanes of all trials that wait or train."""
        return sum(entry.lanes for entry in self.entries.values() if entry.live)

    def entry(self, trial_id: str) -> Entry:
        """The trial of this id.

        Raises:
            UserError: there is none.
        """
        if trial_id not in self.entries:
            raise UserError(f"no trial {trial_id} in the pool; submit it first")
        return self.entries[trial_id]

    def status(self) -> dict[str, Any]:
        """Counts and, per live trial, where it is: plain JSON values."""
        phases = [entry.phase for entry in self.entries.values()]
        return {
            "draining": self.draining,
            "trainers": {trainer: self._held(trainer) for trainer in self._trainers},
            "accounts": {
                name: {"place": t.place, "device": t.device, "busy": round(t.busy, 3), "gone": name in self._gone}
                for name, t in (self._gone | self._trainers).items()
            },
            **{phase: phases.count(phase) for phase in ("waiting", "training", "ended")},
            "trials": {
                trial_id: {"phase": entry.phase, "trainer": entry.trainer, "epoch": entry.epoch, "losses": entry.losses}
                for trial_id, entry in self.entries.items()
                if entry.live
            },
        }

    def _hear(self, trainer_id: str, attempt: int, report: RungReport) -> None:
        entry = self._current(trainer_id, attempt, report.trial_id)
        if entry is None:
            return
        if report.ends:
            self._end(entry, report)
        elif all(report.epoch > known.epoch for known in entry.reports):
            entry.reports.append(report)
            self.touched.add(report.trial_id)

    def _current(self, trainer_id: str, attempt: int, trial_id: str) -> Entry | None:
        entry = self.entries.get(trial_id)
        if entry is None or not entry.live or entry.trainer != trainer_id or entry.attempt != attempt:
            return None
        return entry

    def _choose(self, trainer_id: str, offer: Offer, freed: int, trainers: int) -> list[Entry]:
        waiting = sorted((e for e in self.entries.values() if e.phase == "waiting"), key=lambda e: e.order)
        group_lanes = self._group_lanes(trainer_id)
        resident = set(offer.groups) | set(group_lanes)
        room, memory, held = offer.lanes + freed, offer.bytes_free, sum(group_lanes.values())
        share = self._share(trainer_id, trainers)
        me = self._trainers[trainer_id]
        me.full = False
        chosen: list[Entry] = []
        for entry in sorted(waiting, key=lambda e: e.signature not in resident):
            signature, lanes = entry.signature, entry.lanes
            need = offer.lane_bytes.get(signature, 0) * lanes
            in_group = group_lanes.get(signature, 0)
            if held >= share and held > 0:
                break
            if need == 0 and in_group > 0:
                continue  # what a lane of it costs is not known yet, which says nothing about the room there is
            fits = (
                lanes <= room
                and need <= memory
                and (signature in resident or len(resident) < self.config.groups)
                and in_group + lanes <= offer.lane_limit.get(signature, room + in_group)
            )
            if not fits and held > 0:
                me.full = True
                continue
            chosen.append(entry)
            resident.add(signature)
            group_lanes[signature] = in_group + lanes
            room, memory, held = room - lanes, memory - need, held + lanes
        return chosen

    def _share(self, trainer_id: str, trainers: int) -> int:
        """Lanes at which a trainer is as full as the others will be, not counting those that have no room left."""
        full = [name for name, trainer in self._trainers.items() if trainer.full and name != trainer_id]
        lanes = self.live_lanes() - sum(self._held(name) for name in full)
        return math.ceil(lanes / max(trainers - len(full), 1))

    def _give_back(self, trainer_id: str) -> tuple[str, ...]:
        """Trials of the fullest trainer that one with far less to do should train, so that both end at about a time."""
        if any(entry.phase == "waiting" for entry in self.entries.values()):
            return ()
        held = {name: self._held(name) for name in self._trainers}
        mine, least = held[trainer_id], min(held.values())
        if mine < max(held.values()) or mine < UNEVEN * least:
            return ()
        movable = [e for e in self._of(trainer_id) if not e.moved and e.epoch + 1 < e.request.rungs[-1]]
        surplus, given = (mine - least) // 2, []
        for entry in sorted(movable, key=lambda e: e.epoch):  # those with the most left to do
            if entry.lanes <= surplus:
                surplus -= entry.lanes
                entry.moved = True
                given.append(entry.request.trial_id)
        return tuple(given)

    def _admit(self, trainer_id: str, entry: Entry) -> Admission:
        self._attempts += 1
        entry.phase, entry.trainer, entry.attempt = "training", trainer_id, self._attempts
        recorded = min(entry.epoch, entry.wanted_epoch)
        return Admission(entry.request, entry.attempt, recorded, entry.passed)

    def _leave(self, entry: Entry) -> None:
        entry.phase, entry.trainer = "waiting", None

    def _end(self, entry: Entry, report: RungReport) -> None:
        self._leave(entry)
        entry.reports.append(report)
        entry.phase = "ended"
        self.touched.add(report.trial_id)

    def _park(self, entry: Entry) -> None:
        self._end(entry, RungReport(entry.request.trial_id, entry.epoch, None, parked=True))

    def _held(self, trainer_id: str) -> int:
        return sum(self._group_lanes(trainer_id).values())

    def _group_lanes(self, trainer_id: str) -> dict[str, int]:
        lanes: dict[str, int] = {}
        for entry in self._of(trainer_id):
            lanes[entry.signature] = lanes.get(entry.signature, 0) + entry.lanes
        return lanes

    def _of(self, trainer_id: str) -> Iterable[Entry]:
        return (entry for entry in self.entries.values() if entry.trainer == trainer_id)


def _holds(news: News, entry: Entry) -> bool:
    """Whether the trainer still counts a trial's lanes as taken: in its last epoch, or gone, its offer has them."""
    budget = entry.request.rungs[-1]
    return news.epochs.get(entry.request.trial_id, budget) + 1 < budget


def check_rungs(request: TrialRequest, config: TrialConfig) -> None:
    """Refuse rungs that do not rise to the trial's budget.

    Raises:
        UserError: they do not.
    """
    rungs = request.rungs
    rising = all(low < high for low, high in pairwise(rungs))
    if not rungs or rungs[0] < 1 or not rising or rungs[-1] != config.training.epochs:
        raise UserError(
            f"trial {request.trial_id}: rungs {list(rungs)} must rise from 1 or more to training.epochs = "
            f"{config.training.epochs}"
        )
