"""Serving in memory: a connection whose other end is in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from defserve.core.composition import Composition
from defserve.runner.connection import Connection
from defserve.runner.life import alive, leave
from defserve.transports.memory import Memory, MemoryPeer


@asynccontextmanager
async def serving(composition: Composition) -> AsyncGenerator[MemoryPeer]:
    """Serve one peer in this loop; the link to it."""
    async with alive(composition) as engine:
        transport = Memory(composition.limits.message)
        connection = Connection(composition, transport)
        connection.attach(engine)
        transport.start(asyncio.get_running_loop(), connection.received, connection.close)
        try:
            yield transport.peer
        finally:
            await leave(connection, composition.limits.farewell)
