"""Requests and responses whole, past the steps of ASGI, which cost more than most calls (`transports.exchange.Direct`).

uvicorn takes a response in two parts, and checks and joins its headers anew each time; ours are always the same two.
Only for httptools: h11 wants to see every step.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any

from defserve.transports.exchange import DIRECT

# What of uvicorn is used that it does not document.
_OF_PROTOCOL = (
    "on_message_complete",
    "on_response_complete",
    "timeout_keep_alive_handler",
    "_unset_keepalive_if_required",
)
_OF_CYCLE = frozenset(
    ("scope", "body", "more_body", "response_started", "response_complete", "disconnected", "keep_alive")
    + ("message_event", "on_response")
)

# Past this uvicorn pauses reading, and copying costs more than steps.
MOST = 65_536

_HEADS = {
    status.value: b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: "
    % (status, status.phrase.encode())
    for status in HTTPStatus
}


def fits(protocol: type[Any]) -> bool:
    """Whether a protocol of uvicorn is that for httptools, and still what `Whole` takes it for."""
    cycle = getattr(sys.modules[protocol.__module__], "RequestResponseCycle", None)
    sets = frozenset(cycle.__init__.__code__.co_names) if cycle is not None else frozenset[str]()
    is_httptools = protocol.__name__ == "HttpToolsProtocol"
    return is_httptools and sets >= _OF_CYCLE and all(hasattr(protocol, name) for name in _OF_PROTOCOL)


class Whole(asyncio.Protocol):
    """A protocol, mixed in before uvicorn's, that is `Direct`."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    app_state: dict[str, Any]
    cycle: Any
    flow: Any
    pipeline: Any
    server_state: Any
    timeout_keep_alive: float
    timeout_keep_alive_task: asyncio.TimerHandle | None
    _head_bytes: int
    _upgraded: bool
    _idle_since = 0.0
    _read: object | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.app_state = {**self.app_state, DIRECT: self}

    def on_message_complete(self) -> None:
        super().on_message_complete()  # pyright: ignore
        self._read = self.cycle

    @property
    def _is_read(self) -> bool:
        return self._read is self.cycle

    def body_of(self, scope: MutableMapping[str, Any], limit: int) -> bytes | None:
        """The body of a request, if all of it is there and within `limit`."""
        cycle = self.cycle
        if cycle.scope is not scope or cycle.more_body or not 0 < len(cycle.body) <= min(limit, MOST):
            return None
        body = bytes(cycle.body)
        cycle.body.clear()
        return body

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

    def _unset_keepalive_if_required(self) -> None:
        """It may go on: whether it still matters is seen when it rings."""
