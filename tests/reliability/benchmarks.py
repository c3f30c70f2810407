"""The page docs/benchmarks.md, made of what `make bench` wrote as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench import report
from tests.bench.__main__ import PAGE_NAMES
from tests.bench.results import Results
from tests.bench.targets import SUBJECT, judge

INTRO = """\
# Benchmarks

`make bench` measures servers that do the same: a hand-written floor (a loop over pipes, or a bare ASGI app), the
official Python SDK, FastMCP and defserve. All run in one round after another on one machine, so the ratios hold
better than the figures. `python -m tests.reliability --take bench bench-results/bench.json` makes this page.
"""
MORE = ("calls", "http", "relist", "workers", "gateway", "push", "state-commits", "state-writes")
"""Sections in which more is better. In all others, less is."""
CLEARLY = 1.05


def benchmarks(found: Mapping[str, Any]) -> str:
    """The whole page."""
    results = results_of(found["measures"])
    text = report.as_markdown(results, judge(results), dict(found["facts"]), PAGE_NAMES)
    return "\n".join([INTRO, _losses(results), text.partition("\n\n")[2]])


def results_of(measures: Mapping[str, Any]) -> Results:
    results = Results()
    for measure, contenders in measures.items():
        for contender, figure in contenders.items():
            for value in figure["rounds"]:
                results.add(measure, contender, value)
    return results


def _losses(results: Results) -> str:
    """Every measure in which somebody else is clearly better."""
    lines: list[str] = []
    for measure in results.all_measures():
        for name in PAGE_NAMES:
            ratio = None if name == SUBJECT else results.ratio(measure, SUBJECT, measure, name)
            if not ratio:
                continue
            worse = 1 / ratio if measure.partition("/")[0] in MORE else ratio
            if worse > CLEARLY:
                section, _, rest = measure.partition("/")
                lines.append(f"| {section} | {rest.replace('/', ', window ')} | {name} | {worse:.3g} × |")
    head = "## Where defserve loses\n\n"
    if not lines:
        return head + "In this run nobody else was better by more than 5 %.\n"
    return "\n".join([head + "| measure | of | better is | by |\n|---|---|---|---:|", *lines]) + "\n"
