"""Results as text: one Markdown document, readable in a terminal too, and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .results import Figure, Results
from .targets import SUBJECT, Verdict

MARKS = {True: "✓", False: "✗", None: "not measured"}
NONE = "–"


def as_markdown(results: Results, verdicts: Sequence[Verdict], facts: dict[str, str], names: Sequence[str]) -> str:
    """The whole report; `facts` are the circumstances, `names` the contenders in column order."""
    parts = [
        "# Benchmark",
        "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        "## Targets\n\nRatios are medians of the ratios within each round.",
        table(["defserve's", "wanted", "got", ""], [_target_row(verdict) for verdict in verdicts]),
    ]
    for title, section, show in SECTIONS:
        measures = results.measures(section)
        if measures:
            parts += [f"## {title}", _figures(results, measures, names, show)]
    return "\n\n".join(parts) + "\n"


def as_json(results: Results, verdicts: Sequence[Verdict], facts: dict[str, str]) -> dict[str, Any]:
    targets = [
        {"claim": verdict.target.claim, "wanted": verdict.target.wanted, "got": verdict.got, "met": verdict.met}
        for verdict in verdicts
    ]
    return {"facts": facts, "targets": targets, "measures": results.as_json()}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table padded to line up; the first column is left-aligned, the others right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines.insert(1, rule)
    return "\n".join("| " + " | ".join(_padded(line, widths)) + " |" for line in lines)


def _padded(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]


def _target_row(verdict: Verdict) -> list[str]:
    got = NONE if verdict.got is None else f"{rounded(verdict.got)} {verdict.target.unit}"
    return [verdict.target.claim, verdict.target.wanted, got, MARKS[verdict.met]]


def _figures(results: Results, measures: Sequence[str], names: Sequence[str], show: Callable[[Figure], str]) -> str:
    """A row a measure: every contender's figure, then defserve's as a ratio of each other's."""
    columns = [name for name in (*names, "process") if any(results.figure(measure, name) for measure in measures)]
    others = [name for name in columns if name not in (SUBJECT, "process") and SUBJECT in columns]
    head = ["", *columns, *(f"{SUBJECT} / {name}" for name in others)]
    rows: list[list[str]] = []
    for measure in measures:
        figures = [results.figure(measure, name) for name in columns]
        ratios = [results.ratio(measure, SUBJECT, measure, name) for name in others]
        shown = [show(figure) if figure else NONE for figure in figures]
        compared = [NONE if ratio is None else f"{ratio:.3g}" for ratio in ratios]
        rows.append([label(measure), *shown, *compared])
    return table(head, rows)


def label(measure: str) -> str:
    """`calls/add/32` reads "add, window 32"; other measures go by what follows their section."""
    section, name, *window = measure.split("/")
    if window:
        return f"{name}, window {window[0]}"
    return f"{name} tools" if section.endswith("list") else name


def _with_range(figure: Figure) -> str:
    if figure.low == figure.high:
        return rounded(figure.median)
    return f"{rounded(figure.median)} ({rounded(figure.low)}–{rounded(figure.high)})"


def _median_only(figure: Figure) -> str:
    return rounded(figure.median)


def rounded(value: float) -> str:
    """Three digits, or all of a number that has more before its point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


Section = tuple[str, str, Callable[[Figure], str]]


def _of_calls(what: str, section: str, whose: str) -> Iterable[Section]:
    """The sections about single calls over a network."""
    for part in ("p50", "p99"):
        yield f"{what}, latency, {part}, in µs", f"{section}-{part}", _median_only
    yield f"{what}, processor time of {whose} for each call, in µs", f"{section}-cpu", _median_only


SECTIONS: tuple[Section, ...] = (
    ("Start: spawn, initialize, first tools/list, in ms: median (least–most)", "start", _with_range),
    ("Calls per second: median (least–most)", "calls", _with_range),
    ("Latency, p50, in µs", "p50", _median_only),
    ("Latency, p99, in µs", "p99", _median_only),
    ("Processor time of the server for each call, in µs", "cpu", _median_only),
    ("Resident memory, in MiB", "memory", _with_range),
    ("First tools/list of many tools, from spawn, in ms: median (least–most)", "list", _with_range),
    ("The same tools/list again, per second", "relist", _median_only),
    ("HTTP, 32 connections, calls of add per second: median (least–most)", "http", _with_range),
    *_of_calls("HTTP", "http", "the server"),
    ("HTTP, resident memory of a session, of 10,000 that idle, in bytes", "http-memory", _with_range),
    ("Workers, 32 connections each, stateless calls of add per second: median (least–most)", "workers", _with_range),
    *_of_calls("Workers", "workers", "all processes"),
    ("Workers, resident memory of a session, of 10,000 over 4 workers, in bytes", "workers-memory", _with_range),
    *_of_calls("Sessions that workers share through a Redis", "shared", "all processes"),
    ("Sessions that workers share: scripts that Redis runs for each call", "shared-scripts", _median_only),
    ("A call with state, latency, p50, in µs", "stores-p50", _median_only),
    ("A call with state, processor time of the server, in µs", "stores-cpu", _median_only),
    ("A call with state, round trips to the store", "stores-trips", _median_only),
    ("mgp/health/ping while every worker thread sleeps, p99 in ms", "health-p99", _with_range),
    ("add over HTTP while a slow reader streams in the same session, p99 in ms", "stream-p99", _with_range),
    (
        "A stream to a slow reader: what it adds to the server's memory at its peak, in MiB",
        "stream-memory",
        _with_range,
    ),
    ("A stream that nobody reads: chunks between the pipe and an answer, in bytes", "stream-waiting", _with_range),
    ("A topic, one talks and all hear it: messages delivered per second", "gateway", _with_range),
    ("A topic, from saying to the last one hearing it, p99 in µs", "gateway-p99", _median_only),
    ("A topic, resident memory of a connection, in bytes", "gateway-memory", _median_only),
    ("Events pushed through one session, per second, from `push` to its receipt", "push", _with_range),
    (
        "State: durable commits per second; by hand, the whole each time (`sqlite`) or our bytes again (`replay`)",
        "state-commits",
        _with_range,
    ),
    ("State: the same states per second, kept by the store alone", "state-writes", _with_range),
    ("State: reading a checkpoint that is not in memory, in µs", "state-read", _with_range),
    ("State: rolling back, in µs", "state-rollback", _with_range),
    ("State of 100 kB: what one change costs on the wire, in bytes", "state-bytes", _median_only),
    ("Code mode, 50 calls of add in ms: median (least–most)", "code", _with_range),
    ("Code mode, what 50 calls by code take longer than by the client, in ms", "code-over", _with_range),
    ("Proxies: a call's median, in µs", "proxy-p50", _median_only),
    ("Proxies: what they add to the direct median, in µs", "proxy-added", _median_only),
    ("Proxies: processor time of the proxy (direct: of the server) for each call, in µs", "proxy-cpu", _median_only),
    ("Proxies: what a kernel over HTTP adds to the direct median, by caller, in ms", "proxy-callers", _with_range),
    ("Proxies: the last of 4 calls at once by callers without a key, in ms", "proxy-strangers", _with_range),
    ("Proxies: conversations opened behind them for one client of 20 calls", "proxy-opened", _median_only),
    ("Proxies: resident memory of the kernel, in MB", "proxy-memory", _with_range),
    ("Proxies: processor time of a local tool beside mounted servers, in µs", "proxy-local", _with_range),
    ("Proxies: 90 calls at once, while ten more go to a server that hangs, p99 in µs", "proxy-hanging", _with_range),
)
