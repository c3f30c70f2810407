"""Reads the metrics that a server of ours writes in the Prometheus text format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from defserve.cli.top.snapshot import ToolFigures

SAMPLE: Final = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL: Final = re.compile(r'(?P<name>[a-zA-Z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)"')
ESCAPED: Final = re.compile(r"\\(.)")

CALLS: Final = "defserve_tool_calls_total"
DURATIONS: Final = "defserve_tool_call_duration_seconds_bucket"
GAUGES: Final = {"defserve_tool_calls_in_flight": "in_flight", "defserve_sessions": "sessions"}


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
    """The figures of each tool, and the gauges by our short names."""
    outcomes: dict[str, dict[str, int]] = {}
    buckets: dict[str, list[tuple[float, int]]] = {}
    gauges: dict[str, int] = {}
    for name, labels, value in samples(text):
        tool = labels.get("tool", "")
        if value in (float("inf"), float("-inf")):
            continue
        if name == CALLS:
            outcomes.setdefault(tool, {})[labels.get("outcome", "")] = int(value)
        elif name == DURATIONS:
            try:
                buckets.setdefault(tool, []).append((float(labels.get("le", "")), int(value)))
            except ValueError:
                continue
        elif name in GAUGES:
            gauges[GAUGES[name]] = int(value)
    figures = {tool: ToolFigures(found, sorted(buckets.get(tool, []))) for tool, found in outcomes.items()}
    return figures, gauges


def _unescaped(text: str) -> str:
    return ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
