"""A snapshot as blocks: a head of facts, and a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from defserve.cli.kernel.lines import LONGEST_NOTE, duration, note_of
from defserve.cli.screen.blocks import Block, Line, Part, Table
from defserve.cli.screen.counts import counted
from defserve.cli.screen.styles import state
from defserve.cli.top.snapshot import ToolFigures, TopSnapshot, WorkerFigures

KEYS: Final = "q quits"
UNKNOWN_TOOLS: Final = "(unknown tools)"


def page(now: TopSnapshot, before: TopSnapshot | None) -> Iterator[Block]:
    yield _head(now, sum(now.rates(before).values()) if before else None)
    if now.note:
        yield Line((f"note: {now.note}", "warning"))
    yield ""
    if now.servers is not None:
        yield servers_table(now, before)
        return
    if now.workers:
        yield workers_table(now, before)
        yield ""
    if now.tools is not None:
        yield tools_table(now, before) if now.tools else "No tool was called yet."


def _head(now: TopSnapshot, rate: float | None) -> Line:
    facts = now.facts
    parts: list[Part] = [(now.name, "heading")]
    if "status" in facts:
        parts += ["  ", state(str(facts["status"]))]
    told = [
        f"up {duration(float(facts['uptime_secs']))}" if "uptime_secs" in facts else "",
        f"{facts['connected']} of {facts['servers']} servers" if "connected" in facts else "",
        counted(facts["tools"], "tool") if facts.get("tools") is not None else "",
        counted(facts["sessions"], "session") if "sessions" in facts else "",
        f"{facts['in_flight']} running" if "in_flight" in facts else "",
        f"{facts['memory_bytes'] / 1_048_576:,.0f} MiB" if "memory_bytes" in facts else "",
        f"{rate:,.1f} calls/s" if rate is not None else "",
    ]
    return Line(*parts, (f"  {', '.join(filter(None, told))}", "faint"))


def tools_table(now: TopSnapshot, before: TopSnapshot | None) -> Table:
    """Busy tools first. Latencies are those since `before`, or of all calls if there were none since."""
    rates, tools = now.rates(before), now.tools or {}
    order = sorted(tools, key=lambda name: (-rates.get(name, 0), -tools[name].calls, name))
    rows = [_tool_row(name, tools[name], (before.tools or {}).get(name) if before else None, rates) for name in order]
    head = ("TOOL", "CALLS/S", "CALLS", "ERRORS", "P50", "P95")
    return Table(head, rows, right=head[1:])


def _tool_row(name: str, figures: ToolFigures, before: ToolFigures | None, rates: dict[str, float]) -> tuple[Part, ...]:
    recent = figures.since(before) if before is not None else figures
    shown = recent if recent.calls else figures
    return (
        (name or UNKNOWN_TOOLS, "title"),
        _rate(rates.get(name)),
        f"{figures.calls:,}",
        (f"{figures.errors:,}", "bad" if recent.errors else "faint" if not figures.errors else "warning"),
        _seconds(shown.quantile(0.5)),
        _seconds(shown.quantile(0.95)),
    )


def workers_table(now: TopSnapshot, before: TopSnapshot | None) -> Table:
    rates = now.worker_rates(before)
    rows = [_worker_row(number, figures, rates.get(number)) for number, figures in now.workers.items()]
    head = ("WORKER", "PID", "CALLS/S", "CALLS", "RUN", "CPU", "MEMORY", "RESTARTS")
    return Table(head, rows, right=head[1:])


def _worker_row(number: str, figures: WorkerFigures, rates: tuple[float, float] | None) -> tuple[Part, ...]:
    is_there = bool(figures.pid)
    return (
        (number, "title"),
        f"{figures.pid:.0f}" if is_there else ("does not answer", "bad"),
        _rate(rates[0] if rates is not None else None),
        f"{figures.calls:,.0f}" if is_there else ("-", "faint"),
        f"{figures.in_flight:.0f}" if is_there else ("-", "faint"),
        f"{rates[1]:.0%}" if rates is not None else ("-", "faint"),
        f"{figures.memory_bytes / 1_048_576:,.0f} MiB" if figures.memory_bytes else ("-", "faint"),
        (f"{figures.restarts:.0f}", "warning" if figures.restarts else "faint"),
    )


def servers_table(now: TopSnapshot, before: TopSnapshot | None) -> Table:
    rates = now.rates(before)
    rows = [_server_row(dict(row), rates) for row in now.servers or ()]
    head = ("ID", "STATE", "CALLS/S", "CALLS", "RUN", "ERRORS", "P50", "P95", "TOOLS", "RESTARTS", "NOTE")
    return Table(head, rows, fit=("NOTE",), right=head[2:10])


def _server_row(row: dict[str, Any], rates: dict[str, float]) -> tuple[Part, ...]:
    errors = row.get("errors_total") or 0
    return (
        (str(row["id"]), "title"),
        state(str(row["state"])),
        _rate(rates.get(str(row["id"]))),
        f"{row.get('calls_total') or 0:,}",
        str(row.get("calls") or 0),
        (f"{errors:,}", "warning" if errors else "faint"),
        _seconds(_in_seconds(row.get("median_ms"))),
        _seconds(_in_seconds(row.get("p95_ms"))),
        str(row.get("tools") or 0),
        str(row.get("restarts") or 0),
        note_of(str(row.get("note") or ""))[:LONGEST_NOTE],
    )


def _in_seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _rate(rate: float | None) -> Part:
    return ("-", "faint") if rate is None else ("0", "faint") if not rate else f"{rate:,.1f}"


def _seconds(seconds: float | None) -> Part:
    """`850 µs`, `12 ms`, `1.5 s`."""
    if seconds is None:
        return "-", "faint"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
