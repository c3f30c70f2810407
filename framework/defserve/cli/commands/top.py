"""`defserve top`: watch a server or kernel that runs, as figures that change.

A page is made of two snapshots: totals, and what happened between them. Names come from elsewhere, so they are
escaped where they are printed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Generator, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final

from defserve.cli.kernel_actions import MAX_NOTE_LENGTH, format_duration, format_exit_note
from defserve.cli.keyboard import Keyboard, can_read_keys
from defserve.cli.parser import JSON_LINES_FLAG, CommandArgument, CommandParser, parse_positive_int
from defserve.cli.screen import can_draw, make_console, show_stdout
from defserve.cli.screen_blocks import JsonBlock, ScreenBlock, StyledLine, StyledText, Table, format_count, style_state
from defserve.cli.target_connection import CONNECTION_OPTIONS
from defserve.cli.top_sources import SnapshotSource, ToolFigures, TopSnapshot, WorkerFigures, open_snapshot_source
from defserve.errors import PeerError

ABOUT: Final = """Watch a server or kernel that runs: calls a second, errors, latencies, sessions.

At a terminal it fills the screen until you press q. Elsewhere it prints one table. A server shows its calls and
latencies if it was started with --metrics, and its processes if it has several (--workers). Latencies are read from a
histogram, so they are not exact."""
EXAMPLES: Final = """  defserve top http://127.0.0.1:8000/mcp
  defserve top unix:/run/shop.sock
  defserve top                              the kernel of ./mgp.toml
  defserve top shop/mgp.toml --every 5
  defserve top http://127.0.0.1:8000/mcp --json --count 10
