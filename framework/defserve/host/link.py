"""The connection of a client: whole JSON messages in, whole JSON messages out."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from defserve.errors import PeerError
from defserve.wire.messages import Id


class Lost:
    """The request `id` will not be answered any more, but the link is still open. `error` says why."""

    __slots__ = ("id", "error")

    def __init__(self, id: Id, error: PeerError) -> None:
        self.id, self.error = id, error


class Link(Protocol):
    """A connection to one server. Memory, stdio, HTTP and WebSocket each have one.

    A link that needs parts of a message (for headers or streams) reads the JSON itself.
    """

    async def send(self, message: bytes) -> None:
        """Send one JSON message, without a line feed.

        Raises PeerGone if the server is gone, PeerError if it refuses the message. A request that was sent may still
        be reported as `Lost` later.
        """
        ...

    async def receive(self) -> bytes | Lost | None:
        """The next message, or a lost request, or None once the server is gone.

        A link that knows why the server left raises PeerGone with the reason instead.
        """
        ...

    async def aclose(self) -> None:
        """Disconnect. Safe to call twice."""
        ...


@runtime_checkable
class ReopenableLink(Protocol):
    """A link that can connect to the same server anew, after the server has left."""

    async def reopen(self) -> None:
        """Connect anew. Raises PeerGone if the server cannot be started or reached."""
        ...
