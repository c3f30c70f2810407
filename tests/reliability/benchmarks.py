"""The results in docs/benchmarks.md, made of what `make bench` wrote as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench import report
from tests.bench.__main__ import PAGE_NAMES
from tests.bench.results import Results
from tests.bench.targets import SUBJECT, judge

MORE = ("calls", "http", "relist", "workers", "gateway", "push", "state-commits", "state-writes")
"""Sections in which more is better. In all others, less is."""
CLEARLY = 1.05


BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def with_results(page: str, found: Mapping[str, Any]) -> str:
    """The page with these results between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{benchmarks(found)}{END}{rest.partition(END)[2]}"


def benchmarks(found: Mapping[str, Any]) -> str:
    """What was wanted and found, where defserve loses, and every figure."""
    results = results_of(found["measures"])
    text = report.as_markdown(results, judge(results), dict(found["facts"]), PAGE_NAMES).partition("\n\n")[2]
    targets, _, figures = text.partition("\n## ")[2].partition("\n## ")
    facts = text.partition("\n## ")[0]
    whole = "\n".join([facts, f"\n## {targets}", _losses(results), f"## {figures}"])
    return whole.replace("\n## ", "\n### ")


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
    head = "\n## Where defserve loses\n\n"
    if not lines:
        return head + "In this run nobody else was better by more than 5 %.\n"
    return "\n".join([head + "| measure | of | better is | by |\n|---|---|---|---:|", *lines]) + "\n"
