"""Requests and responses whole, past the steps of ASGI, which cost more than most calls (`transports.exchange.Direct`).

uvicorn takes a response in two parts, and checks and joins its headers anew each time; ours are always the same two.
It parses every head; one that it has parsed before (`heads`) means what it meant. Only for httptools: h11 wants to see
every step.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, MutableMapping
from contextvars import Context
from http import HTTPStatus
from types import CodeType
from typing import Any

from defserve.runner.fastpath.known_heads import UNKNOWN, Head, Heads
from defserve.transports.http.exchange import DIRECT

# What of uvicorn is used that it does not document.
_OF_PROTOCOL = (
    "on_message_begin",
    "on_headers_complete",
    "on_message_complete",
    "_start_asgi_task",
    "_unsupported_upgrade_warning",
    "on_response_complete",
    "timeout_keep_alive_handler",
    "_unset_keepalive_if_required",
)
# All that one of uvicorn's cycles is made of: where it has got more, it is not what `WholeCycle` takes it for.
_OF_CYCLE: frozenset[str] = frozenset(
    ("scope", "transport", "flow", "logger", "access_logger", "access_log", "default_headers", "message_event")
    + ("on_response", "disconnected", "keep_alive", "waiting_for_100_continue", "body", "more_body")
    + ("response_started", "response_complete", "chunked_encoding", "expected_content_length")
)

# Past this uvicorn pauses reading, and copying costs more than steps.
MOST = 65_536

# How many heads a connection may teach: one whose heads are all different is not worth the trouble.
LESSONS = 64

# Java's client offers HTTP/2 with every first request. A server may ignore that; httptools drops the body instead.
_H2C = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n|$)", re.IGNORECASE)

_HEADS = {
    status.value: b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: "
    % (status, status.phrase.encode())
    for status in HTTPStatus
}


def fits(protocol: type[Any]) -> bool:
    """Whether a protocol of uvicorn is that for httptools, and still what `Whole` takes it for."""
    cycle = getattr(sys.modules[protocol.__module__], "RequestResponseCycle", None)
    if cycle is None or protocol.__name__ != "HttpToolsProtocol":
        return False
    begins: CodeType = cycle.__init__.__code__
    return frozenset(begins.co_names) - {"bytearray"} == _OF_CYCLE and all(
        hasattr(protocol, name) for name in _OF_PROTOCOL
    )


def whole(protocol: type[Any]) -> type[Whole]:
    """A mixin for one server's connections, which know the same heads."""
    of_uvicorn = sys.modules[protocol.__module__].RequestResponseCycle
    cycle = type("WholeCycle", (WholeCycle, of_uvicorn), {})
    return type("Whole", (Whole,), {"heads": Heads(), "new_cycle": cycle})


class WholeCycle:
    """A request that came whole, and its response; mixed in before uvicorn's, whose steps it can still take.

    What a response that goes whole does not need is found when it is asked for.
    """

    disconnected = response_started = response_complete = more_body = waiting_for_100_continue = False
    keep_alive = True
    chunked_encoding = None
    expected_content_length = 0

    def __init__(self, protocol: Whole, scope: MutableMapping[str, Any], body: bytes) -> None:
        self.protocol, self.scope, self.body = protocol, scope, body
        self.on_response = protocol.on_response_complete

    def __getattr__(self, name: str) -> Any:
        if name == "message_event":
            self.message_event = asyncio.Event()
            self.message_event.set()
            return self.message_event
        return getattr(self.protocol if name != "default_headers" else self.protocol.server_state, name)


