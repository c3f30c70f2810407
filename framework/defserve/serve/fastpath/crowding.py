"""When there are too many connections, an idle one gives way to a new one."""

from __future__ import annotations

import asyncio
from typing import Protocol

from defserve.serve.sockets import network_of


class Crowded(Protocol):
    """A connection that may have to give way."""

    transport: asyncio.Transport

    @property
    def is_idle(self) -> bool:
        """Whether it has no request that must be answered."""
        ...


class OpenConnections:
    """The HTTP connections of a listener by the network of their client, each network's oldest first."""

    def __init__(self) -> None:
        self._by_network: dict[str, dict[Crowded, None]] = {}

    def add(self, address: str, connection: Crowded) -> None:
        self._by_network.setdefault(network_of(address), {})[connection] = None

    def discard(self, address: str, connection: Crowded) -> None:
        network = network_of(address)
        same = self._by_network.get(network, {})
        same.pop(connection, None)
        if not same:
            self._by_network.pop(network, None)

    def end_one(self) -> Crowded | None:
        """Cut off the oldest idle connection of the network that has the most. None if there is no idle one."""
        for same in sorted(self._by_network.values(), key=len, reverse=True):
            for connection in same:
                if connection.is_idle:
                    del same[connection]
                    connection.transport.abort()
                    return connection
        return None
