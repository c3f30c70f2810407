"""One request and its response on the fast path: mixins for uvicorn's own cycle."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defserve.runner.fastpath.known_heads import KnownHead
    from defserve.runner.fastpath.protocol import FastProtocol

# Past this size uvicorn pauses reading, and copying costs more than the steps of ASGI.
MOST = 65_536

_HEADS = {
    status.value: b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: "
    % (status, status.phrase.encode())
    for status in HTTPStatus
}


class WholeCycle:
    """A cycle that is also a `transports.asgi.WholeRequest`.

    uvicorn takes a response in two parts, and checks and joins its headers each time. Ours are always the same two.
    """

    head: KnownHead | None = None
    is_taken = False

    def take_body(self: Any, limit: int) -> bytes | None:
        size = len(self.body)
        if self.more_body or not 0 < size <= MOST or size > limit:
            return None
        body, self.body = bytes(self.body), b""
        self.is_taken = True
        if "message_event" in self.__dict__:
            self.message_event.clear()
        return body

    def respond(self: Any, status: int, body: bytes) -> bool:
        protocol = self.protocol
        # The protocol's cycle belongs to the newest request. A client that does not wait may have sent another one.
        if protocol.cycle is not self or self.response_started or self.disconnected or not self.keep_alive:
            return False
        if protocol.flow.write_paused or len(body) > MOST:
            return False
        protocol.transport.write(b"%b%d\r\n\r\n%b" % (_HEADS[status], len(body), body))
        self.response_started = self.response_complete = True
        if "message_event" in self.__dict__:
            self.message_event.set()
        self.on_response()
        return True


class FastCycle(WholeCycle):
    """The cycle of a request with a known head. Attributes that a whole response does not need are made on demand."""

    disconnected = response_started = response_complete = more_body = waiting_for_100_continue = False
    keep_alive = True
    chunked_encoding = None
    expected_content_length = 0

    def __init__(self, protocol: FastProtocol, scope: MutableMapping[str, Any], head: KnownHead, body: bytes) -> None:
        self.protocol, self.scope, self.head, self.body = protocol, scope, head, body
        self.on_response = protocol.on_response_complete

    def __getattr__(self, name: str) -> Any:
        if name == "message_event":
            self.message_event = asyncio.Event()
            if not self.is_taken:
                self.message_event.set()
            return self.message_event
        return getattr(self.protocol if name != "default_headers" else self.protocol.server_state, name)
