"""What a server or kernel says of itself at one moment, and what happened between two moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolFigures:
    """The calls of one tool since its server began: by outcome, and how many took at most so many seconds."""

    outcomes: Mapping[str, int] = field(default_factory=dict[str, int])
    buckets: Sequence[tuple[float, int]] = ()
    """Upper bound in seconds → calls up to it; the last bound is infinite."""

    @property
    def calls(self) -> int:
        return sum(self.outcomes.values())

    @property
    def errors(self) -> int:
        return self.outcomes.get("error", 0)

    def since(self, before: ToolFigures) -> ToolFigures:
        """Only what happened after `before`. A server that began again is counted from its begin."""
        if before.calls > self.calls:
            return self
        outcomes = {name: count - before.outcomes.get(name, 0) for name, count in self.outcomes.items()}
        old = dict(before.buckets)
        return ToolFigures(outcomes, [(bound, count - old.get(bound, 0)) for bound, count in self.buckets])

    def quantile(self, share: float) -> float | None:
        """Within so many seconds that share of the calls was done, as buckets tell it; None without calls."""
        total = self.buckets[-1][1] if self.buckets else 0
        lower, below = 0.0, 0
        for bound, count in self.buckets:
            if total and count >= share * total:
                if bound == float("inf"):
                    return lower
                return lower + (bound - lower) * ((share * total - below) / (count - below) if count > below else 1)
            lower, below = bound, count
        return None


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One of the processes that serve together. A worker that does not answer has no `pid`."""

    pid: float = 0
    up: float = 0
    calls: float = 0
    in_flight: float = 0
    cpu_seconds: float = 0
    memory_bytes: float = 0
    restarts: float = 0


@dataclass(frozen=True, slots=True)
class TopSnapshot:
    """`time` is monotonic. A server has `tools`, a kernel has `servers`: rows of its `ps`.

    A server of several processes also has `workers`, by number.
    """

    time: float
    name: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tools: Mapping[str, ToolFigures] | None = None
    servers: Sequence[Mapping[str, Any]] | None = None
    note: str = ""
    workers: Mapping[str, WorkerFigures] = field(default_factory=dict[str, WorkerFigures])

    def worker_rates(self, before: TopSnapshot | None) -> dict[str, tuple[float, float]]:
        """Calls per second of each worker, and its share of a processor, since `before`."""
        if before is None or self.time <= before.time:
            return {}
        seconds = self.time - before.time
        rates: dict[str, tuple[float, float]] = {}
        for number, now in self.workers.items():
            then = before.workers.get(number)
            if then is not None and now.pid:
                # A process that was started again is counted from its begin.
                since = then if then.pid == now.pid else WorkerFigures()
                rates[number] = (now.calls - since.calls) / seconds, (now.cpu_seconds - since.cpu_seconds) / seconds
        return rates

    def rates(self, before: TopSnapshot | None) -> dict[str, float]:
        """Calls per second of each tool or server since `before`."""
        if before is None or self.time <= before.time:
            return {}
        now, then = self._totals(), before._totals()
        seconds = self.time - before.time
        return {
            name: (total - then[name] if total >= then[name] else total) / seconds
            for name, total in now.items()
            if name in then
        }

    def _totals(self) -> dict[str, int]:
        if self.servers is not None:
            return {str(row["id"]): int(row.get("calls_total") or 0) for row in self.servers}
        return {name: figures.calls for name, figures in (self.tools or {}).items()}

    def wire(self, before: TopSnapshot | None) -> dict[str, Any]:
        """For `--json`."""
        rates = self.rates(before)
        said: dict[str, Any] = {"name": self.name, **self.facts}
        if self.servers is not None:
            said["servers"] = [{**row, "calls_per_second": rates.get(str(row["id"]))} for row in self.servers]
        if self.workers:
            shares = self.worker_rates(before)
            said["workers"] = {
                number: {
                    **{name: value for name, value in asdict(figures).items() if name != "cpu_seconds"},
                    "calls_per_second": shares.get(number, (None, None))[0],
                    "cpu_share": shares.get(number, (None, None))[1],
                }
                for number, figures in self.workers.items()
            }
        if self.tools is not None:
            said["tools"] = {
                name: {
                    "calls": dict(figures.outcomes),
                    "calls_per_second": rates.get(name),
                    "p50_seconds": figures.quantile(0.5),
                    "p95_seconds": figures.quantile(0.95),
                }
                for name, figures in self.tools.items()
            }
        return said | ({"note": self.note} if self.note else {})
