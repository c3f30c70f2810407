"""The results in docs/benchmarks.md, and figures on other pages, made of what `make bench` wrote as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
    """What was wanted and found, where defserve loses, and every figure. What is long is folded."""
    results = results_of(found["measures"])
    verdicts = judge(results)
    text = report.as_markdown(results, verdicts, dict(found["facts"]), PAGE_NAMES).partition("\n\n")[2]
    facts, _, rest = text.partition("\n\n## ")
    targets, _, figures = rest.partition("\n## ")
    losses = _losses(results)
    measured = [verdict for verdict in verdicts if verdict.met is not None]
    reached = sum(1 for verdict in measured if verdict.met)
    parts = [
        facts,
        f"### Targets\n\n{reached} of {len(measured)} were reached.",
        _folded("All targets", targets.partition("\n")[2].strip()),
        "### Where defserve loses",
        _sum_up(losses),
        _folded("All of them", _loss_table(losses)) if losses else "",
        "### Every figure",
        *(_folded(*section.strip().split("\n\n", 1)) for section in figures.split("\n## ")),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


# Rows of tables that compare, in README.md and docs/comparison.md, and what was measured for them.
FIGURES = {
    "start to first list, 3 tools": "start/scalar",
    "calls per second, stdio, one at a time": "calls/add/1",
    "calls per second, HTTP with a session, 32 connections": "http/session",
    "calls per second, HTTP stateless, 32 connections": "http/stateless",
    "memory after start": "memory/start",
}
COMPARED = (SUBJECT, "fastmcp", "sdk")


def with_figures(page: str, found: Mapping[str, Any]) -> str:
    """The page with these results in the rows that compare."""
    results = results_of(found["measures"])
    for row, measure in FIGURES.items():
        cells = " | ".join(_cell(results, measure, name) for name in COMPARED)
        page = re.sub(rf"^\| {row} \|.*$", f"| {row} | {cells} |", page, flags=re.MULTILINE)
    return page


def _cell(results: Results, measure: str, name: str) -> str:
    figure, in_json = (results.figure(measure, each) for each in (name, f"{name} json"))
    assert figure, f"{measure} of {name} was not measured"
    shown = _shown(measure, figure.median)
    return f"{shown}; JSON mode {_shown(measure, in_json.median)}" if in_json else shown


def _shown(measure: str, value: float) -> str:
    if measure.startswith("start/"):
        return f"{value / 1000:.2f} s"
    return f"{value:.0f} MiB" if measure.startswith("memory/") else f"{float(f'{value:.3g}'):,.0f}"


def _folded(title: str, text: str) -> str:
    return f"<details markdown>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def results_of(measures: Mapping[str, Any]) -> Results:
    results = Results()
    for measure, contenders in measures.items():
        for contender, figure in contenders.items():
            for value in figure["rounds"]:
                results.add(measure, contender, value)
    return results


class Loss(NamedTuple):
    """A measure in which somebody else is clearly better, and how many times."""

    measure: str
    name: str
    times: float


def _losses(results: Results) -> list[Loss]:
    losses = list[Loss]()
    for measure in results.all_measures():
        for name in PAGE_NAMES:
            ratio = None if name == SUBJECT else results.ratio(measure, SUBJECT, measure, name)
            if not ratio:
                continue
            worse = 1 / ratio if measure.partition("/")[0] in MORE else ratio
            if worse > CLEARLY:
                losses.append(Loss(measure, name, worse))
    return losses


def _sum_up(losses: Sequence[Loss]) -> str:
    """In how many measures each of the others is better."""
    if not losses:
        return "In this run nobody else was better by more than 5 %."
    counts = Counter(loss.name for loss in losses)
    told = ", ".join(f"*{name}* in {count}" for name, count in counts.most_common())
    return f"Others are better by more than 5 %: {told}."


def _loss_table(losses: Sequence[Loss]) -> str:
    rows = list[str]()
    for loss in losses:
        section, _, rest = loss.measure.partition("/")
        rows.append(f"| {section} | {rest.replace('/', ', window ')} | {loss.name} | {loss.times:.3g} × |")
    return "\n".join(["| measure | of | better is | by |", "|---|---|---|---:|", *rows])
