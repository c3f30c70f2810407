"""A server at a ws(s) address: one message a text frame, subprotocol `mcp`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from defserve.errors import PeerError, PeerGone, UsageError
from defserve.version import VERSION

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

SUBPROTOCOL: Final = "mcp"
LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))

LONGEST_MESSAGE = 4 * 1024 * 1024
CONNECT_SECONDS = 10.0
PING_SECONDS = 20.0
FAREWELL_SECONDS = 2.0


class WebSocketLink:
    """Speaks over one connection, which `WebSocketLink.connect` opens. A peer that answers no ping is gone."""

    def __init__(self, socket: ClientConnection, address: str) -> None:
        self._socket, self._address = socket, address
        self._Closed: type[Exception] = _websockets().ConnectionClosed

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

        Raises PeerError when the server refuses, PeerGone when there is none, UsageError without `websockets`.
        """
        library = _websockets()
        credentials = {"Authorization": f"Bearer {token}"} if token else {}
        parts = urlsplit(url)
        # Without what may be secret: user, password and query.
        address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        try:
            socket = await library.connect(
                url,
                subprotocols=[SUBPROTOCOL],
                additional_headers={**(headers or {}), **credentials},
                user_agent_header=f"defserve/{VERSION}",
                max_size=longest,
                open_timeout=CONNECT_SECONDS,
                ping_interval=PING_SECONDS,
                ping_timeout=PING_SECONDS,
                close_timeout=FAREWELL_SECONDS,
                proxy=None if parts.hostname in LOOPBACK else True,
            )
        except library.InvalidURI:
            raise UsageError(f"{url!r} is no ws(s) address", fix="write it whole: ws://127.0.0.1:8000/mcp") from None
        except library.InvalidStatus as error:
            raise _refusal(address, error.response) from None
        except (OSError, TimeoutError, library.InvalidHandshake) as error:
            raise PeerGone(f"{address} cannot be reached: {error or type(error).__name__}") from None
        return cls(socket, address)

    async def send(self, message: bytes) -> None:
        try:
            await self._socket.send(message, text=True)
        except self._Closed as closed:
            raise self._obituary(closed) from None

    async def receive(self) -> bytes | None:
        try:
            return await self._socket.recv(decode=False)
        except self._Closed as closed:
            raise self._obituary(closed) from None

    async def aclose(self) -> None:
        await self._socket.close()

    def _obituary(self, closed: Any) -> PeerGone:
        # Whoever closed first gave the reason; the other end only repeats it.
        frame = closed.sent if closed.rcvd is None or closed.rcvd_then_sent is False else closed.rcvd
        why = f"{frame.code} {frame.reason}".rstrip() if frame else "without a word"
        return PeerGone(f"the connection with {self._address} was closed: {why}")


def _refusal(address: str, response: Any) -> PeerError:
    status, challenge = response.status_code, response.headers.get("WWW-Authenticate")
    if status in (401, 403) and challenge:
        text = f"{address} refuses these credentials (HTTP {status}): {challenge}"
        return PeerError(text, data={"status": status, "challenge": challenge})
    return PeerError(f"{address} answered HTTP {status} {response.reason_phrase}".rstrip(), data={"status": status})


def _websockets() -> Any:
    try:
        import websockets
    except ImportError:
        raise UsageError(
            "a server at a ws address is reached with websockets, which is not installed",
            fix='pip install "defserve[http]"',
        ) from None
    return websockets
