"""HTTP/1.1 with requests and responses in one piece. The steps of ASGI cost more than most calls.

A head that uvicorn has parsed before (`known_heads`) is not parsed again. This works with httptools only, because h11
must see every step.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from defserve.serve.asyncio_engine import EagerTaskStarter
from defserve.serve.fastpath.cycle import BufferedRequestCycle, KnownHeadCycle
from defserve.serve.fastpath.deadlines import CONNECTION_CLOSE_HEADER
from defserve.serve.fastpath.httptools import BoundedHttptoolsProtocol
from defserve.serve.fastpath.known_heads import NO_KNOWN_HEAD, CachedRequestHead, RequestHeadCache
from defserve.serve.sockets import BUFFERED_REQUEST_KEY

# How many heads are learnt from one connection when they come first. If all its heads differ, learning costs more than
# it saves: then one is learnt that comes twice in a row.
MAX_LEARNED_HEADS = 64

# Java's client offers HTTP/2 with every first request. A server may ignore that; httptools drops the body instead.
_H2C = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n|$)", re.IGNORECASE)


class FastHttptoolsProtocol(BoundedHttptoolsProtocol):
    """Mixed in before uvicorn's protocol for httptools. Connections of one server share the heads they know."""

    heads: RequestHeadCache
    first_steps: EagerTaskStarter | None = None  # of the class: connections of one server share it
    fast_cycle: type[KnownHeadCycle]
    parsed_cycle: type[BufferedRequestCycle]
    app: Any
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None
    scheme: str
    tasks: set[Any]
    limit_concurrency: int
    loop: asyncio.AbstractEventLoop
    app_state: dict[str, Any]
    server_state: Any
    timeout_keep_alive: float
    timeout_keep_alive_task: asyncio.TimerHandle | None
    _idle_since = 0.0
    _running: Any = None
    _last_head: CachedRequestHead | None = None
    _last_scope: dict[str, Any]
    _lessons = MAX_LEARNED_HEADS
    _unknown = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.first_steps is None or self.first_steps.loop is not self.loop:
            type(self).first_steps = EagerTaskStarter(self.loop)
        assert self.first_steps is not None
        self._first_steps = self.first_steps

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        # If a head has begun behind the last request, the parser has it, and waits for the rest.
        is_fresh = (
            self._read is before
            and not (self._head_begun or self._head_bytes or self._is_leaving)
            and (before is None or before.response_complete)
        )
        head, length, body = NO_KNOWN_HEAD
        if is_fresh:
            if (last := self._last_head) is not None:
                head, length, body = last.match(data)
            if head is None:
                head, length, body = self.heads.find(data)
        if head is not None and len(self.tasks) < self.limit_concurrency > len(self.connections):
            self._begin(head, length, body)
            return
        if is_fresh and b"h2c" in data:
            data = _without_h2c(data)
        super().data_received(data)
        cycle = self.cycle
        if is_fresh and cycle is not before and self._is_read and cycle.keep_alive:
            if self._lessons or self._unknown == self.heads.looked_for != b"":
                self._lessons = max(self._lessons - 1, 0)
                cycle.head = self.heads.add_head(data, cycle.scope)
            self._unknown = self.heads.looked_for

    def _begin(self, head: CachedRequestHead, length: bytes, body: bytes) -> None:
        """Start a request with a known head, as uvicorn does in the steps of its parser."""
        if self._deadline is not None:
            self._head_is_there()
        if head is not self._last_head:
            own = {"client": self.client, "server": self.server, "scheme": self.scheme, "headers": None, "state": None}
            self._last_head, self._last_scope = head, {**head.scope, **own, BUFFERED_REQUEST_KEY: None}
        self.scope = scope = self._last_scope.copy()
        scope["headers"], scope["state"] = head.headers(length), self.app_state.copy()
        self.cycle = self._read = self._running = scope[BUFFERED_REQUEST_KEY] = cycle = self.fast_cycle(
            self, scope, head, body
        )
        # In an empty context, as uvicorn does with `reset_contextvars`: a call sees no context variables of another.
        task = self._first_steps.start(cycle.run_asgi(self.app), None)  # pyright: ignore
        if task is not None:
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        cycle.__class__, cycle.protocol, cycle.made_event = self.parsed_cycle, self, cycle.message_event
        if CONNECTION_CLOSE_HEADER in cycle.scope["headers"]:
            cycle.keep_alive = False  # older versions of uvicorn know it only when they write the response
        self._running = cycle
        if app is self.app:
            cycle.scope[BUFFERED_REQUEST_KEY] = cycle  # which the app removes
        super()._start_asgi_task(cycle, app)  # pyright: ignore

    def _unsupported_upgrade_warning(self) -> None:
        """httptools drops the body of such a request. Later parts of the body would look like the next request."""
        super()._unsupported_upgrade_warning()  # pyright: ignore
        self.cycle.keep_alive = False

    # uvicorn sets and cancels a timer for every request. Here one timer stays, and checks the time when it fires.

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None or self.pipeline:
            super().on_response_complete()  # pyright: ignore
        else:
            self.server_state.total_requests += 1
            self.flow.resume_reading()

    def timeout_keep_alive_handler(self) -> None:
        if self._is_handed_over:
            return  # another protocol has the connection
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0 and self.cycle.response_complete and not self._head_bytes:
            super().timeout_keep_alive_handler()  # pyright: ignore
        else:
            self.timeout_keep_alive_task = self.loop.call_later(max(left, 1), self.timeout_keep_alive_handler)

    def _wake_app(self) -> None:
        super()._wake_app()
        if self._running is not None:
            self._running.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # uvicorn tells only the newest request; the one that is being answered may be an earlier one.
        running, self._running = self._running, None
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    def _unset_keepalive_if_required(self) -> None:
        """Keep the timer: its handler checks whether it still matters."""


def _without_h2c(data: bytes) -> bytes:
    head, end, rest = data.partition(b"\r\n\r\n")
    return _H2C.sub(b"", head) + end + rest