"""


def main(argv: list[str]) -> int:
    options = CommandParser("defserve top", ABOUT, EXAMPLES).parse_options(
        argv,
        CommandArgument(
            "target",
            nargs="?",
            metavar="ADDRESS",
            help="http://host:port/mcp, ws://…, unix:/path, or a kernel's mgp.toml (default: found)",
        ),
        CommandArgument(
            "--every", type=_parse_interval, default=2.0, metavar="SECONDS", help="seconds between updates (default: 2)"
        ),
        CommandArgument(
            "--count", type=parse_positive_int, metavar="N", help="print N tables and exit; no full screen"
        ),
        CommandArgument("--pid", type=parse_positive_int, metavar="PID", help="which kernel, if several use this file"),
        JSON_LINES_FLAG,
        *CONNECTION_OPTIONS,
    )
    return asyncio.run(_watch(options))


async def _watch(options: Namespace) -> int:
    async with AsyncExitStack() as stack:
        source = open_snapshot_source(options.target, options, stack)
        if can_draw(sys.stdout) and not options.json and options.count is None:
            await watch(source, options.every)
            return 0
        before = None
        for number in range(options.count or 1):
            if number:
                await asyncio.sleep(options.every)
            now = await source()
            show_stdout(*([JsonBlock(now.to_wire(before), compact=True)] if options.json else page(now, before)))
            sys.stdout.flush()
            before = now
    return 0


def _parse_interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return seconds


# -- A snapshot as blocks: a head of facts, and a table.


def page(now: TopSnapshot, before: TopSnapshot | None) -> Iterator[ScreenBlock]:
    yield _head(now, sum(now.rates(before).values()) if before else None)
    if now.note:
        yield StyledLine((f"note: {now.note}", "warning"))
    yield ""
    if now.servers is not None:
        yield servers_table(now, before)
        return
    if now.workers:
        yield workers_table(now, before)
        yield ""
    if now.tools is not None:
        yield tools_table(now, before) if now.tools else "No tool was called yet."


def _head(now: TopSnapshot, rate: float | None) -> StyledLine:
    facts = now.facts
    parts: list[StyledText] = [(now.name, "heading")]
    if "status" in facts:
        parts += ["  ", style_state(str(facts["status"]))]
    told = [
        f"up {format_duration(float(facts['uptime_secs']))}" if "uptime_secs" in facts else "",
        f"{facts['connected']} of {facts['servers']} servers" if "connected" in facts else "",
        format_count(facts["tools"], "tool") if facts.get("tools") is not None else "",
        format_count(facts["sessions"], "session") if "sessions" in facts else "",
        f"{facts['in_flight']} running" if "in_flight" in facts else "",
        f"{facts['memory_bytes'] / 1_048_576:,.0f} MiB" if "memory_bytes" in facts else "",
        f"{rate:,.1f} calls/s" if rate is not None else "",
    ]
    return StyledLine(*parts, (f"  {', '.join(filter(None, told))}", "faint"))


def tools_table(now: TopSnapshot, before: TopSnapshot | None) -> Table:
    """Busy tools first. Latencies are those since `before`, or of all calls if there were none since."""
    rates, tools = now.rates(before), now.tools or {}
    order = sorted(tools, key=lambda name: (-rates.get(name, 0), -tools[name].calls, name))
    rows = [_tool_row(name, tools[name], (before.tools or {}).get(name) if before else None, rates) for name in order]
    head = ("TOOL", "CALLS/S", "CALLS", "ERRORS", "P50", "P95")
    return Table(head, rows, right=head[1:])


def _tool_row(
    name: str, figures: ToolFigures, before: ToolFigures | None, rates: dict[str, float]
) -> tuple[StyledText, ...]:
    recent = figures.since(before) if before is not None else figures
    shown = recent if recent.calls else figures
    return (
        (name or "(unknown tools)", "title"),
        _rate(rates.get(name)),
        f"{figures.calls:,}",
        (f"{figures.errors:,}", "bad" if recent.errors else "faint" if not figures.errors else "warning"),
        _format_seconds(shown.quantile(0.5)),
        _format_seconds(shown.quantile(0.95)),
    )


def workers_table(now: TopSnapshot, before: TopSnapshot | None) -> Table:
    rates = now.worker_rates(before)
    rows = [_worker_row(number, figures, rates.get(number)) for number, figures in now.workers.items()]
    head = ("WORKER", "PID", "CALLS/S", "CALLS", "RUN", "CPU", "MEMORY", "RESTARTS")
    return Table(head, rows, right=head[1:])


def _worker_row(number: str, figures: WorkerFigures, rates: tuple[float, float] | None) -> tuple[StyledText, ...]:
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


def _server_row(row: dict[str, Any], rates: dict[str, float]) -> tuple[StyledText, ...]:
    errors = row.get("errors_total") or 0
    return (
        (str(row["id"]), "title"),
        style_state(str(row["state"])),
        _rate(rates.get(str(row["id"]))),
        f"{row.get('calls_total') or 0:,}",
        str(row.get("calls") or 0),
        (f"{errors:,}", "warning" if errors else "faint"),
        _format_seconds(_in_seconds(row.get("median_ms"))),
        _format_seconds(_in_seconds(row.get("p95_ms"))),
        str(row.get("tools") or 0),
        str(row.get("restarts") or 0),
        format_exit_note(str(row.get("note") or ""))[:MAX_NOTE_LENGTH],
    )


def _in_seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _rate(rate: float | None) -> StyledText:
    return ("-", "faint") if rate is None else ("0", "faint") if not rate else f"{rate:,.1f}"


def _format_seconds(seconds: float | None) -> StyledText:
    """`850 µs`, `12 ms`, `1.5 s`."""
    if seconds is None:
        return "-", "faint"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


# -- The full screen: drawn again and again until somebody quits.


QUIT: Final = frozenset("qQ\x03\x04\x1b")


async def watch(source: SnapshotSource, every: float) -> None:
    """Draw until `q`. A server that is gone is looked for again; the screen says so meanwhile."""
    from rich.live import Live

    from defserve.cli.screen_drawing import render_blocks

    screen = make_console(sys.stdout)
    before = await source()  # fails before the screen is taken
    seen: TopSnapshot = before
    with (
        _keys() as pressed,
        Live(render_blocks([], screen), console=screen, screen=True, auto_refresh=False) as live,
    ):
        problem = ""
        while not pressed.is_set():
            blocks: list[ScreenBlock] = [*page(seen, before if seen is not before else None), ""]
            if problem:
                blocks.append(StyledLine((problem.partition("\n")[0], "error")))
            blocks.append(StyledLine((f"every {every:g} s, q quits", "faint")))
            live.update(render_blocks(blocks, screen), refresh=True)
            try:
                await asyncio.wait_for(pressed.wait(), every)
            except TimeoutError:
                pass
            else:
                return
            try:
                before, seen, problem = seen, await source(), ""
            except PeerError as error:
                problem = error.message


@contextmanager
def _keys() -> Generator[asyncio.Event]:
    """Set when a key that quits is pressed, or the command is asked to end. Keys are not shown meanwhile."""
    pressed = asyncio.Event()
    if not can_read_keys():  # Ctrl-C quits
        yield pressed
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, pressed.set)
    try:
        with Keyboard(lambda key: pressed.set() if key in QUIT else None):
            yield pressed
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
