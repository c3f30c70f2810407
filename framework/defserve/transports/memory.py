"""Two ends in one process: what one sends, the other receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class MemoryTransport:
    """The server's end. `peer` is the client's: a link with `send`, `receive` and `aclose`."""

    queued = 0

    def __init__(self, limit: int) -> None:
        self.closed, self.limit = False, limit
        self.peer = MemoryPeer(self)
        self._received: Callable[[list[bytes | None]], None] | None = None
        self._ended: Callable[[], None] | None = None

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        received: Callable[[list[bytes | None]], None],
        ended: Callable[[], None],
    ) -> None:
        self._received, self._ended = received, ended
        self.peer.attach(loop)

    def send(self, message: bytes, taken: Callable[[], None] | None = None) -> None:
        if not self.closed:
            self.peer.deliver(message, taken)
        elif taken is not None:
            taken()

    def flush(self) -> None:
        """Nothing is held back."""

    def pause(self) -> None:
        self.peer.hold()

    def resume(self) -> None:
        self.peer.let_go()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.peer.deliver(None)

    def take(self, message: bytes) -> None:
        """The peer sent a message."""
        if self._received is not None and not self.closed:
            self._received([message if len(message) <= self.limit else None])

    def leave(self) -> None:
        """The peer has left."""
        if self._ended is not None and not self.closed:
            self._ended()


class MemoryPeer:
    """The client's end."""

    def __init__(self, server: MemoryTransport) -> None:
        self._server = server
        self._queue: asyncio.Queue[tuple[bytes | None, Callable[[], None] | None]] | None = None
        self._left = False
        self._free: asyncio.Event | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        self._queue, self._free = asyncio.Queue(), asyncio.Event()
        self._free.set()

    def deliver(self, message: bytes | None, taken: Callable[[], None] | None = None) -> None:
        if self._queue is not None and not self._left:
            self._queue.put_nowait((message, taken))
        elif taken is not None:
            taken()

    def hold(self) -> None:
        """Let senders wait."""
        if self._free is not None:
            self._free.clear()

    def let_go(self) -> None:
        if self._free is not None:
            self._free.set()

    async def send(self, message: bytes) -> None:
        """Send a message, when the server reads."""
        if self._free is not None and not self._free.is_set():
            await self._free.wait()
        self._server.take(message)

    async def receive(self) -> bytes | None:
        """The next message, or None when the server has gone."""
        if self._queue is None or self._left:
            return None
        message, taken = await self._queue.get()
        if taken is not None:
            taken()
        self._left = message is None
        return message

    async def aclose(self) -> None:
        """Leave. What was not received is dropped."""
        self._left = True
        while self._queue is not None and not self._queue.empty():
            _, taken = self._queue.get_nowait()
            if taken is not None:
                taken()
        self._server.leave()
