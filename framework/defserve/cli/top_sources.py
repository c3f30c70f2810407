"""Where the figures of `defserve top` come from: metrics, health or a kernel's control socket, as snapshots.

A *source* gives snapshots: what a server or kernel says of itself at one moment. What a server sends is bounded.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from defserve.auth.local_token import resolve_local_key
from defserve.cli.target import ServerTarget, parse_headers
from defserve.cli.target_connection import connect_target
from defserve.client.client import Client
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.kernel.control import ask_kernel, find_kernel_at, locate_kernel
from defserve.tooling.listing import LISTING_OFFER

# -- What a server or kernel says of itself at one moment, and what happened between two moments.


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
                # A process that was started again is counted from its begin.
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
        config = locate_kernel(target)
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


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
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
    for name, labels, value in samples(text):
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
    for name, labels, value in samples(text):
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
        """Only what happened after `before`. A server that began again is counted from its begin."""
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
