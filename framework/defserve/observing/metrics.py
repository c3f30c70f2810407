"""Metrics in the Prometheus text format (0.0.4): tool calls by name and outcome, how long they took, what is open."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.observing.watcher import RequestOutcome, RequestWatcher

# Upper bounds in seconds; the last one, +Inf, holds the rest.
BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
# Stands for all unknown tools. Callers could make up any number of names, so those are not counted.
UNKNOWN = ""


class Durations:
    """A histogram."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(BUCKETS) + 1), 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds


class Metrics(RequestWatcher[None]):
    """Counts the calls of tools. It counts on the event loop only, so it needs no lock."""

    name = "metrics"
    methods_watched = ("tools/call",)

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], int] = {}
        self.durations: dict[str, Durations] = {}
        self.in_flight = 0

    def begin(self, call: Call) -> None:
        self.in_flight += 1

    def end(self, call: Call, begun: None, seconds: float, outcome: RequestOutcome) -> None:
        self.in_flight -= 1
        tool = call.subject_name or UNKNOWN
        key = tool, outcome.kind
        self.calls[key] = self.calls.get(key, 0) + 1
        self.durations.setdefault(tool, Durations()).add(seconds)

    def text(self, composition: Composition) -> str:
        """The metrics as Prometheus reads them."""
        return "".join(f"{line}\n" for line in self._lines(composition))

    def _lines(self, composition: Composition) -> Iterator[str]:
        yield from head("defserve_tool_calls_total", "counter", "Calls of tools, by how they ended.")
        for (tool, outcome), count in self.calls.items():
            yield f"defserve_tool_calls_total{labels(tool=tool, outcome=outcome)} {count}"
        yield from head("defserve_tool_call_duration_seconds", "histogram", "How long calls of tools took.")
        for tool, durations in self.durations.items():
            yield from _histogram("defserve_tool_call_duration_seconds", tool, durations)
        yield from head("defserve_tool_calls_in_flight", "gauge", "Calls of tools under way.")
        yield f"defserve_tool_calls_in_flight {self.in_flight}"
        yield from head("defserve_sessions", "gauge", "Conversations that were opened and have not ended.")
        yield f"defserve_sessions {len(composition.sessions)}"


def head(name: str, kind: str, about: str) -> Iterable[str]:
    """The lines that begin a metric."""
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _histogram(name: str, tool: str, durations: Durations) -> Iterator[str]:
    bounds = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
    sums = list(accumulate(durations.counts))
    for bound, count in zip(bounds, sums, strict=True):
        yield f"{name}_bucket{labels(tool=tool, le=bound)} {count}"
    yield f"{name}_sum{labels(tool=tool)} {durations.sum:.6f}"
    yield f"{name}_count{labels(tool=tool)} {sums[-1]}"


def labels(**values: str) -> str:
    """Names and values in the text format."""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
