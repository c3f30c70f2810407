"""One request and its response on the fast path: mixins for uvicorn's own cycle."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from defserve.serve.fastpath.known_heads import CachedRequestHead
    from defserve.serve.fastpath.protocol import FastHttptoolsProtocol

# Past this size uvicorn pauses reading, and copying costs more than the steps of ASGI.
MAX_BODY_BYTES = 65_536

_HEADS = {
    status.value: b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: "
    % (status, status.phrase.encode())
    for status in HTTPStatus
}


class BufferedRequestCycle:
    """A cycle that is also a `serve.sockets.BufferedRequest`.

    uvicorn takes a response in two parts, and checks and joins its headers each time. Ours are always the same two.
    """

    head: CachedRequestHead | None = None
    is_taken = False
    made_event: asyncio.Event | None = None
    """The event on which `receive` waits, if there is one."""

    def take_body(self: Any, limit: int) -> bytes | None:
        body = self.body
        size = len(body)
        if self.more_body or not 0 < size <= MAX_BODY_BYTES or size > limit:
            return None
        self.body, self.is_taken = b"", True
        if (event := self.made_event) is not None:
            event.clear()
        return bytes(body)

    def respond(self: Any, status: int, body: bytes) -> bool:
        protocol = self.protocol
        # The protocol's cycle belongs to the newest request. A client that does not wait may have sent another one.
        if protocol.cycle is not self or self.response_started or self.disconnected or not self.keep_alive:
            return False
        if protocol.flow.write_paused or len(body) > MAX_BODY_BYTES:
            return False
        protocol.transport.write(b"%b%d\r\n\r\n%b" % (_HEADS[status], len(body), body))
        self.response_started = self.response_complete = True
        if (event := self.made_event) is not None:
            event.set()
        on_response = self.on_response
        on_response()
        return True


def _of_protocol(name: str) -> Any:
    """An attribute of uvicorn's cycle that is the same for all requests of a connection."""
    return property(lambda self: getattr(self.protocol, name))


class KnownHeadCycle(BufferedRequestCycle):
    """The cycle of a request with a known head. What a whole response does not need is made on demand."""

    transport, flow = _of_protocol("transport"), _of_protocol("flow")
    logger, access_logger, access_log = (_of_protocol(name) for name in ("logger", "access_logger", "access_log"))
    waiting_for_100_continue = False
    chunked_encoding = None
    expected_content_length = 0

    def __init__(
        self, protocol: FastHttptoolsProtocol, scope: MutableMapping[str, Any], head: CachedRequestHead, body: bytes
    ) -> None:
        self.protocol, self.scope, self.head, self.body = protocol, scope, head, body
        self.on_response = protocol.on_response_complete
        # Every request reads these. To read from the class what an instance lacks costs ten times as much as to set it.
        self.disconnected = self.response_started = self.response_complete = self.more_body = self.is_taken = False
        self.keep_alive = True
        self.made_event = None

    @property
    def default_headers(self) -> Any:
        return self.protocol.server_state.default_headers

    @property
    def message_event(self) -> asyncio.Event:
        if self.made_event is None:
            self.made_event = asyncio.Event()
            if not self.is_taken:
                self.made_event.set()
        return self.made_event
