"""WebSockets: uvicorn's class with bounds for what a peer sends, and for one that does not read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any, cast

from defserve.serve.fastpath.crowding import OpenConnections
from defserve.serve.fastpath.deadlines import StallGuard
from defserve.serve.sockets import MAX_SMALL_FRAGMENTS, SMALL_FRAGMENT_BYTES, TOO_MANY_FRAGMENTS

CLOSING = 2.0  # how long a client may take to answer a close; it keeps its place unless others need it
PIECE = 8 * 1024  # 1365 empty frames, which take about ten milliseconds
CONTROL_FRAMES = 256  # pings and pongs in a second; a client needs one in many seconds

# Close codes (RFC 6455 §7.4).
NOT_TEXT, POLICY, TOO_BIG = 1007, 1008, 1009

_AFTER_OPENING = ("websocket.send", "websocket.close")
_TO_READ_ON = ("websocket.accept", "websocket.close")
_WRITTEN = (b"content-length", b"content-type")


class BoundedWebSocket(StallGuard):
    """When the server stops, uvicorn does not close the socket. The app does, as soon as its calls are answered.

    While the peer does not read, nothing more is read from it: each ping would add a pong to what waits. What one peer
    sends is handled in turns, so that others are served between them.
    """

    handshake_complete: bool
    close_sent: bool
    read_paused: bool
    writable: asyncio.Event
    close_timeout: float
    connections: set[Any]
    client: tuple[str, int] | None
    crowd: OpenConnections
    is_idle = True  # in the crowd there are only those that wait for the answer to a close
    _small_fragments = 0
    _control_frames = 0
    _counted_since = 0.0
    _rest: bytes  # what has come and was not handled
    _turn: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.close_timeout = CLOSING
        self._rest = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.add(self)  # uvicorn removes it, but it was removed already if it gave way
        super().connection_lost(exc)
        self.crowd.discard(self._address, self)
        self._rest = b""
        if self._turn is not None:
            self._turn.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_on()

    def handle_connect(self, event: Any) -> None:
        """Frames that come before the answer to the opening wait for it: uvicorn would answer or fail them first."""
        cast(Any, super()).handle_connect(event)
        if not self.handshake_complete:
            self.transport.pause_reading()

    async def receive(self) -> MutableMapping[str, Any]:
        message = await cast(Any, super()).receive()
        if self._rest or not self.writable.is_set():
            self._read_on()  # uvicorn has resumed reading
        return message

    def data_received(self, data: bytes) -> None:
        """In small pieces: an empty frame costs as much as a long one, and all that came is read at once."""
        if len(data) <= PIECE and not self._rest:
            super().data_received(data)
            return
        if self._rest:
            self._rest += data
        else:
            self._handle_pieces(data)
        if self._rest:
            self._read_on()

    def _handle_pieces(self, data: bytes) -> None:
        """Handle what has come, until a message is there: the app must take it first. What remains is the rest.

        Frames that bring no message are bounded by number. After a close they are not, so then it is one piece a turn.
        """
        at = 0
        while at < len(data) and not (self._must_wait or self.transport.is_closing()):
            super().data_received(data[at : at + PIECE])
            at += PIECE
            if self.close_sent:
                break
        self._rest = data[at:]

    def _read_on(self) -> None:
        """Read more if everything that came is handled. Otherwise go on with that in the next turn of the loop."""
        if self.transport.is_closing():
            return
        if self._rest or self._must_wait:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        if self._rest and self._turn is None and not self._must_wait:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self._handle_pieces(self._rest)
        self._read_on()

    @property
    def _must_wait(self) -> bool:
        """Whether the app or the peer must read first."""
        return self.read_paused or not self.writable.is_set()

    def handle_ping(self, *event: Any) -> None:
        if self._takes_control_frame():
            cast(Any, super()).handle_ping(*event)

    def handle_pong(self, *event: Any) -> None:
        if self._takes_control_frame():
            cast(Any, super()).handle_pong(*event)

    def _takes_control_frame(self) -> bool:
        if self.close_sent:
            return False
        now = time.monotonic()
        if now - self._counted_since >= 1:
            self._counted_since, self._control_frames = now, 0
        self._control_frames += 1
        if self._control_frames > CONTROL_FRAMES:
            self._fail(POLICY, f"more than {CONTROL_FRAMES} pings and pongs in a second")
        return not self.close_sent

    def _fail(self, code: int, reason: str) -> None:
        held: Any = self
        held.conn.fail(code, reason)
        held.handle_parser_exception()

    def handle_cont(self, event: Any) -> None:
        """A message may come in many fragments, but not in many small ones."""
        held: Any = self
        if self.close_sent:
            return
        self._small_fragments += len(event.data) < SMALL_FRAGMENT_BYTES
        if self._small_fragments > MAX_SMALL_FRAGMENTS:
            self._fail(TOO_BIG, TOO_MANY_FRAGMENTS)
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
            self._fail(NOT_TEXT, "text must be UTF-8")
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
        if message["type"] == "websocket.close" and self.close_sent and not self.transport.is_closing():
            self.crowd.add(self._address, self)
        if message["type"] in _TO_READ_ON:
            self._read_on()
        elif message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # A refusal is an answer too. Without this line uvicorn logs an error for each refusal.
            self.handshake_complete = True

    def shutdown(self) -> None:
        if not self.handshake_complete or self.close_sent:
            cast(Any, super()).shutdown()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client is not None else ""
