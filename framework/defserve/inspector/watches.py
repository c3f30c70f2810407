"""The resources that the person watches. A new conversation with the server watches them again."""

from __future__ import annotations

from typing import Final

from defserve.errors import PeerError
from defserve.host.client import Client
from defserve.inspector.protocol import BadMessage

MOST_WATCHED: Final = 100


class Watches:
    """The watched URIs of each era, and the client that was asked to report them."""

    def __init__(self) -> None:
        self._uris: dict[str, set[str]] = {}
        self._clients: dict[str, Client] = {}

    async def renew(self, client: Client) -> list[str]:
        """What is watched in the era of a client. If it is a new client, the server is asked anew first."""
        uris = self._of(client)
        era = era_of(client)
        if self._clients.get(era) is not client:
            self._clients[era] = client
            for uri in sorted(uris):
                try:
                    await client.subscribe(uri)
                except PeerError:
                    uris.discard(uri)  # it is no longer there
        return sorted(uris)

    async def watch(self, client: Client, uri: str) -> None:
        """Have changes of a resource reported. Raises PeerError if the server does not do that."""
        await self.renew(client)
        uris = self._of(client)
        if uri in uris:
            return
        if len(uris) >= MOST_WATCHED:
            raise BadMessage(f"{MOST_WATCHED} resources are watched already", fix="stop watching some of them")
        await client.subscribe(uri)
        uris.add(uri)

    async def leave(self, client: Client, uri: str) -> None:
        """Watch a resource no longer."""
        if uri in await self.renew(client):
            self._of(client).discard(uri)
            await client.unsubscribe(uri)

    def _of(self, client: Client) -> set[str]:
        return self._uris.setdefault(era_of(client), set())


def era_of(client: Client) -> str:
    return "stateless" if client.stateless else "handshake"
