"""When there are too many connections, an idle one gives way to a new one."""

from __future__ import annotations

import asyncio
from typing import Protocol

from defserve.serve.sockets import get_client_network


class EvictableConnection(Protocol):
    """A connection that may have to give way."""

    transport: asyncio.Transport

    @property
    def is_idle(self) -> bool:
        """Whether it has no request that must be answered."""
        ...


class OpenConnections:
    """The HTTP connections of a listener by the network of their client, each network's oldest first."""

    def __init__(self) -> None:
        self._by_network: dict[str, dict[EvictableConnection, None]] = {}

    def add(self, address: str, connection: EvictableConnection) -> None:
        self._by_network.setdefault(get_client_network(address), {})[connection] = None

    def discard(self, address: str, connection: EvictableConnection) -> None:
        network = get_client_network(address)
        same = self._by_network.get(network, {})
        same.pop(connection, None)
        if not same:
            self._by_network.pop(network, None)

    def close_oldest_idle(self) -> EvictableConnection | None:
        """Cut off the oldest idle connection of the network that has the most. None if there is no idle one."""
        for same in sorted(self._by_network.values(), key=len, reverse=True):
            for connection in same:
                if connection.is_idle:
                    del same[connection]
                    connection.transport.abort()
                    return connection
        return None
