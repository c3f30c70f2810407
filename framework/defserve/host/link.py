"""What a client talks over: whole JSON messages in, whole JSON messages out."""

from __future__ import annotations

from typing import Protocol

from defserve.errors import PeerError
from defserve.wire.messages import Id


class Lost:
    """The request `id` will not be answered any more, though the link lives on: `error` says why."""

    __slots__ = ("id", "error")

    def __init__(self, id: Id, error: PeerError) -> None:
        self.id, self.error = id, error


class Link(Protocol):
    """One road to one server. Memory, stdio, HTTP and WebSocket each have one.

    A link that needs to know what a message is about (its headers, its stream) reads the JSON it is handed.
    """

    async def send(self, message: bytes) -> None:
        """Send one JSON message, without a line feed.

        Raises PeerGone when nobody is there to take it, PeerError when it is refused. A request may also be taken
        and turn out `Lost` later.
        """
        ...

    async def receive(self) -> bytes | Lost | None:
        """The next message, or news of a request that is lost, or None once the peer is gone.

        A link that knows why the peer left raises PeerGone with the reason instead.
        """
        ...

    async def aclose(self) -> None:
        """Let go of the peer. Safe to call twice."""
        ...