class Whole(asyncio.Protocol):
    """A protocol, mixed in before uvicorn's, that is `Direct`."""

    heads: Heads
    new_cycle: type[Any]
    app: Any
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None
    scheme: str
    scope: MutableMapping[str, Any]
    connections: set[Any]
    tasks: set[Any]
    limit_concurrency: int
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    app_state: dict[str, Any]
    cycle: Any
    flow: Any
    pipeline: Any
    server_state: Any
    timeout_keep_alive: float
    timeout_keep_alive_task: asyncio.TimerHandle | None
    _has_begun = False  # a head, of which not all came; said by the parser
    _is_leaving: bool
    _head_bytes: int
    _head_is_there: Callable[[], None]
    _upgraded: bool
    _idle_since = 0.0
    _read: object | None = None
    _head: Head | None = None
    _running: Any = None
    _lessons = LESSONS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.app_state = {**self.app_state, DIRECT: self}

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        # A head may have begun behind the request that came last: then the parser has it, and waits for the rest.
        is_fresh = (
            self._read is before
            and not (self._has_begun or self._head_bytes or self._is_leaving)
            and (before is None or before.response_complete)
        )
        head, body = self.heads.find(data) if is_fresh else UNKNOWN
        if head is not None and len(self.tasks) < self.limit_concurrency > len(self.connections):
            self._begin(head, body)
            return
        self._head = None
        if is_fresh and b"h2c" in data:
            data = _without_h2c(data)
        super().data_received(data)
        cycle = self.cycle
        if is_fresh and cycle is not before and self._is_read and cycle.keep_alive and self._lessons:
            self._lessons -= 1
            self._head = self.heads.learn(data, cycle.scope)

    def _begin(self, head: Head, body: bytes) -> None:
        """What uvicorn does in the steps of its parser."""
        self._head_is_there()
        self._head = head
        self.scope = scope = {
            **head.scope,
            "headers": head.headers(len(body)),
            "client": self.client,
            "server": self.server,
            "scheme": self.scheme,
            "state": self.app_state.copy(),
        }
        self.cycle = self._read = self._running = cycle = self.new_cycle(self, scope, body)
        # As uvicorn with `reset_contextvars`: what one call sets is not for the next to see.
        task = self.loop.create_task(cycle.run_asgi(self.app), context=Context())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)  # pyright: ignore

    def on_message_begin(self) -> None:
        super().on_message_begin()  # pyright: ignore
        self._has_begun = True

    def on_headers_complete(self) -> None:
        self._has_begun = False
        super().on_headers_complete()  # pyright: ignore

    def on_message_complete(self) -> None:
        super().on_message_complete()  # pyright: ignore
        self._read = self.cycle

    @property
    def _is_read(self) -> bool:
        return self._read is self.cycle

    def _unsupported_upgrade_warning(self) -> None:
        """httptools drops the body of such a request, and would take what of it comes later for the next one."""
        super()._unsupported_upgrade_warning()  # pyright: ignore
        self.cycle.keep_alive = False

    def body_of(self, scope: MutableMapping[str, Any], limit: int) -> bytes | None:
        """The body of a request, if all of it is there and within `limit`."""
        cycle = self.cycle
        size = len(cycle.body)
        if cycle.scope is not scope or cycle.more_body or not 0 < size <= MOST or size > limit:
            return None
        body, cycle.body = bytes(cycle.body), b""
        return body

    def head_of(self, scope: MutableMapping[str, Any]) -> Head | None:
        """The head of a request, if it is one that is known."""
        head = self._head
        return head if head is not None and self.cycle.scope is scope else None

    def respond_to(self, scope: MutableMapping[str, Any], status: int, body: bytes) -> bool:
        """Send a complete response of JSON; False when it has to take the steps."""
        cycle = self.cycle
        # `cycle` is of the last request that came; of those that were sent without waiting, that may be a later one.
        if cycle.scope is not scope or cycle.response_started or cycle.disconnected or not cycle.keep_alive:
            return False
        if self.flow.write_paused or len(body) > MOST:
            return False
        self.transport.write(b"%b%d\r\n\r\n%b" % (_HEADS[status], len(body), body))
        cycle.response_started = cycle.response_complete = True
        if "message_event" in cycle.__dict__:
            cycle.message_event.set()
        cycle.on_response()
        return True

    # uvicorn sets and cancels a timer for every request; here there is one, which looks when it rings.

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None or self.pipeline:
            super().on_response_complete()  # pyright: ignore
        else:
            self.server_state.total_requests += 1
            self.flow.resume_reading()

    def timeout_keep_alive_handler(self) -> None:
        if self._upgraded:
            return  # another protocol has the connection
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0 and self.cycle.response_complete and not self._head_bytes:
            super().timeout_keep_alive_handler()  # pyright: ignore
        else:
            self.timeout_keep_alive_task = self.loop.call_later(max(left, 1), self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self.app_state.pop(DIRECT, None)
        super()._unset_keepalive_if_required()  # pyright: ignore
        super().connection_lost(exc)
        # uvicorn tells the request that came last; the one that is being answered may be an earlier one.
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    def _unset_keepalive_if_required(self) -> None:
        """It may go on: whether it still matters is seen when it rings."""


def _without_h2c(data: bytes) -> bytes:
    head, end, rest = data.partition(b"\r\n\r\n")
    return _H2C.sub(b"", head) + end + rest
