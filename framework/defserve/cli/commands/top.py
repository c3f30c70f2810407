"""`defserve top`: watch a server or kernel that runs, as figures that change.

A page is made of two snapshots: totals, and what happened between them. Snapshots come from metrics, health or a
kernel's control socket. Names come from elsewhere, so they are escaped where they are printed.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from defserve.auth.local_token import resolve_local_key
from defserve.cli.kernel_actions import MAX_NOTE_LENGTH, format_duration, format_exit_note
from defserve.cli.keyboard import Keyboard, can_read_keys
from defserve.cli.parser import JSON_LINES_FLAG, CommandArgument, CommandParser, parse_positive_int
from defserve.cli.screen import can_draw, make_console, show_stdout
from defserve.cli.screen_blocks import JsonBlock, ScreenBlock, StyledLine, StyledText, Table, format_count, style_state
from defserve.cli.target import ServerTarget, parse_headers
from defserve.cli.target_connection import CONNECTION_OPTIONS, connect_target
from defserve.client.client import Client
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.kernel.control import ask_kernel, find_kernel_at, locate_running_kernel_file
from defserve.tooling.listing import LISTING_OFFER

ABOUT: Final = """Watch a running server or kernel: calls a second, errors, latencies, sessions.

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
            await watch_server(source, options.every)
            return 0
        before = None
        for number in range(options.count or 1):
            if number:
                await asyncio.sleep(options.every)
            now = await source()
            show_stdout(
                *([JsonBlock(now.to_wire(before), compact=True)] if options.json else iter_snapshot_lines(now, before))
            )
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


def iter_snapshot_lines(now: TopSnapshot, before: TopSnapshot | None) -> Iterator[ScreenBlock]:
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


async def watch_server(source: SnapshotSource, every: float) -> None:
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
            blocks: list[ScreenBlock] = [*iter_snapshot_lines(seen, before if seen is not before else None), ""]
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
            except (PeerError, UsageError) as error:
                problem = str(error)


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


