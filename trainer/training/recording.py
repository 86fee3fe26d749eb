"""How a trial ran beside others, for a rerun of it alone: on a GPU a lane has the same bits at equal capacity alone.

Kept in the rerun's folder, so that one that was interrupted goes on with it. No torch here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

RECORDING = "recording.json"


@dataclass(frozen=True)
class Recording:
    """What a sweep noted of a trial."""

    capacities: tuple[int, ...] = ()  # rows of its lane group, idle ones included, epoch by epoch
    rungs: tuple[int, ...] = ()  # epochs at which its score was asked for: those before them are validated

    def capacity(self, epoch: int, lanes: int) -> int | None:
        """Rows after ``epoch`` finished epochs; None where nothing is recorded or the lanes are more by now."""
        recorded = self.capacities[epoch] if epoch < len(self.capacities) else 0
        return recorded if recorded >= lanes else None


NOTHING = Recording()


def write_recording(recording: Recording, folder: Path) -> None:
    """Leave it in the trial's folder."""
    (folder / RECORDING).write_text(json.dumps(asdict(recording)), encoding="utf-8")


def read_recording(folder: Path) -> Recording:
    """The recording that a trial's folder holds, an empty one where it holds none."""
    path = folder / RECORDING
    if not path.is_file():
        return NOTHING
    content = json.loads(path.read_text(encoding="utf-8"))
    return Recording(tuple(content["capacities"]), tuple(content["rungs"]))
