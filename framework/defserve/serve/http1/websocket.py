"""One WebSocket, as ASGI: the library `websockets` reads and writes frames, this bounds what a peer sends.

How it works: reading pauses while a message waits for the app, and while the peer does not read: each ping would add a
pong to what waits. What one peer sends is handled in small pieces, in turns, because an empty frame costs as much as a
long one. When the server stops, the app closes the socket, as soon as its calls are answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any, Final

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from defserve.base.redaction import get_logger
from defserve.serve.http1.connection import MAX_DROPPED_BYTES, HttpConnection, StallGuard
from defserve.serve.http1.framing import RequestHead
from defserve.serve.sockets import MAX_SMALL_FRAGMENTS, SMALL_FRAGMENT_BYTES, TOO_MANY_FRAGMENTS, log_failed_request

log = get_logger()
_quiet = get_logger("websockets")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False

PING_SECONDS: Final = 20.0
CLOSE_SECONDS: Final = 2.0  # how long a client may take to answer a close; it keeps its place unless others need it
PIECE_BYTES: Final = 8 * 1024  # 1365 empty frames, which take about ten milliseconds
MAX_CONTROL_FRAMES: Final = 256  # pings and pongs in a second; a client needs one in many seconds

# Close codes (RFC 6455 §7.4).
NORMAL, NOT_TEXT, POLICY, TOO_BIG, INTERNAL, RESTART = 1000, 1007, 1008, 1009, 1011, 1012
ABNORMAL: Final = 1006

_BARE_HEAD: Final = b"GET / HTTP/1.1\r\n\r\n"


class WebSocketConnection(StallGuard):
    """The protocol of a connection that asked for a WebSocket. It may be refused by the app, with any HTTP response."""

    is_idle = True  # in the crowd there are only those that wait for the answer to a close

    def __init__(self, http: HttpConnection, head: RequestHead, rest: bytes) -> None:
        super().__init__()
        self.state, self.transport, self._address = http.state, http.transport, http.address
        self.state.connections.add(self)
        self._loop = asyncio.get_running_loop()
        self._conn = ServerProtocol(max_size=self.state.limits.message, logger=_quiet)
        # `framing` has read the head. The library, whose bounds are lower than ours, reads one that is always good.
        self._conn.receive_data(_BARE_HEAD)
        self._conn.events_received()
        self._request = _make_library_request(head)
        scope: dict[str, Any] = head.make_scope()
        scope |= {
            "type": "websocket",
            "client": http.client,
            "server": http.server,
            "scheme": "wss" if http.scheme == "https" else "ws",
            "subprotocols": _list_subprotocols(head),
            "state": self.state.app_state.copy(),
            "extensions": {"websocket.http.response": {}},
        }
        del scope["method"]
        self._scope = scope
        self._messages: list[dict[str, Any]] = [{"type": "websocket.connect"}]
        self._arrived = asyncio.Event()
        self._arrived.set()
        self._is_accepted = self._is_refused = self._is_lost = self._has_left = self._has_closed = False
        self._is_ending, self._dropped = False, 0
        self._fragments = list[bytes]()
        self._is_text = True
        self._small_fragments = self._control_frames = 0
        self._counted_since = 0.0
        self._rest, self._turn = rest, None
        self._refusal: tuple[int, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._awaits_pong = False
        # Frames that come before the answer to the opening wait for it.
        self.transport.pause_reading()
        # The transport must have this protocol before the app writes.
        self._loop.call_soon(self._start)

    def _start(self) -> None:
        self.state.start_task(self._run())

    async def _run(self) -> None:
        try:
            await self.state.app(self._scope, self.receive, self.send)
        except Exception as error:
            # A client that leaves while the app sends is no failure of the app.
            if not (isinstance(error, ConnectionAbortedError) and self._is_over):
                log_failed_request("a WebSocket failed", error, self._scope)
            self._end(INTERNAL)
        else:
            self._end(NORMAL)

    @property
    def _is_over(self) -> bool:
        return self._is_lost or (self._is_accepted and self._conn.state is not State.OPEN)

    def _end(self, code: int) -> None:
        """The app is over."""
        if self._is_lost or self._is_refused:
            return
        if not self._is_accepted:
            self._write_response(500, [], b"Internal Server Error")
        elif self._conn.state is State.OPEN:
            self._close(code, "")

    # -- from the transport ------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self.state.connections.discard(self)
        self.state.crowd.discard(self._address, self)
        self.resume_writing()
        self._rest = b""
        for timer in (self._timer, self._turn):
            if timer is not None:
                timer.cancel()
        self._tell_end()

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            self._dropped += len(data)
            if self._dropped > MAX_DROPPED_BYTES:
                self.transport.abort()
                return
            if not self._has_closed and _is_close_frame(data):
                # When we have failed the peer, the library reads nothing more, not even the answer to our close.
                self.transport.close()
                return
        self._rest += data
        self._handle_rest()

    def eof_received(self) -> None:
        self._conn.receive_eof()
        self._flush()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._is_lost:
            self._read_on()

    def shut_down(self) -> None:
        """The server stops. An open socket is closed by the app, when its calls are answered."""
        if not self._is_accepted and not self._is_refused:
            self._write_response(503, [], b"The server is shutting down")

    def retire(self) -> None:
        """Nothing to do: an open socket is closed by the app."""

    # -- frames ------------------------------------------------------------------------------------------

    def _handle_rest(self) -> None:
        """Handle what has come, until a message is there: the app must take it first.

        Frames that bring no message are bounded by number. After a close they are not, so then it is one piece a turn.
        """
        data, at = self._rest, 0
        while at < len(data) and not (self._must_wait or self.transport.is_closing()):
            self._conn.receive_data(data[at : at + PIECE_BYTES])
            at += PIECE_BYTES
            for event in self._conn.events_received():
                if isinstance(event, Frame):
                    self._handle_frame(event)
            self._flush()
            if self._conn.state is not State.OPEN:
                if not self._has_closed:
                    self._tell_end()  # the library has ended it: a frame was bad, or too long
                break
        self._rest = data[at:]
        self._read_on()

    def _handle_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.PING or frame.opcode is Opcode.PONG:
            self._awaits_pong = self._awaits_pong and frame.opcode is not Opcode.PONG
            self._count_control_frame()
        elif frame.opcode is Opcode.CLOSE:
            self._tell_end()
        elif self._conn.state is State.OPEN:
            self._add_fragment(frame)

    def _count_control_frame(self) -> None:
        now = time.monotonic()
        if now - self._counted_since >= 1:
            self._counted_since, self._control_frames = now, 0
        self._control_frames += 1
        if self._control_frames > MAX_CONTROL_FRAMES:
            self._fail(POLICY, f"more than {MAX_CONTROL_FRAMES} pings and pongs in a second")

    def _add_fragment(self, frame: Frame) -> None:
        """A message may come in many fragments, but not in many small ones."""
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._fragments.append(bytes(frame.data))
        if not frame.fin:
            self._small_fragments += len(frame.data) < SMALL_FRAGMENT_BYTES
            if self._small_fragments > MAX_SMALL_FRAGMENTS:
                self._fail(TOO_BIG, TOO_MANY_FRAGMENTS)
            return
        data, self._fragments, self._small_fragments = b"".join(self._fragments), [], 0
        try:
            content = {"text": data.decode()} if self._is_text else {"bytes": data}
        except UnicodeDecodeError:
            self._fail(NOT_TEXT, "text must be UTF-8")
            return
        self._add_message({"type": "websocket.receive", **content})

    def _fail(self, code: int, reason: str) -> None:
        if self._conn.state is State.OPEN:
            self._conn.fail(code, reason)
            self._flush()
            self._tell_end()

    def _add_message(self, message: dict[str, Any]) -> None:
        self._messages.append(message)
        self._arrived.set()

    def _tell_end(self) -> None:
        """Tell the app, once, that its peer has left."""
        if not self._has_left:
            self._has_left = True
            code = self._conn.close_code if self._is_accepted else None
            reason = self._conn.close_reason if self._is_accepted else None
            self._add_message({"type": "websocket.disconnect", "code": code or ABNORMAL, "reason": reason or ""})

    def _flush(self) -> None:
        """Write what the library has to say. It ends with an empty part, which is not sent on: some clients take a
        half-closed connection for a lost one, and never see the close that came before."""
        if self._is_lost:
            return
        if data := b"".join(self._conn.data_to_send()):
            self.transport.write(data)
        if self._conn.state is State.CLOSED or self._is_close_exchanged:
            self.transport.close()
        elif self._conn.close_expected() and not self._is_ending:
            self._await_close()

    @property
    def _is_close_exchanged(self) -> bool:
        """Whether both sides sent a close. Then the server ends the connection: clients wait for that (RFC 6455 §7)."""
        return self._conn.close_sent is not None and self._conn.close_rcvd is not None

    def _await_close(self) -> None:
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(CLOSE_SECONDS, self.transport.abort)
        self.state.crowd.add(self._address, self)

    @property
    def _must_wait(self) -> bool:
        """Whether the app or the peer must read first. What comes behind the end is read, and dropped."""
        return not self._has_left and (bool(self._messages) or self.is_write_paused or not self._is_accepted)

    def _read_on(self) -> None:
        """Read more if everything that came is handled. Otherwise go on with that in the next turn of the loop."""
        if self.transport.is_closing():
            return
        must_wait = self._must_wait
        if self._rest or must_wait:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        if self._rest and self._turn is None and not must_wait:
            self._turn = self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self._handle_rest()

    def _ping(self) -> None:
        if self._conn.state is not State.OPEN:
            return
        if self._awaits_pong:
            self._fail(INTERNAL, "no pong came in time")
            return
        self._awaits_pong = True
        self._conn.send_ping(b"")
        self._flush()
        self._timer = self._loop.call_later(PING_SECONDS, self._ping)

    # -- ASGI --------------------------------------------------------------------------------------------

    async def receive(self) -> MutableMapping[str, Any]:
        while not self._messages:
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.pop(0)
        if not self._is_lost and self._is_accepted and not self._messages:
            self._read_on()
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        kind = message["type"]
        await self.drain()
        if self._is_over:
            raise ConnectionAbortedError("the WebSocket is closed")
        if kind == "websocket.accept":
            self._accept(message)
        elif kind == "websocket.http.response.start":
            self._refusal = message["status"], message["headers"]
        elif kind == "websocket.http.response.body":
            status, headers = self._refusal or (403, [])
            self._write_response(status, headers, message.get("body", b""))
        elif kind == "websocket.close" and not self._is_accepted:
            self._write_response(403, [], b"")
        elif kind == "websocket.close":
            self._close(message.get("code", NORMAL), message.get("reason") or "")
        elif kind == "websocket.send":
            if (data := message.get("bytes")) is not None:
                self._conn.send_binary(data)
            else:
                self._conn.send_text(message["text"].encode())
            self._flush()
        else:
            raise RuntimeError(f"the app sent {kind} on a WebSocket")

    def _accept(self, message: MutableMapping[str, Any]) -> None:
        response = self._conn.accept(self._request)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self._is_accepted = True
            if (chosen := message.get("subprotocol")) is not None:
                response.headers["Sec-WebSocket-Protocol"] = chosen
            for name, value in message.get("headers", ()):
                response.headers[name.decode("latin-1")] = value.decode("latin-1")
            self._timer = self._loop.call_later(PING_SECONDS, self._ping)
            self._conn.send_response(response)
            self._flush()
            self._handle_rest()
            return
        self._write_rejection(response)

    def _write_rejection(self, response: Response) -> None:
        """The opening is not one (RFC 6455 §4.2): the library says why."""
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in response.headers.raw_items()
            if name.lower() not in ("connection", "content-length", "date")
        ]
        # A client of another version must be told which one is spoken here (§4.4).
        headers.append((b"Sec-WebSocket-Version", b"13"))
        self._write_response(response.status_code, headers, bytes(response.body))
        self._tell_end()

    def _write_response(self, status: int, headers: Any, body: bytes) -> None:
        """Refuse the socket with an HTTP response, and close the connection."""
        self._is_refused = True
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())]
        lines += [b"%b: %b\r\n" % (name, value) for name, value in headers if name.lower() != b"content-length"]
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self.transport.write(b"".join(lines) + body)
        self.transport.close()

    def _close(self, code: int, reason: str) -> None:
        self._has_closed = True
        self._conn.send_close(code, reason)
        self._flush()
        self._read_on()


def _is_close_frame(data: bytes) -> bool:
    """Whether this is one masked close, and nothing else (RFC 6455 §5.2)."""
    return len(data) > 1 and data[0] == 0x88 and data[1] & 0x80 != 0 and len(data) == 6 + (data[1] & 0x7F)


def _make_library_request(head: RequestHead) -> Request:
    """The head as the library judges it."""
    headers = Headers()
    for name, value in head.headers:
        headers[name.decode()] = value.decode("latin-1")
    return Request(head.target.decode(), headers)


def _list_subprotocols(head: RequestHead) -> list[str]:
    offered = b",".join(value for name, value in head.headers if name == b"sec-websocket-protocol")
    return [each.strip() for each in offered.decode("latin-1").split(",") if each.strip()]