# -- Where the figures of `defserve top` come from: metrics, health or a kernel's control socket, as snapshots.


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One of the processes that serve together. A worker that does not answer has no `pid`."""

    pid: float = 0
    up: float = 0
    calls: float = 0
    in_flight: float = 0
    cpu_seconds: float = 0
    memory_bytes: float = 0
    restarts: float = 0


@dataclass(frozen=True, slots=True)
class TopSnapshot:
    """`time` is monotonic. A server has `tools`, a kernel has `servers`: rows of its `ps`.

    A server of several processes also has `workers`, by number.
    """

    time: float
    name: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tools: Mapping[str, ToolFigures] | None = None
    servers: Sequence[Mapping[str, Any]] | None = None
    note: str = ""
    workers: Mapping[str, WorkerFigures] = field(default_factory=dict[str, WorkerFigures])

    def worker_rates(self, before: TopSnapshot | None) -> dict[str, tuple[float, float]]:
        """Calls per second of each worker, and its share of a processor, since `before`."""
        if before is None or self.time <= before.time:
            return {}
        seconds = self.time - before.time
        rates: dict[str, tuple[float, float]] = {}
        for number, now in self.workers.items():
            then = before.workers.get(number)
            if then is not None and now.pid:
                # A process that was restarted is counted from its start.
                since = then if then.pid == now.pid else WorkerFigures()
                rates[number] = (now.calls - since.calls) / seconds, (now.cpu_seconds - since.cpu_seconds) / seconds
        return rates

    def rates(self, before: TopSnapshot | None) -> dict[str, float]:
        """Calls per second of each tool or server since `before`."""
        if before is None or self.time <= before.time:
            return {}
        now, then = self._totals(), before._totals()
        seconds = self.time - before.time
        return {
            name: (total - then[name] if total >= then[name] else total) / seconds
            for name, total in now.items()
            if name in then
        }

    def _totals(self) -> dict[str, int]:
        if self.servers is not None:
            return {str(row["id"]): int(row.get("calls_total") or 0) for row in self.servers}
        return {name: figures.calls for name, figures in (self.tools or {}).items()}

    def to_wire(self, before: TopSnapshot | None) -> dict[str, Any]:
        """For `--json`."""
        rates = self.rates(before)
        said: dict[str, Any] = {"name": self.name, **self.facts}
        if self.servers is not None:
            said["servers"] = [{**row, "calls_per_second": rates.get(str(row["id"]))} for row in self.servers]
        if self.workers:
            shares = self.worker_rates(before)
            said["workers"] = {
                number: {
                    **{name: value for name, value in asdict(figures).items() if name != "cpu_seconds"},
                    "calls_per_second": shares.get(number, (None, None))[0],
                    "cpu_share": shares.get(number, (None, None))[1],
                }
                for number, figures in self.workers.items()
            }
        if self.tools is not None:
            said["tools"] = {
                name: {
                    "calls": dict(figures.outcomes),
                    "calls_per_second": rates.get(name),
                    "p50_seconds": figures.quantile(0.5),
                    "p95_seconds": figures.quantile(0.95),
                }
                for name, figures in self.tools.items()
            }
        return said | ({"note": self.note} if self.note else {})


SnapshotSource = Callable[[], Awaitable[TopSnapshot]]

MAX_RESPONSE_BYTES: Final = 4 * 1024 * 1024
SECONDS: Final = 5.0
OK, FORBIDDEN = 200, 403
SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
"""The scheme of an address → that of its metrics."""
NO_METRICS: Final = "it serves no metrics: start it with --metrics to see calls, errors and latencies"
MAY_NOT_READ: Final = "this token may not read its metrics: it needs the scope metrics:read (keys: --allow MetricsRead)"


def open_snapshot_source(target: str | None, options: Namespace, stack: AsyncExitStack) -> SnapshotSource:
    """The source for what the command line names. What it opens is closed with `stack`."""
    if target is None or target.endswith(".toml"):
        try:
            config = locate_running_kernel_file(target)
        except UsageError as error:
            fix = "name the address of a server, http://127.0.0.1:8000/mcp, or the mgp.toml of a kernel"
            raise UsageError(f"there is no file {target!r}" if target else error.problem, fix=fix) from None
        return lambda: asyncio.to_thread(_look_at_kernel, config, options.pid)
    if (scheme := urlsplit(target).scheme) in SCHEMES:
        return _ServerSource(target, options, stack)
    if scheme == "unix":
        return lambda: asyncio.to_thread(_look_at_socket, target, options)
    raise UsageError(
        f"top cannot monitor {target!r}",
        fix="name an address, http://127.0.0.1:8000/mcp, ws://… or unix:/path, or the mgp.toml of a kernel",
    )


def _look_at_kernel(config: Path, pid: int | None) -> TopSnapshot:
    (status,) = ask_kernel(config, {"verb": "status"}, pid)
    rows = list(ask_kernel(config, {"verb": "ps"}, pid))
    facts = {name: status.get(name) for name in ("pid", "servers", "connected", "tools")}
    return TopSnapshot(time.monotonic(), f"kernel {status.get('name', '')}".strip(), facts, servers=rows)


def _look_at_socket(address: str, options: Namespace) -> TopSnapshot:
    """What a server on a Unix socket reports. No conversation is opened."""
    path, headers = address.partition(":")[2], parse_headers(options.header)
    if options.token is not None:
        headers["authorization"] = f"Bearer {options.token}"
    facts = {"status": "ready" if get(path, "/readyz", headers)[0] == OK else "not ready"}
    status, text = get(path, "/metrics", headers)
    if status != OK and (kernel := find_kernel_at(address)) is not None:
        return _look_at_kernel(*kernel)
    return _make_server_snapshot(address, facts, status, text)


def _make_server_snapshot(name: str, facts: Mapping[str, Any], status: int, metrics: str) -> TopSnapshot:
    """Facts and metrics of a server. `status` is what HTTP answered to the question for the metrics."""
    if status != OK:
        return TopSnapshot(time.monotonic(), name, facts, note=MAY_NOT_READ if status == FORBIDDEN else NO_METRICS)
    tools, gauges = read_metrics(metrics)
    return TopSnapshot(time.monotonic(), name, {**facts, **gauges}, tools, workers=read_workers(metrics))


class _ServerSource:
    """Asks for `…/metrics`, and over a connection of its own for the health, if the server tells it (MGP).

    A kernel of this user knows its figures without metrics: then it is asked for them.
    """

    def __init__(self, address: str, options: Namespace, stack: AsyncExitStack) -> None:
        self._address, self._options, self._stack = address, options, stack
        self._client: Client | None = None
        self._tells_health = True

    async def __call__(self) -> TopSnapshot:
        if self._client is None:
            opening = connect_target(ServerTarget(address=self._address), self._options, offer=LISTING_OFFER)
            self._client = await self._stack.enter_async_context(opening)
        facts = await self._health(self._client)
        status, text = await asyncio.to_thread(self._fetch_metrics)
        if status != OK and (kernel := await asyncio.to_thread(find_kernel_at, self._address)) is not None:
            return await asyncio.to_thread(_look_at_kernel, *kernel)
        return _make_server_snapshot(str(self._client.server_info.get("name") or self._address), facts, status, text)

    async def _health(self, client: Client) -> dict[str, Any]:
        if not self._tells_health:
            return {}
        try:
            said = await client.request("mgp/health/status", {})
        except PeerGone:
            self._client = None  # a WebSocket does not come back by itself
            raise
        except PeerError:
            self._tells_health = False
            return {}
        resources: dict[str, Any] = said.get("resources") or {}
        facts = {
            "status": said.get("status"),
            "uptime_secs": said.get("uptime_secs"),
            "tools": said.get("tools_total"),
            "memory_bytes": resources.get("memory_bytes"),
        }
        return {name: value for name, value in facts.items() if value is not None}

    def _fetch_metrics(self) -> tuple[int, str]:
        """The status and the text of the metrics. The status is 0 if nothing answers."""
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        headers = {name.lower(): value for name, value in parse_headers(self._options.header).items()}
        address, token = resolve_local_key(self._address, self._options.token, headers)
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        try:
            scheme, _, rest = address.partition(":")
            # The address was checked to have one of these schemes.
            where = urljoin(f"{SCHEMES[scheme.lower()]}:{rest}", "metrics")
            with urlopen(Request(where, headers=headers), timeout=SECONDS) as response:
                return OK, response.read(MAX_RESPONSE_BYTES).decode(errors="replace")
        except HTTPError as refused:
            refused.close()
            return refused.code, ""
        except (URLError, HTTPException, OSError, ValueError):
            return 0, ""


# -- What a server on a Unix socket reports over HTTP: whether it is ready, and its metrics.


def get(path: str, report: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """The status and the text of a report, such as `/metrics`. Raises PeerGone if nobody answers at the socket."""
    connection = _UnixConnection("localhost", timeout=SECONDS)
    connection.path = path
    try:
        connection.request("GET", report, headers=dict(headers))
        response = connection.getresponse()
        return response.status, response.read(MAX_RESPONSE_BYTES).decode(errors="replace")
    except (OSError, HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise PeerGone(f"nobody answers at unix:{path}: {reason}") from None
    finally:
        connection.close()


class _UnixConnection(HTTPConnection):
    path = ""

    def connect(self) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("this system has no Unix sockets")
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self.path)


# -- Reads the metrics that a server of ours writes in the Prometheus text format.


SAMPLE: Final = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
LABEL: Final = re.compile(r'(?P<name>[a-zA-Z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)"')
ESCAPED: Final = re.compile(r"\\(.)")

CALLS: Final = "defserve_tool_calls_total"
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
MAX_WORKERS: Final = 1024
INFINITE: Final = (float("inf"), float("-inf"))


def parse_samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of every sample. Lines that are none are left out."""
    for line in text.splitlines():
        found = SAMPLE.fullmatch(line)
        if line.startswith("#") or found is None:
            continue
        labels = {
            each["name"]: ESCAPED.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], each["value"])
            for each in LABEL.finditer(found["labels"] or "")
        }
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
    for name, labels, value in parse_samples(text):
        tool = labels.get("tool", "")
        if value in INFINITE:
            continue
        if name == CALLS:
            outcomes.setdefault(tool, Counter())[labels.get("outcome", "")] += int(value)
        elif name == "defserve_tool_call_duration_seconds_bucket":
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
    for name, labels, value in parse_samples(text):
        number = labels.get("worker", "")
        if not number or value in INFINITE or (number not in found and len(found) >= MAX_WORKERS):
            continue
        figures = found.setdefault(number, {})
        if name == "defserve_worker_info" and labels.get("pid", "").isdecimal():
            figures["pid"] = int(labels["pid"])
        elif name in OF_WORKERS:
            figures[OF_WORKERS[name]] = figures.get(OF_WORKERS[name], 0) + value
    order = sorted(found, key=lambda number: (len(number), number))
    return {number: WorkerFigures(**found[number]) for number in order}


