"""Measures what a trial costs on this machine, in a process of its own (it loads torch, which search does not).

    python -m search.estimate profile.toml

Prints one JSON line. Epochs are timed with one and with several trials in a group: what each more of them adds is what
a full group costs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

MORE = 4
"""Trials of the larger group."""


def measure(profile: str) -> dict[str, float | str]:
    """Bytes of a lane and seconds of an epoch, ``alone`` and for ``each_more`` trial beside it."""
    from cluster.capacity import Capacity, lane_bytes
    from cluster.config import PoolConfig
    from trainer.commands.options import choose_device
    from trainer.config import load_config
    from trainer.training.group import LaneGroup
    from trainer.training.prepare import prepare

    config, device = load_config(profile), choose_device("auto")
    group = LaneGroup(config, prepare(config, device), device)
    group.admit("0", config)
    alone = _epoch_seconds(group.advance)
    for trial in range(1, MORE):
        group.admit(str(trial), config)
    together = _epoch_seconds(group.advance)
    empty = Capacity(PoolConfig(), device, 1).offer({}, {})
    return {
        "device": device.type,
        "room_lanes": float(empty.lanes),
        "room_bytes": float(empty.bytes_free),
        "lane_bytes": float(lane_bytes(group.state)),
        "alone": alone,
        "each_more": max((together - alone) / (MORE - 1), 0.0),
    }


def _epoch_seconds(advance: Callable[[], object]) -> float:
    """Of the second epoch: the first one warms up."""
    advance()
    began_s = time.perf_counter()
    advance()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
