"""How long a connection of the library `websockets` waits for a peer that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from websockets.asyncio.connection import Connection


async def drain_moving(connection: Connection, drain: Callable[[], Awaitable[None]], seconds: float) -> None:
    """The connection's own `drain`, while the peer goes on reading. Raises TimeoutError, which ends the connection.

    The library waits for ever: a peer that stops reading would get no ping, and could not be closed either. Here it
    has so many seconds to take something, and after a close only until the deadline of that.
    """
    while True:
        waiting, deadline = connection.transport.get_write_buffer_size(), connection.close_deadline
        try:
            async with asyncio.timeout(seconds) if deadline is None else asyncio.timeout_at(deadline):
                return await drain()
        except TimeoutError:
            if deadline is not None or connection.transport.get_write_buffer_size() >= waiting:
                raise
