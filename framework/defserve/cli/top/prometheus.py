"""Reads the metrics that a server of ours writes in the Prometheus text format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from defserve.cli.top.snapshot import ToolFigures, WorkerFigures

SAMPLE: Final = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL: Final = re.compile(r'(?P<name>[a-zA-Z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)"')
ESCAPED: Final = re.compile(r"\\(.)")

CALLS: Final = "defserve_tool_calls_total"
INFO: Final = "defserve_worker_info"
DURATIONS: Final = "defserve_tool_call_duration_seconds_bucket"
IN_FLIGHT: Final = "defserve_tool_calls_in_flight"
GAUGES: Final = {IN_FLIGHT: "in_flight", "defserve_sessions": "sessions"}
# Metrics of one worker → the field that they are.
OF_WORKERS: Final = {
    "defserve_worker_up": "up",
    "defserve_worker_restarts_total": "restarts",
    "process_cpu_seconds_total": "cpu_seconds",
    "process_resident_memory_bytes": "memory_bytes",
    CALLS: "calls",
    IN_FLIGHT: "in_flight",
}
MOST_WORKERS: Final = 1024
INFINITE: Final = (float("inf"), float("-inf"))


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of every sample. Lines that are none are left out."""
    for line in text.splitlines():
        found = SAMPLE.fullmatch(line)
        if line.startswith("#") or found is None:
            continue
        labels = {each["name"]: _unescaped(each["value"]) for each in LABEL.finditer(found["labels"] or "")}
        try:
            value = float(found["value"])
        except ValueError:
            continue
        if value == value:  # not NaN
            yield found["name"], labels, value


def read_metrics(text: str) -> tuple[dict[str, ToolFigures], Mapping[str, int]]:
    """The figures of each tool, and the gauges by our short names. Those of several workers are added up."""
    outcomes: dict[str, Counter[str]] = {}
    buckets: dict[str, Counter[float]] = {}
    gauges = Counter[str]()
    for name, labels, value in samples(text):
        tool = labels.get("tool", "")
        if value in INFINITE:
            continue
        if name == CALLS:
            outcomes.setdefault(tool, Counter())[labels.get("outcome", "")] += int(value)
        elif name == DURATIONS:
            try:
                buckets.setdefault(tool, Counter())[float(labels.get("le", ""))] += int(value)
            except ValueError:
                continue
        elif name in GAUGES:
            gauges[GAUGES[name]] += int(value)
    figures = {
        tool: ToolFigures(dict(found), sorted(buckets.get(tool, Counter()).items())) for tool, found in outcomes.items()
    }
    return figures, dict(gauges)


def read_workers(text: str) -> dict[str, WorkerFigures]:
    """The figures of each worker, by its number; none if the server is one process."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in samples(text):
        number = labels.get("worker", "")
        if not number or value in INFINITE or (number not in found and len(found) >= MOST_WORKERS):
            continue
        figures = found.setdefault(number, {})
        if name == INFO and labels.get("pid", "").isdecimal():
            figures["pid"] = int(labels["pid"])
        elif name in OF_WORKERS:
            figures[OF_WORKERS[name]] = figures.get(OF_WORKERS[name], 0) + value
    order = sorted(found, key=lambda number: (len(number), number))
    return {number: WorkerFigures(**found[number]) for number in order}


def _unescaped(text: str) -> str:
    return ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
