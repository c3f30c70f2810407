"""A server at a ws(s) address: each message is one text frame, the subprotocol is `mcp`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from defserve.errors import PeerGone
from defserve.transports.websocket.client import dial, websockets_library

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

SUBPROTOCOL: Final = "mcp"

LONGEST_MESSAGE = 4 * 1024 * 1024


class WebSocketLink:
    """One connection, opened by `WebSocketLink.connect`. A server that answers no ping counts as gone."""

    def __init__(self, socket: ClientConnection, address: str) -> None:
        self._socket, self._address = socket, address
        self._Closed: type[Exception] = websockets_library().ConnectionClosed

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        longest: int = LONGEST_MESSAGE,
    ) -> WebSocketLink:
        """Open a connection. `token` is sent as a bearer token; a message longer than `longest` ends the connection.

        Raises PeerError if the server refuses, PeerGone if there is none, UsageError without `websockets`.
        """
        return cls(
            *await dial(
                url,
                token=token,
                headers=headers,
                longest=longest,
                subprotocols=[SUBPROTOCOL],
            )
        )

    async def send(self, message: bytes) -> None:
        """Send one message as a text frame. Raises PeerGone if the connection is closed."""
        try:
            await self._socket.send(message, text=True)
        except self._Closed as closed:
            raise self._gone(closed) from None

    async def receive(self) -> bytes | None:
        """The next message. Raises PeerGone, with the reason, once the connection is closed."""
        try:
            return await self._socket.recv(decode=False)
        except self._Closed as closed:
            raise self._gone(closed) from None

    async def aclose(self) -> None:
        """Close the connection. Safe to call twice."""
        await self._socket.close()

    def _gone(self, closed: Any) -> PeerGone:
        # The side that closed first gave the reason; the other side only repeats it.
        frame = closed.sent if closed.rcvd is None or closed.rcvd_then_sent is False else closed.rcvd
        why = f"{frame.code} {frame.reason}".rstrip() if frame else "without a reason"
        return PeerGone(f"the connection with {self._address} was closed: {why}")
