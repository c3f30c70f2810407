"""What a client talks over: whole JSON messages in, whole JSON messages out."""

from __future__ import annotations

from typing import Protocol


class Link(Protocol):
    """One road to one server. Memory, stdio and HTTP each have one."""

    async def send(self, message: bytes) -> None:
        """Send one JSON message, without a line feed. Raises PeerGone when nobody is there to take it."""
        ...

    async def receive(self) -> bytes | None:
        """The next message, or None once the peer is gone.

        A link that knows why the peer left raises PeerGone with the reason instead.
        """
        ...

    async def aclose(self) -> None:
        """Let go of the peer. Safe to call twice."""
        ...