@dataclass(frozen=True, slots=True)
class ToolFigures:
    """The calls of one tool since its server began: by outcome, and how many took at most so many seconds."""

    outcomes: Mapping[str, int] = field(default_factory=dict[str, int])
    buckets: Sequence[tuple[float, int]] = ()
    """Upper bound in seconds → calls up to it; the last bound is infinite."""

    @property
    def calls(self) -> int:
        return sum(self.outcomes.values())

    @property
    def errors(self) -> int:
        return self.outcomes.get("error", 0)

    def since(self, before: ToolFigures) -> ToolFigures:
        """Only what happened after `before`. A server that was restarted is counted from its start."""
        if before.calls > self.calls:
            return self
        outcomes = {name: count - before.outcomes.get(name, 0) for name, count in self.outcomes.items()}
        old = dict(before.buckets)
        return ToolFigures(outcomes, [(bound, count - old.get(bound, 0)) for bound, count in self.buckets])

    def quantile(self, share: float) -> float | None:
        """Within so many seconds that share of the calls was done, as buckets tell it; None without calls."""
        total = self.buckets[-1][1] if self.buckets else 0
        lower, below = 0.0, 0
        for bound, count in self.buckets:
            if total and count >= share * total:
                if bound == float("inf"):
                    return lower
                return lower + (bound - lower) * ((share * total - below) / (count - below) if count > below else 1)
            lower, below = bound, count
        return None
