"""A WebSocket that we open ourselves, as a transport: text frames both ways."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from defserve.auth.urls import is_loopback
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.transports.client_errors import Challenged, HttpRefusal, Unreachable
from defserve.transports.websocket.draining import drain_moving
from defserve.version import VERSION

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

CONNECT_SECONDS = 10.0
PING_SECONDS = 20.0
CLOSE_SECONDS = 2.0
BACKLOG_BYTES = 16 * 1024 * 1024

POLICY: Final = 1008
NORMAL: Final = 1000


class WebSocketClient:
    """One open connection. `end` says how it ended: the closing code, and the reason in words.

    While more than `BACKLOG_BYTES` are `queued` to be sent, nothing is read: a peer that does not read cannot ask more.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.closed = False
        self.end: tuple[int, str] = (0, "")
        self._waiting: deque[tuple[bytes, Callable[[], None] | None]] = deque()
        self.queued = 0
        self._more, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._reading = asyncio.Event()
        self._reading.set()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, url: str, *, token: str | None = None, headers: Mapping[str, str] | None = None, longest: int
    ) -> WebSocketClient:
        """Raises what `dial` raises."""
        return cls((await dial(url, token=token, headers=headers, longest=longest, compression=None))[0])

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        received: Callable[[list[bytes | None]], None],
        ended: Callable[[], None],
    ) -> None:
        self._tasks = [loop.create_task(self._read(received, ended)), loop.create_task(self._write())]

    def send(self, message: bytes, taken: Callable[[], None] | None = None) -> None:
        """Queue a message. An empty one is not sent."""
        if message and not self.closed:
            self._waiting.append((message, taken))
            self.queued += len(message)
            self._idle.clear()
            self._more.set()
        elif taken is not None:
            taken()

    def flush(self) -> None:
        """Nothing is held back."""

    def pause(self) -> None:
        """Read nothing more: what the peer sends waits in the connection."""
        self._reading.clear()

    def resume(self) -> None:
        self._reading.set()

    async def written(self, seconds: float) -> None:
        """Wait until everything has been sent, for at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    def close(self) -> None:
        """Close the connection. Waiting messages are not sent."""
        if not self.closed:
            self.closed = True
            self._more.set()

    async def aclose(self) -> None:
        """Close the connection, and wait until both sides know."""
        self.close()
        await self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, received: Callable[[list[bytes | None]], None], ended: Callable[[], None]) -> None:
        closed = websockets_library().ConnectionClosed
        try:
            while True:
                received([await self._socket.recv(decode=False)])
                if self.queued > BACKLOG_BYTES:
                    await self._idle.wait()
                await self._reading.wait()
        except closed as error:
            frame = error.rcvd or error.sent
            self.end = (frame.code, frame.reason) if frame is not None else (1006, "without a reason")
        finally:
            self.close()
            ended()

    async def _write(self) -> None:
        closed = websockets_library().ConnectionClosed
        try:
            while not self.closed:
                await self._more.wait()
                self._more.clear()
                while self._waiting and not self.closed:
                    message, _ = self._waiting[0]
                    try:
                        await self._socket.send(message, text=True)
                    except closed:
                        self.closed = True
                    self._take_first()
                self._idle.set()
        finally:
            self.closed = True
            while self._waiting:
                self._take_first()

    def _take_first(self) -> None:
        """The first message was sent, or never will be."""
        message, taken = self._waiting.popleft()
        self.queued -= len(message)
        if taken is not None:
            taken()


async def dial(
    url: str,
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    longest: int,
    **options: Any,
) -> tuple[ClientConnection, str]:
    """An open connection, and its address without user, password and query, which may be secret.

    `options` are those of `websockets.connect`. Raises PeerError if it is refused, PeerGone if nobody is there,
    UsageError without `websockets`.
    """
    library, parts = websockets_library(), urlsplit(url)
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    credentials = {"Authorization": f"Bearer {token}"} if token else {}
    defaults: dict[str, Any] = {
        "open_timeout": CONNECT_SECONDS,
        "ping_interval": PING_SECONDS,
        "ping_timeout": PING_SECONDS,
        "close_timeout": CLOSE_SECONDS,
        "proxy": None if is_loopback(parts.hostname or "") else True,
    }
    # Where a proxy may be in between, its address says nothing of the server.
    peers = set[str]() if defaults["proxy"] is None or not getproxies() else None
    try:
        socket = await _without_redirects(peers)(
            url,
            additional_headers={**(headers or {}), **credentials},
            user_agent_header=f"defserve/{VERSION}",
            max_size=longest,
            **(defaults | options),
        )
    except library.InvalidURI:
        raise UsageError(f"{url!r} is not a ws(s) address", fix="write it in full: ws://127.0.0.1:8000/mcp") from None
    except library.InvalidStatus as error:
        raise _refusal(address, error.response, peers) from None
    except (OSError, TimeoutError, library.InvalidHandshake) as error:
        raise Unreachable(f"{address} cannot be reached: {error or type(error).__name__}") from None
    return socket, address


def _without_redirects(peers: set[str] | None) -> Any:
    """`websockets.connect`, which would follow redirects and show them what is in headers.

    The IP addresses that it connects to are put into `peers`.
    """
    from websockets.asyncio.client import ClientConnection, connect

    class Connection(ClientConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            if peers is not None:
                peers.add(str((transport.get_extra_info("peername") or ("",))[0]))
            super().connection_made(transport)

        async def drain(self) -> None:
            await drain_moving(self, super().drain, PING_SECONDS)

    class Connect(connect):
        def process_redirect(self, exc: Exception) -> Exception:
            return exc

    return partial(Connect, create_connection=Connection)


def _refusal(address: str, response: Any, peers: set[str] | None) -> PeerError:
    status = response.status_code
    headers = {name.lower(): ", ".join(response.headers.get_all(name)) for name in response.headers}
    if status in (401, 403) and (challenge := headers.get("www-authenticate")):
        return Challenged(address, status, challenge, headers, peers or ())
    refusal = PeerGone if status >= 500 else HttpRefusal
    return refusal(f"{address} answered HTTP {status} {response.reason_phrase}".rstrip(), data={"status": status})


def websockets_library() -> Any:
    """The library. Raises UsageError that says how to install it, if it is missing."""
    try:
        import websockets
    except ImportError:
        raise UsageError(
            "connecting to a ws address needs websockets, which is not installed",
            fix='pip install "defserve[http]"',
        ) from None
    return websockets
