"""MGP §6.3: a server that keeps the audit trail of others. Events that cannot be sent to it are logged by this host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from defserve.errors import PeerError
from defserve.host.caller import Caller
from defserve.host.mgp.audit.trail import AUDIT
from defserve.protocols.mgp.audit.sinks import AuditLogger

log = logging.getLogger("defserve.host")


class AuditServer:
    """A sink for `Mgp(audit=…)`: each event goes to the server that `client` is connected to.

    Make it on the client's event loop. Events may come from any thread; they are sent in order, one at a time.
    """

    def __init__(self, client: Caller) -> None:
        self._client, self._loop = client, asyncio.get_running_loop()
        self._waiting: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._sending: asyncio.Task[None] | None = None

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None:
        """Send an event soon. Raises PeerError for a `durable` event: this sink cannot tell when it is stored."""
        if durable:
            raise PeerError("an audit server cannot confirm that an event is stored: use an AuditLog")
        self._loop.call_soon_threadsafe(self._take, event)

    async def flush(self) -> None:
        """Wait until every event so far is sent, or logged."""
        await asyncio.sleep(0)  # an event appended just now is still on its way to the queue
        await self._waiting.join()

    def _take(self, event: Mapping[str, Any]) -> None:
        self._waiting.put_nowait(event)
        if self._sending is None or self._sending.done():
            self._sending = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while not self._waiting.empty():
            event = self._waiting.get_nowait()
            try:
                await self._client.notify(AUDIT, event)
            except PeerError as error:
                log.warning("the audit server cannot be reached: %s", error)
                AuditLogger().append(event)
            finally:
                self._waiting.task_done()
