"""What a process uses, read from /proc while it runs: memory, descriptors, threads; and how many it has started."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from tests.soak.slopes import Bound

PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)

# What a measure may grow by. Memory: what an allocator may hold on to. Processes: workers that start while others end.
BOUNDS = {
    "memory": Bound(6.0, 0.04),
    "descriptors": Bound(3.0),
    "threads": Bound(2.0),
    "processes": Bound(3.0),
    "tasks": Bound(5.0),
    "p50": Bound(0.2, 1.0),
}
UNITS = {"memory": "MB", "p50": "ms"}


@dataclass
class Series:
    """The samples of one scenario, a list a measure; all as long as `times`."""

    times: list[float] = field(default_factory=list[float])
    values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def add(self, at: float, sample: dict[str, float]) -> None:
        self.times.append(at)
        for name, value in sample.items():
            self.values.setdefault(name, [0.0] * (len(self.times) - 1)).append(value)
        for values in self.values.values():
            if len(values) < len(self.times):
                values.append(values[-1])


class Counter:
    """Calls since the last look, and how long each took."""

    def __init__(self) -> None:
        self.total = self.failed = 0
        self.reasons: list[str] = []
        self._latencies: list[float] = []
        self._since, self._last = time.monotonic(), 0

    def done(self, seconds: float, calls: int = 1) -> None:
        self.total += calls
        if len(self._latencies) < 20_000:
            self._latencies.append(seconds)

    def wrong(self, reason: str) -> None:
        """A call that failed, and must not have."""
        self.failed += 1
        if len(self.reasons) < 5:
            self.reasons.append(reason)

    def sample(self) -> dict[str, float]:
        now, latencies = time.monotonic(), self._latencies
        found = {"calls": (self.total - self._last) / max(now - self._since, 1e-9)}
        if len(latencies) > 1:
            cut = quantiles(latencies, n=100)
            found |= {"p50": cut[49] * 1000, "p99": cut[98] * 1000}
        self._since, self._last, self._latencies = now, self.total, []
        return found


def usage(pids: Iterable[int]) -> dict[str, float]:
    """Of these processes together. Those below them are only counted.

    They are replaced again and again: what all use together says how many there are just now, and nothing of growth.
    """
    memory = descriptors = threads = processes = 0.0
    for pid in pids:
        with suppress(OSError):
            memory += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_MB
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
            threads += len(os.listdir(f"/proc/{pid}/task"))
        processes += len(family(pid))
    return {"memory": memory, "descriptors": descriptors, "threads": threads, "processes": processes}


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return found
