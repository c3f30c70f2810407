"""One connection to a server: a request out, its response in, then perhaps the next request."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, cast

from defserve.host.links.http_client.content_coding import Unpacker
from defserve.host.links.http_client.errors import Broken, Unanswered
from defserve.host.links.http_client.framing import ResponseFraming
from defserve.host.links.http_client.head import HeadParser, ResponseHead

WRITE_SECONDS = 30.0
MOST_UNREAD: Final = 256 * 1024
"""Bytes of a body that wait for their reader. Then the server has to wait."""


class Connection(asyncio.Protocol):
    """`is_idle` is called when the connection can carry another request. While it is open, it is one of `opened`."""

    def __init__(self, is_idle: Callable[[Connection], None], opened: set[Connection]) -> None:
        self._is_idle, self._opened = is_idle, opened
        self._transport: asyncio.Transport | None = None
        self._poll: Any = None
        self._response: Response | None = None
        self._lost = False
        self._reused = False
        self._clogged = False
        self.idle_since = 0.0
        self.parse_head = HeadParser()

    @property
    def is_usable(self) -> bool:
        """Whether an idle connection is still open. The loop may not have noticed yet that it is not."""
        transport = self._transport
        if self._lost or transport is None or transport.is_closing():
            return False
        # An idle connection has nothing to say, so whatever can be read is its end.
        return self._poll is None or not self._poll.poll(0)

    async def send(self, head: bytes, content: bytes | None) -> Response:
        """Send a request and wait for the head of its response.

        Raises Unanswered if this connection carried requests before and ends without a byte, else Broken.
        """
        response = self._response = Response(self)
        transport = cast("asyncio.Transport", self._transport)
        try:
            # One write: two would be two packets.
            transport.write(head + content if content else head)
            if self._clogged:
                await self._unclogged(transport, response)
            while response.head is None:
                await response.more()
        except BaseException:
            self.abort()
            raise
        return response

    async def _unclogged(self, transport: asyncio.Transport, response: Response) -> None:
        """Wait until the server has taken the request, or has answered before it did."""
        left = transport.get_write_buffer_size()
        while self._clogged and response.head is None:
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await response.more()
            except TimeoutError:
                before, left = left, transport.get_write_buffer_size()
                if left >= before:
                    raise Broken(f"the server took nothing of a request within {WRITE_SECONDS:g} s") from None

    def abort(self) -> None:
        """End the connection at once. Who still reads a response is told."""
        self._end(Broken("the connection was closed"))

    def pause(self, paused: bool) -> None:
        """Whether the server has to wait before it sends more."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._opened.add(self)
        if hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.abort()  # nothing was asked
            return
        try:
            response.take(data)
        except Broken as error:
            self._fail(error)
            return
        if response.framing.over:
            self._finish(response)

    def eof_received(self) -> bool:
        if (response := self._response) is not None:
            try:
                response.framing.end()
            except Broken as error:
                self._fail(error)
            else:
                self._finish(response)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._opened.discard(self)
        self._fail(Broken(str(exc) or type(exc).__name__ if exc else "the connection was closed"))

    def pause_writing(self) -> None:
        self._clogged = True

    def resume_writing(self) -> None:
        self._clogged = False
        if self._response is not None:
            self._response.wake()

    def _finish(self, response: Response) -> None:
        self._response = None
        response.end()
        transport = self._transport
        if transport is None or self._lost:
            return
        if response.framing.reusable and not transport.is_closing() and not transport.get_write_buffer_size():
            self._reused = True
            self._is_idle(self)
        else:
            self.abort()

    def _fail(self, error: Broken) -> None:
        if self._reused and (response := self._response) is not None and not response.framing.began:
            error = Unanswered(*error.args)
        self._end(error)

    def _end(self, error: Broken) -> None:
        response, self._response, self._lost = self._response, None, True
        if response is not None:
            response.end(error)
        if self._transport is not None:
            self._transport.abort()


class Response:
    """What the server answers: `head` first, then the body, as it comes."""

    __slots__ = ("head", "framing", "_connection", "_parts", "_unread", "_ended", "_error", "_waiter")

    def __init__(self, connection: Connection) -> None:
        self.framing = ResponseFraming(connection.parse_head)
        self.head: ResponseHead | None = None
        self._connection: Connection | None = connection
        self._parts: deque[bytes] = deque()
        self._unread: int = 0
        self._ended = False
        self._error: Broken | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def status(self) -> int:
        return cast("ResponseHead", self.head).status

    @property
    def reason(self) -> str:
        return cast("ResponseHead", self.head).reason

    @property
    def headers(self) -> dict[str, str]:
        return cast("ResponseHead", self.head).headers

    @property
    def is_over(self) -> bool:
        """Whether the whole body has come and was read."""
        return self._ended and not self._parts

    async def start(self, enough: int) -> bytes:
        """The body, or its start: reading stops once there are more than `enough` bytes. Raises Broken."""
        if self._ended and self._error is None and len(self._parts) <= 1 and "content-encoding" not in self.headers:
            return self._parts.popleft() if self._parts else b""
        return await start_of(self.parts(), enough)

    async def parts(self) -> AsyncGenerator[bytes]:
        """The body, part by part. Raises Broken if it ends early."""
        coding = self.headers.get("content-encoding", "identity")
        unpacker = None if coding == "identity" else Unpacker(coding)
        while True:
            while not self._parts:
                if self._error is not None:
                    raise self._error
                if self._ended:
                    return
                await self.more()
            part = self._parts.popleft()
            before = self._unread
            self._unread = before - len(part)
            if before > MOST_UNREAD >= self._unread and self._connection is not None:
                self._connection.pause(False)
            if unpacker is None:
                yield part
            else:
                for piece in unpacker.unpack(part):
                    yield piece

    async def aclose(self) -> None:
        """Have done with the response. The connection is kept if the whole response has come."""
        if (connection := self._connection) is not None:
            self._connection = None
            connection.abort()

    async def more(self) -> None:
        """Wait until something has happened. Raises what went wrong before there was a head."""
        if self.head is None and self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # What the connection calls.

    def take(self, data: bytes) -> None:
        framing = self.framing
        part = framing.feed(data)
        self.head = framing.head
        if part:
            self._parts.append(part)
            self._unread += len(part)
            if self._unread > MOST_UNREAD and self._connection is not None and not framing.over:
                self._connection.pause(True)
        self.wake()

    def end(self, error: Broken | None = None) -> None:
        self._connection, self._ended, self._error = None, True, error
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def start_of(parts: AsyncGenerator[bytes], enough: int) -> bytes:
    """The parts together, until there are more than `enough` bytes."""
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > enough:
            break
    return bytes(body)
