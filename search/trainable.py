"""What Tune runs for a trial: a thin client that waits for the pool's reports and passes rungs on. No torch here.

Tune keeps such actors and gives them trial after trial (``reset_config``). A client holds nothing: a new one that asks
the pool again hears the same reports, and the driver passes over those it has.
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
        """Wait for the next rung. The report travels as one string: Tune keeps six numbers for every number it sees."""
        report = self._pool.next_report(self._trial_id, after=self._epoch)
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
