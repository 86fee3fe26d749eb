"""How many lanes a trainer has room for: measured memory, not a constant.

A lane costs its tensors, and the larger of a copy of them (joining and leaving copy the group) and what an epoch was
seen to need on top. The budget is a share of the memory that nobody else uses.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from cluster.config import PoolConfig
from cluster.protocol import Offer
from cluster.resources import trainers_per_gpu
from trainer.lanes.tree import flatten
from trainer.training.capture import LADDER, capacity_of
from trainer.training.lane_state import LaneState

CPU_LANES = 32
"""Most lanes of a trainer on a CPU where the configuration does not say: more only makes an epoch longer there."""
_CGROUP, _MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/meminfo")


class Capacity:
    """What a trainer knows about its memory.

    Args:
        config: share and limits.
        device: where lanes live.
        slots: trainers that share this machine's memory; of a GPU's each has its part.
    """

    def __init__(self, config: PoolConfig, device: torch.device, slots: int) -> None:
        self.config, self.device = config, device
        self.slots = slots if device.type == "cpu" else 1
        self._state_bytes: dict[str, int] = {}
        self._work_bytes: dict[str, int] = {}
        self._limit: dict[str, int] = {}

    def admitted(self, signature: str, state: LaneState) -> None:
        """Lanes of a signature came to lie in memory."""
        self._state_bytes[signature] = lane_bytes(state)

    @property
    def known(self) -> frozenset[str]:
        """Signatures of which it is known what a lane costs."""
        return frozenset(s for s in self._state_bytes if s in self._work_bytes or self.device.type == "cpu")

    def before_epoch(self) -> None:
        """Start to watch an epoch's working memory."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._allocated = torch.cuda.memory_allocated(self.device)

    def after_epoch(self, signature: str, lanes: int) -> None:
        """An epoch of ``lanes`` lanes is over."""
        peak = torch.cuda.max_memory_allocated(self.device) - self._allocated if self.device.type == "cuda" else 0
        self._work_bytes[signature] = max(self._work_bytes.get(signature, 0), peak // lanes)

    def exceeded(self, signature: str, lanes: int) -> None:
        """``lanes`` lanes of a signature were too many: half of them is the limit from now on."""
        self._limit[signature] = max(lanes // 2, 1)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def offer(self, lanes: dict[str, int], leaving: dict[str, int]) -> Offer:
        """The room left.

        Args:
            lanes: resident lanes by signature.
            leaving: those of them that leave at the next boundary.
        """
        costs = {s: self._cost(s) for s in self.known}
        staying = {signature: count - leaving.get(signature, 0) for signature, count in lanes.items()}
        used = {s: costs.get(s, 0) * capacity_of(count, self.device) for s, count in staying.items()}
        budget = int(self._budget(lanes))
        free = budget - sum(used.values())
        limit = {s: self._rows(free + used.get(s, 0), cost) for s, cost in costs.items() if cost}
        for signature, most in self._limit.items():
            limit[signature] = min(most, limit.get(signature, most))
        return Offer(
            lanes=self._most() - sum(staying.values()),
            bytes_free=free,
            lane_bytes=costs,
            lane_limit=limit,
            groups=tuple(signature for signature, count in lanes.items() if count),
        )

    def _most(self) -> int:
        if self.config.lanes is not None:
            return self.config.lanes
        return CPU_LANES if self.device.type == "cpu" else 1 << 30

    def _rows(self, free: int, cost: int) -> int:
        """Most lanes whose group, idle rows included, fits into ``free`` bytes."""
        rows = max(free, 0) // cost
        if self.device.type != "cuda":
            return rows
        if rows >= LADDER[-1]:
            return rows // LADDER[-1] * LADDER[-1]
        return max((size for size in LADDER if size <= rows), default=0)

    def _cost(self, signature: str) -> int:
        state = self._state_bytes[signature]
        return state + max(state, self._work_bytes.get(signature, 0))

    def _budget(self, lanes: dict[str, int]) -> float:
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            free = min(free + torch.cuda.memory_reserved(self.device), total // trainers_per_gpu(self.config))
        else:
            held = sum(self._state_bytes.get(signature, 0) * count for signature, count in lanes.items())
            free = available_memory() // self.slots + held
        return self.config.memory_share * free


def lane_bytes(state: LaneState) -> int:
    """Bytes of one lane's tensors."""
    tensors = flatten(state).values()
    return sum(tensor.numel() * tensor.element_size() // tensor.shape[0] for tensor in tensors)


def available_memory() -> int:
    """Bytes that this machine, or the container's limit, still has for us."""
    available = _machine_memory()
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, max(int(limit) - used, 0))


def _machine_memory() -> int:
    """What Linux calls available; elsewhere half of the machine."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
