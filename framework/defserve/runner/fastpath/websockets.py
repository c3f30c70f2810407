"""WebSockets: uvicorn's class with bounds for what a peer sends, and for one that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any, cast

from defserve.runner.fastpath.deadlines import StallGuard
from defserve.transports.websocket.fragments import FRAGMENTS, SMALL, TOO_MANY

CLOSING = 2.0  # how long a client may take to answer a close; until then it keeps its place
PIECE = 16 * 1024

# Close codes (RFC 6455 §7.4).
NOT_TEXT, TOO_BIG = 1007, 1009

_AFTER_OPENING = ("websocket.send", "websocket.close")
_WRITTEN = (b"content-length", b"content-type")


class PatientWebSocket(StallGuard):
    """When the server stops, uvicorn does not close the socket. The app does, as soon as its calls are answered.

    While the peer does not read, nothing more is read from it: each ping would add a pong to what waits.
    """

    handshake_complete: bool
    close_sent: bool
    read_paused: bool
    writable: asyncio.Event
    close_timeout: float
    _small_fragments = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.close_timeout = CLOSING

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def handle_connect(self, event: Any) -> None:
        """Frames that come before the answer to the opening wait for it: uvicorn would answer or fail them first."""
        cast(Any, super()).handle_connect(event)
        if not self.handshake_complete:
            self.transport.pause_reading()

    async def receive(self) -> MutableMapping[str, Any]:
        message = await cast(Any, super()).receive()
        if not (self.writable.is_set() or self.transport.is_closing()):
            self.transport.pause_reading()  # uvicorn has resumed it
        return message

    def data_received(self, data: bytes) -> None:
        """In small pieces: each frame of a byte costs as much as a long one, and all that came is read at once."""
        for start in range(0, len(data), PIECE):
            if start and self.transport.is_closing():
                break
            super().data_received(data[start : start + PIECE] if len(data) > PIECE else data)

    def handle_cont(self, event: Any) -> None:
        """A message may come in many fragments, but not in many small ones."""
        held: Any = self
        if self.close_sent:
            return
        self._small_fragments += len(event.data) < SMALL
        if self._small_fragments > FRAGMENTS:
            held.conn.fail(TOO_BIG, TOO_MANY)
            held.handle_parser_exception()
            return
        if not hasattr(self, "frames"):  # older versions of uvicorn join them, which copies all of them each time
            held.bytes = held.bytes if isinstance(held.bytes, bytearray) else bytearray(held.bytes)
        cast(Any, super()).handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Instead of uvicorn's method, which logs a traceback for text that is not UTF-8."""
        held: Any = self
        if hasattr(self, "frames"):
            data, held.frames = b"".join(held.frames), []
        else:
            data = bytes(held.bytes)
        self._small_fragments = 0
        if self.close_sent:
            return
        try:
            content = {"text": data.decode()} if held.curr_msg_data_type == "text" else {"bytes": data}
        except UnicodeDecodeError:
            held.conn.fail(NOT_TEXT, "text must be UTF-8")
            held.handle_parser_exception()
            return
        held.queue.put_nowait({"type": "websocket.receive", **content})
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self.close_sent and message["type"] in _AFTER_OPENING:
            raise ConnectionAbortedError  # uvicorn takes it for a fault of the app, and logs a traceback
        if message["type"] == "websocket.http.response.start":
            # uvicorn writes these by itself, and older versions would send them twice.
            message = {**message, "headers": [each for each in message["headers"] if each[0] not in _WRITTEN]}
        await cast(Any, super()).send(message)
        if message["type"] == "websocket.accept":
            self.transport.resume_reading()
        elif message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # A refusal is an answer too. Without this line uvicorn logs an error for each refusal.
            self.handshake_complete = True

    def shutdown(self) -> None:
        if not self.handshake_complete or self.close_sent:
            cast(Any, super()).shutdown()
