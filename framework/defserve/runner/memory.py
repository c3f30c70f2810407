"""Serving in memory: a connection whose other end is in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from defserve.core.composition import Composition
from defserve.runner.connection import Connection
from defserve.runner.lifespans import close_connection, drain_connection, entered_lifespans
from defserve.transports.memory import MemoryPeer, MemoryTransport


@asynccontextmanager
async def serving(composition: Composition) -> AsyncGenerator[MemoryPeer]:
    """Serve one peer on this loop. Yields the peer's link to the server."""
    loop, service = asyncio.get_running_loop(), composition.service
    transport = MemoryTransport(composition.limits.message)

    def stop(seconds: float) -> None:
        loop.call_soon_threadsafe(lambda: engine.spawn(finish(seconds)))

    async def finish(seconds: float) -> None:
        await drain_connection(connection, seconds)
        service.end(stop)
        connection.close()

    async with entered_lifespans(composition) as engine:
        connection = Connection(composition, transport)
        connection.attach(engine)
        service.begin(stop)
        transport.start(loop, connection.received, connection.close)
        service.ready()
        try:
            yield transport.peer
        finally:
            service.end(stop)
            await close_connection(connection, composition.limits.farewell)
