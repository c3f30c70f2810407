"""Where snapshots come from: the metrics or the health of a server at an address, or a kernel's control socket."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from defserve.auth.local_token.client import with_local_key
from defserve.cli.target.connection import connect
from defserve.cli.target.target import ServerTarget, headers_of
from defserve.cli.top.prometheus import read_metrics, read_workers
from defserve.cli.top.snapshot import TopSnapshot
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.host.client import Client
from defserve.kernel.control.asking import ask
from defserve.kernel.control.places import located_kernel
from defserve.tooling.listing import LISTING_OFFER

Source = Callable[[], Awaitable[TopSnapshot]]

MOST_BYTES: Final = 4 * 1024 * 1024
SECONDS: Final = 5.0
OK, FORBIDDEN = 200, 403
SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
"""The scheme of an address → that of its metrics."""
NO_METRICS: Final = "it serves no metrics: start it with --metrics to see calls, errors and latencies"
MAY_NOT_READ: Final = "this token may not read its metrics: it needs the scope metrics:read (keys: --allow MetricsRead)"


def source_of(target: str | None, options: Namespace, stack: AsyncExitStack) -> Source:
    """The source for what the command line names. What it opens is closed with `stack`."""
    if target is None or target.endswith(".toml"):
        return _KernelSource(located_kernel(target), options.pid)
    if (scheme := urlsplit(target).scheme) in SCHEMES:
        return _ServerSource(target, options, stack)
    if scheme == "unix":
        return _UnixSource(target, options)
    raise UsageError(
        f"top cannot look at {target!r}",
        fix="name an address, http://127.0.0.1:8000/mcp, ws://… or unix:/path, or the mgp.toml of a kernel",
    )


class _KernelSource:
    def __init__(self, config: Path, pid: int | None) -> None:
        self._config, self._pid = config, pid

    async def __call__(self) -> TopSnapshot:
        import asyncio

        return await asyncio.to_thread(self._look)

    def _look(self) -> TopSnapshot:
        (status,) = ask(self._config, {"verb": "status"}, self._pid)
        rows = list(ask(self._config, {"verb": "ps"}, self._pid))
        facts = {name: status.get(name) for name in ("pid", "servers", "connected", "tools")}
        return TopSnapshot(time.monotonic(), f"kernel {status.get('name', '')}".strip(), facts, servers=rows)


class _UnixSource:
    """Reads the reports of a server on a Unix socket. It opens no conversation."""

    def __init__(self, address: str, options: Namespace) -> None:
        self._address, self._options = address, options

    async def __call__(self) -> TopSnapshot:
        import asyncio

        return await asyncio.to_thread(self._look)

    def _look(self) -> TopSnapshot:
        from defserve.cli.top.unix_reports import get

        path, headers = self._address.partition(":")[2], headers_of(self._options.header)
        if self._options.token is not None:
            headers["authorization"] = f"Bearer {self._options.token}"
        facts: dict[str, Any] = {"status": "ready" if get(path, "/readyz", headers)[0] == OK else "not ready"}
        status, text = get(path, "/metrics", headers)
        if status != OK:
            note = MAY_NOT_READ if status == FORBIDDEN else NO_METRICS
            return TopSnapshot(time.monotonic(), self._address, facts, note=note)
        tools, gauges = read_metrics(text)
        return TopSnapshot(time.monotonic(), self._address, {**facts, **gauges}, tools, workers=read_workers(text))


class _ServerSource:
    """Asks for `…/metrics`, and over a connection of its own for the health, if the server tells it (MGP)."""

    def __init__(self, address: str, options: Namespace, stack: AsyncExitStack) -> None:
        self._address, self._options, self._stack = address, options, stack
        self._client: Client | None = None
        self._tells_health = True

    async def __call__(self) -> TopSnapshot:
        client = await self._connected()
        facts = await self._health(client)
        status, text = await self._metrics()
        name = str(client.server_info.get("name") or self._address)
        if status != OK:
            return TopSnapshot(time.monotonic(), name, facts, note=MAY_NOT_READ if status == FORBIDDEN else NO_METRICS)
        tools, gauges = read_metrics(text)
        return TopSnapshot(time.monotonic(), name, {**facts, **gauges}, tools, workers=read_workers(text))

    async def _connected(self) -> Client:
        if self._client is None:
            opening = connect(ServerTarget(address=self._address), self._options, offer=LISTING_OFFER)
            self._client = await self._stack.enter_async_context(opening)
        return self._client

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
        return {
            name: value
            for name, value in (
                ("status", said.get("status")),
                ("uptime_secs", said.get("uptime_secs")),
                ("tools", said.get("tools_total")),
                ("memory_bytes", resources.get("memory_bytes")),
            )
            if value is not None
        }

    async def _metrics(self) -> tuple[int, str]:
        """The status and the text of the metrics. The status is 0 if nothing answers."""
        import asyncio

        return await asyncio.to_thread(self._fetch)

    def _fetch(self) -> tuple[int, str]:
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        headers = {name.lower(): value for name, value in headers_of(self._options.header).items()}
        address, token = with_local_key(self._address, self._options.token, headers)
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        try:
            scheme, _, rest = address.partition(":")
            # The address was checked to have one of these schemes.
            where = urljoin(f"{SCHEMES[scheme.lower()]}:{rest}", "metrics")
            with urlopen(Request(where, headers=headers), timeout=SECONDS) as response:
                return OK, response.read(MOST_BYTES).decode(errors="replace")
        except HTTPError as refused:
            refused.close()
            return refused.code, ""
        except (URLError, HTTPException, OSError, ValueError):
            return 0, ""
