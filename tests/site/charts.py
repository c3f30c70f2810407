"""Bar charts of what `make bench` measured: of the results that are kept in tests/reliability."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from tests.bench.results import Results
from tests.bench.targets import SUBJECT
from tests.reliability.benchmarks import results_of

from .places import ROOT

RESULTS: Final = ROOT / "tests/reliability/results/bench.json"
# Who is shown, and under which name. Of those that have a JSON mode over HTTP, the faster one counts.
NAMES: Final = {
    SUBJECT: "defserve",
    "fastmcp": "FastMCP",
    "sdk": "Python SDK",
    "typescript": "TypeScript SDK",
    "floor": "by hand",
    "bare": "by hand",
}
JSON_MODE: Final = " json"
WIDTH, LABEL, ROW, HEAD = 360, 104, 24, 52
FONT: Final = "font-family:var(--sans)"


@dataclass(frozen=True)
class Chart:
    """One measure as bars: `claim` has a place for how many times better defserve is than FastMCP."""

    measure: str
    claim: str
    unit: str
    about: str
    contenders: tuple[str, ...] = (SUBJECT, "fastmcp", "sdk")
    more_is_better: bool = True


WITH_FLOOR: Final = (SUBJECT, "fastmcp", "sdk", "typescript", "floor")
WITH_BARE: Final = (SUBJECT, "fastmcp", "sdk", "typescript", "bare")

CHARTS: Final = {
    # The three of the first page.
    "figure-start": Chart(
        "start/scalar", "Ready {} × sooner", "ms", "from start to the list of 3 tools", more_is_better=False
    ),
    "figure-calls": Chart("calls/add/1", "{} × the calls", "a second", "over stdio, one by one"),
    "figure-memory": Chart("memory/start", "{} × less memory", "MiB", "after the start", more_is_better=False),
    # The page of the benchmarks.
    "bench-start": Chart("start/scalar", "Start", "ms", "until 3 tools are listed; less is better", WITH_FLOOR, False),
    "bench-memory": Chart("memory/start", "Memory", "MiB", "after the start; less is better", WITH_FLOOR, False),
    "bench-calls": Chart("calls/add/1", "Calls over stdio", "a second", "one after the other", WITH_FLOOR),
    "bench-window": Chart("calls/add/32", "Calls over stdio", "a second", "32 at a time", WITH_FLOOR),
    "bench-session": Chart("http/session", "Calls over HTTP, in sessions", "a second", "32 connections", WITH_BARE),
    "bench-stateless": Chart("http/stateless", "Calls over HTTP, stateless", "a second", "32 connections", WITH_BARE),
}


def kept_results() -> Results:
    return results_of(_kept()["measures"])


def _kept() -> Mapping[str, Any]:
    return json.loads(RESULTS.read_text("utf-8"))


def best(results: Results, chart: Chart, contender: str) -> float:
    """What a contender reached, in its faster mode if it has two."""
    figures = [results.figure(chart.measure, name) for name in (contender, contender + JSON_MODE)]
    reached = [figure.median for figure in figures if figure]
    return max(reached) if chart.more_is_better else min(reached)


def draw(chart: Chart, results: Results) -> str:
    values = {name: best(results, chart, name) for name in chart.contenders}
    ours, theirs = values[SUBJECT], values["fastmcp"]
    claim = chart.claim.format(_times(ours / theirs if chart.more_is_better else theirs / ours))
    told = ", ".join(f"{NAMES[name]} {_number(value)}" for name, value in values.items())
    about = f"{claim}: {chart.unit} {chart.about}. {told}."
    height = HEAD + ROW * len(values) + 4
    scale = (WIDTH - LABEL - 64) / max(values.values())
    rows = [_draw_row(index, name, value, value * scale) for index, (name, value) in enumerate(values.items())]
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" {size} role="img" aria-label="{escape(about)}">',
            f'<g style="{FONT}" font-size="13">',
            f'<text y="18" font-size="16" font-weight="600" fill="var(--text)">{escape(claim)}</text>',
            f'<text y="38" font-size="12" fill="var(--text-3)">{escape(f"{chart.unit}, {chart.about}")}</text>',
            *rows,
            "</g>",
            "</svg>\n",
        ]
    )


def _draw_row(index: int, name: str, value: float, length: float) -> str:
    y = HEAD + ROW * index
    ours = name == SUBJECT
    fill, text, weight = ("var(--accent)", "var(--text)", 600) if ours else ("var(--edge)", "var(--text-2)", 400)
    label = f'<text y="{y + 14}" fill="{text}" font-weight="{weight}">{NAMES[name]}</text>'
    bar = f'<rect x="{LABEL}" y="{y + 3}" width="{max(length, 2):.1f}" height="14" rx="3" fill="{fill}"/>'
    at = LABEL + max(length, 2) + 8
    return f'{label}{bar}<text x="{at:.1f}" y="{y + 14}" fill="{text}" font-weight="{weight}">{_number(value)}</text>'


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def _number(value: float) -> str:
    """Two or three digits: as much as holds from run to run."""
    return f"{float(f'{value:.3g}'):,.0f}"
