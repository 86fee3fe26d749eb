"""What Tune runs for a trial: a thin client that fetches the pool's report and passes it on. No torch here.

Tune keeps the actor and gives it trial after trial (``reset_config``), each when it has something to tell
(:mod:`search.turns`). A client holds nothing: a new one that asks the pool again hears the same reports, and the driver
passes over those it has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ray import tune

from cluster.pool import PoolHandle
from cluster.protocol import RungReport

TRIAL_KEY, AFTER_KEY = "trial", "after"
EPOCH, SCORE, REPORT = "epoch", "score", "report"


class TrialClient(tune.Trainable):
    """One trial after the other, as Tune says.

    Config: ``trial`` (our id), ``after`` (the last epoch that is known of it).
    """

    def setup(self, config: dict[str, Any], pool: PoolHandle | None = None) -> None:
        """Begin with the first trial."""
        if pool is None:
            raise ValueError("TrialClient needs its pool: tune.with_parameters(TrialClient, pool=...)")
        self._pool = pool
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Go on with another trial."""
        self._trial_id, self._epoch = str(new_config[TRIAL_KEY]), int(new_config[AFTER_KEY])
        return True

    def step(self) -> dict[str, Any]:
        """The next rung, if it is there. The report travels as one string: Tune keeps six numbers for every one it
        sees."""
        report = self._pool.report_now(self._trial_id, after=self._epoch)
        if report is None:
            return {EPOCH: self._epoch}
        self._epoch = report.epoch
        result: dict[str, Any] = {EPOCH: report.epoch, REPORT: json.dumps(asdict(report)), "done": report.ends}
        return result if report.score is None else result | {SCORE: report.score}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing to save: trainers write checkpoints themselves."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing to load."""


def report_of(result: Mapping[str, Any]) -> RungReport | None:
    """The report inside a Tune result, None in one that carries none."""
    if REPORT not in result:
        return None
    fields = json.loads(result[REPORT])
    return RungReport(**fields | {"folds": tuple(fields["folds"]), "capacities": tuple(fields["capacities"])})
