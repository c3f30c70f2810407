"""Bounds that uvicorn lacks: deadlines for heads and slow readers, and limits for the bytes of a request."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

from defserve.core.messages import INVALID_REQUEST, encode
from defserve.limits import Limits
from defserve.serve.fastpath.crowding import OpenConnections
from defserve.serve.fastpath.holding import PausableFlowControl

MAX_REQUEST_HEAD_BYTES = 32 * 1024
MAX_STALL_SECONDS = 30.0
CLOSE_LINGER_SECONDS = 0.25
REFUSED = 1.0
FIRST_PROBE_SECONDS, MAX_PROBE_SECONDS = 0.25, 15.0
CONNECTION_CLOSE_HEADER = (b"connection", b"close")

TIMEOUT = b"408 Request Timeout", "the head of the request did not arrive in time"
TOO_LARGE = b"431 Request Header Fields Too Large", f"the head of a request may have {MAX_REQUEST_HEAD_BYTES} bytes"
UNAVAILABLE = b"503 Service Unavailable", "too many connections are open; try again later"
BAD_REQUEST = b"400 Bad Request", "a connection is upgraded with GET"


class StallGuard(asyncio.Protocol):
    """Cuts off a peer that stops reading its responses. Mixed in before uvicorn's protocol."""

    transport: asyncio.Transport
    _stall: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch_reader(self, waiting: int) -> None:
        self._stall = asyncio.get_running_loop().call_later(MAX_STALL_SECONDS, self._check_reader, waiting)

    def _check_reader(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting >= before:
            self.transport.abort()  # closing would wait for the reader
        else:
            self._watch_reader(waiting)

    def _stop_watching(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


class RequestHeadDeadline(StallGuard, ABC):
    """The head of a request must be complete in time, and not too long. The parser says which part of it comes.

    Bytes that bring no part of a body (sizes and extensions of chunks, trailers) have the same limit. Between requests
    uvicorn's own keep-alive timeout applies, until the first byte of the next request.
    """

    limits: Limits
    scope: Any
    cycle: Any
    connections: set[Any]
    client: tuple[str, int] | None
    crowd: OpenConnections
    flow: PausableFlowControl
    flow_kind: Callable[[asyncio.Transport], PausableFlowControl]
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _bare_bytes = 0
    _awaited_behind: Any = None
    _half_closed: asyncio.TimerHandle | None = None
    _is_handed_over = False  # another protocol has the connection
    _is_leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.flow = self.flow_kind(self.transport)
        if len(self.connections) > self.limits.connections:
            self.connections.discard(
                self.crowd.close_oldest_idle()
            )  # now, because a request may come before it has ended
        self.crowd.add(self._address, self)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if len(data) <= MAX_REQUEST_HEAD_BYTES:
            self._feed(data)
            return
        # In one piece it could hold a whole head that is too long.
        for start in range(0, len(data), MAX_REQUEST_HEAD_BYTES):
            if not (self._is_handed_over or self.transport.is_closing()):
                self._feed(data[start : start + MAX_REQUEST_HEAD_BYTES])

    def _feed(self, data: bytes) -> None:
        before, is_head = self.cycle, self._is_read
        room = MAX_REQUEST_HEAD_BYTES - self._head_bytes
        if is_head and len(data) > room and not (self._is_handed_over or _ends_head(data, room)):
            self._refuse(TOO_LARGE)
            return
        held = 0 if before is None else len(before.body)
        super().data_received(data)
        if self.cycle is not before:
            # A head is complete, usually with its body.
            self._head_bytes = self._bare_bytes = 0
            self._head_is_there()
            if self._is_leaving:
                self.cycle.keep_alive = False
                self.cycle.scope["headers"].append(
                    CONNECTION_CLOSE_HEADER
                )  # then uvicorn says it in the response, with either parser
        elif self._is_handed_over or self.transport.is_closing():
            return
        elif is_head:
            self._take_head(len(data))
        else:
            self._take_rest(len(data), len(self.cycle.body) > held)
        self._note_next_head()

    def _note_next_head(self) -> None:
        if self._has_begun and not self._head_bytes and not self.transport.is_closing():
            # Another head has begun behind the request. Its length so far is not known.
            self._take_head(1)

    def _take_head(self, size: int) -> None:
        """Part of a head came, perhaps while an earlier request is still answered."""
        self._head_bytes += size
        if self._head_bytes > MAX_REQUEST_HEAD_BYTES:
            self._refuse(TOO_LARGE)
        elif self._deadline is None:
            self._await_head()

    def _take_rest(self, size: int, brought_body: bool) -> None:
        """Part of a request came behind its head. If it was answered already, the rest is only thrown away."""
        if brought_body:
            self._bare_bytes = 0
            return
        self._bare_bytes += size
        most = MAX_REQUEST_HEAD_BYTES + self.limits.message if self.cycle.response_complete else MAX_REQUEST_HEAD_BYTES
        if self._bare_bytes > most:
            self._refuse(TOO_LARGE)

    def _refuse(self, refusal: tuple[bytes, str]) -> None:
        """End the connection: with a refusal if the client waits for nothing else, or only for this request."""
        cycle, is_head = self.cycle, self._is_read
        if not is_head and not (cycle.response_started or getattr(self, "pipeline", None)):
            cycle.disconnected = True
            cycle.message_event.set()
            self.refuse_connection(refusal)
        elif is_head and self._is_between:
            self.refuse_connection(refusal)
        else:
            self.transport.abort()  # in the middle of a response no refusal can be sent

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        if self._half_closed is not None:
            self._half_closed.cancel()
        cast(Any, super())._unset_keepalive_if_required()  # uvicorn forgets it if the connection was reset
        super().connection_lost(exc)
        self.crowd.discard(self._address, self)
        # The requests refer to the connection. What it received must not wait for the garbage collector.
        self.cycle = self.scope = self.headers = self._awaited_behind = None

    def eof_received(self) -> bool:
        """The client sends no more, but it may still read: it gets the answer to what it has asked."""
        if self._is_between or not self._is_read or self.transport.get_extra_info("sslcontext") is not None:
            return False
        if not self._has_begun:
            self.cycle.keep_alive = False
        if self._half_closed is None:
            loop = asyncio.get_running_loop()
            self._half_closed = loop.call_later(self.limits.idle, self.transport.abort)
            loop.call_later(FIRST_PROBE_SECONDS, self._probe_half_closed, FIRST_PROBE_SECONDS)
        return True

    def _probe_half_closed(self, seconds: float) -> None:
        """A client that has left looks the same. Only writing to it shows the difference, so the app is woken up."""
        if self.cycle is None or self.transport.is_closing():
            return
        if self._is_between:
            self.transport.close()
            return
        self._wake_app()
        asyncio.get_running_loop().call_later(min(2 * seconds, MAX_PROBE_SECONDS), self._probe_half_closed, 2 * seconds)

    def _wake_app(self) -> None:
        """Let `receive` return once more: an `http.request` behind the end of the body."""
        self.cycle.message_event.set()

    @classmethod
    def retire_connections(cls) -> None:
        """On each connection the next response is the last. None is closed: its client must be told first."""
        cls._is_leaving = True

    def shutdown(self) -> None:
        """The next response is the last. An idle connection is closed after a moment: a request may be on its way, and
        would be lost if the connection were closed at once."""
        if self._is_between and not self._is_leaving:
            self._is_leaving = True
            asyncio.get_running_loop().call_later(CLOSE_LINGER_SECONDS, self._let_go)
        else:
            cast(Any, super()).shutdown()

    def _let_go(self) -> None:
        if self._is_between and not self.transport.is_closing():
            cast(Any, super()).shutdown()

    def handle_websocket_upgrade(self, *request: Any) -> None:
        """Another protocol takes over the connection."""
        if not self._is_between:
            self.cycle.keep_alive = False  # an upgrade in the middle of a response: that response is the last
            return
        self._is_handed_over = True
        self.crowd.discard(self._address, self)
        if (request[0].method if request else self.scope["method"].encode()) != b"GET":
            self.refuse_connection(BAD_REQUEST)  # the other protocol would not answer
        elif len(self.connections) > self.limits.connections:
            self.refuse_connection(UNAVAILABLE)
        else:
            cast(Any, super()).handle_websocket_upgrade(*request)

    @property
    def is_idle(self) -> bool:
        """Whether it may give way to a new connection: no request has come that must be answered."""
        return self._is_between

    @property
    def _address(self) -> str:
        return self.client[0] if self.client is not None else ""

    @property
    def _is_between(self) -> bool:
        """Whether no response is being sent or prepared."""
        return self.cycle is None or self.cycle.response_complete

    @property
    @abstractmethod
    def _is_read(self) -> bool:
        """Whether all of the last request has come. Part of one that was refused early may still come."""

    @property
    @abstractmethod
    def _has_begun(self) -> bool:
        """Whether something came behind the last request."""

    def _await_head(self) -> None:
        self._awaited_behind = self.cycle
        self._deadline = asyncio.get_running_loop().call_later(self.limits.header, self._too_late)

    def _head_is_there(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._is_handed_over or self.transport.is_closing():
            return
        if self.cycle is not self._awaited_behind:
            self._head_bytes = 0  # it came, but an earlier request had to be answered first
        elif self._is_between:
            self.refuse_connection(TIMEOUT)
        else:
            self._await_head()

    def refuse_connection(self, refusal: tuple[bytes, str]) -> None:
        """Refuse before a request was read, and close the connection."""
        status, text = refusal
        body = encode({"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": text}})
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self._head_is_there()
        self._is_handed_over = True
        self.transport.write(head % (status, len(body)) + body)
        self.transport.set_protocol(FinalReader(self, self.transport))


class FinalReader(asyncio.Protocol):
    """Reads a refused connection for a moment, and drops what comes.

    If a connection is closed while its client sends, the system tells the client so, and drops the refusal.
    """

    def __init__(self, served: asyncio.Protocol, transport: asyncio.Transport) -> None:
        self._served = served
        self._timer = asyncio.get_running_loop().call_later(REFUSED, transport.abort)
        transport.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._served.connection_lost(exc)


def _ends_head(data: bytes, most: int) -> bool:
    """Whether a head may end within so many bytes: there is a blank line, or one that began in an earlier piece."""
    return data.startswith((b"\n", b"\r\n")) or data.find(b"\n\r\n", 0, most) >= 0 or data.find(b"\n\n", 0, most) >= 0
