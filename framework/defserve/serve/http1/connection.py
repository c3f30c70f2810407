"""One HTTP/1.1 connection, and its requests one after another.

How it works: bytes go into the buffer until a head is complete (`framing`). Then the app runs, and the rest of the
buffer waits until it has answered, so responses are in the order of requests. A head that came before on this server
is recognised by its bytes (`known_heads`), and not read again. One timer per connection has the deadline of whatever it
waits for: a head, the next request, the rest of a body that nobody reads.

The app runs as a task that takes its first step here. An app that waits for nothing has answered when
`data_received` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from defserve.core.engine import await_started_coroutine
from defserve.core.messages import INVALID_REQUEST, encode
from defserve.limits import Limits
from defserve.serve.asyncio_engine import EagerTaskStarter
from defserve.serve.http1.framing import (
    MAX_HEAD_BYTES,
    BadRequest,
    ChunkedBody,
    LengthBody,
    RequestHead,
    find_head_end,
    read_head,
)
from defserve.serve.http1.request import (
    JSON_RESPONSE_HEADS,
    NO_KNOWN_HEAD,
    CachedRequestHead,
    HttpRequest,
    RequestHeadCache,
)
from defserve.serve.sockets import PEER_USER_KEY, KnownHeadApp, get_client_network, get_peer_user

if TYPE_CHECKING:
    from ssl import SSLContext

KEEP_ALIVE_SECONDS: Final = 75.0
MAX_STALL_SECONDS: Final = 30.0
# How long an idle connection stays when the server stops: a request may be on its way.
CLOSE_LINGER_SECONDS: Final = 0.25
CLOSE_STEP_SECONDS: Final = 0.01
# How long such a connection waits for the answer to the end of TLS.
TLS_CLOSE_SECONDS: Final = 0.5
# How long a refused connection is read, so that its client gets the refusal.
REFUSAL_LINGER_SECONDS: Final = 1.0
FIRST_PROBE_SECONDS: Final = 0.25
MAX_PROBE_SECONDS: Final = 15.0
# So much may wait behind the request that is being answered. Reading goes on up to here, because only a reader notices
# that its client has left.
MAX_READ_AHEAD_BYTES: Final = 64 * 1024
# So much is read, and dropped, behind the last response.
MAX_DROPPED_BYTES: Final = 1024 * 1024
# Of a body, so much waits for the app.
MAX_WAITING_BODY_BYTES: Final = 64 * 1024
# How many heads are learnt from one connection when they come first. If all its heads differ, learning costs more than
# it saves: then one is learnt that comes twice in a row.
MAX_LEARNED_HEADS: Final = 64

HEAD_TIMEOUT: Final = BadRequest("the head of the request did not arrive in time", 408)

# Deadlines of a connection.
_HEAD, _IDLE, _REST, _NOTHING = "head", "idle", "rest", "nothing"


class HttpServerState:
    """What the connections of one listener share."""

    def __init__(self, app: Any, limits: Limits, *, knows_peer_user: bool = False) -> None:
        self.app, self.limits, self.knows_peer_user = app, limits, knows_peer_user
        self.answer_known_head = app.answer_known_head if isinstance(app, KnownHeadApp) else None
        self.app_state: dict[str, Any] = {}
        self.heads = RequestHeadCache()
        self.crowd = ConnectionsByNetwork()
        self.connections: set[Any] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_retiring = False
        self.open_websocket: Callable[[HttpConnection, RequestHead, bytes], asyncio.Protocol] | None = None
        self._starter: EagerTaskStarter | None = None

    def add_connection(self, connection: Any) -> None:
        """Count a connection. If there are too many then, the oldest idle one gives way."""
        self.connections.add(connection)
        if len(self.connections) > self.limits.connections:
            self.connections.discard(self.crowd.close_oldest_idle())  # now: it may end after the next request comes
        self.crowd.add(connection.address, connection)

    def remove_connection(self, connection: Any) -> None:
        self.connections.discard(connection)
        self.crowd.discard(connection.address, connection)

    def start_task(self, work: Any) -> None:
        """Run a coroutine in an empty context: a request sees no context variables of another. Its first step is taken
        at once."""
        starter = self._starter
        if starter is None:
            starter = self._starter = EagerTaskStarter(asyncio.get_running_loop())
        task = starter.start(work, None)
        if task is not None:
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        starter, self._starter = self._starter, None
        if starter is not None:
            await starter.close()


class ConnectionsByNetwork:
    """The connections of a listener by the network of their client, each network's oldest first."""

    def __init__(self) -> None:
        self._by_network: dict[str, dict[Any, None]] = {}

    def add(self, address: str, connection: Any) -> None:
        self._by_network.setdefault(get_client_network(address), {})[connection] = None

    def discard(self, address: str, connection: Any) -> None:
        network = get_client_network(address)
        same = self._by_network.get(network, {})
        same.pop(connection, None)
        if not same:
            self._by_network.pop(network, None)

    def close_oldest_idle(self) -> Any | None:
        """Cut off the oldest idle connection of the network that has the most. None if there is no idle one."""
        for same in sorted(self._by_network.values(), key=len, reverse=True):
            for connection in same:
                if connection.is_idle:
                    del same[connection]
                    connection.transport.abort()
                    return connection
        return None


class StallGuard(asyncio.Protocol):
    """Cuts off a peer that stops reading."""

    __slots__ = ("transport", "is_write_paused", "_stall", "_drained")

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.is_write_paused = False
        self._stall: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None

    async def drain(self) -> None:
        """Wait until the peer has read enough. Returns too when it is gone."""
        while self.is_write_paused:
            if self._drained is None:
                self._drained = asyncio.Event()
            await self._drained.wait()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set()

    def _watch_reader(self, waiting: int) -> None:
        self._stall = asyncio.get_running_loop().call_later(MAX_STALL_SECONDS, self._check_reader, waiting)

    def _check_reader(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting >= before:
            self.transport.abort()  # closing would wait for the reader
        else:
            self._watch_reader(waiting)


class HttpConnection(StallGuard):
    """The protocol of one connection."""

    __slots__ = (
        *("state", "client", "server", "scheme", "request"),
        *("_loop", "_buffer", "_scanned", "_body", "_is_read_paused", "_is_over", "_is_closing", "_closes_idle"),
        *("_dropped", "_timer", "_due", "_awaits", "_last_head", "_lessons"),
        *("_unknown", "_half_closed", "_user", "note"),
    )

    def __init__(self, state: HttpServerState) -> None:
        StallGuard.__init__(self)
        self.state = state
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int | None] | None = None
        self.scheme = "http"
        self.request: HttpRequest | None = None
        """The request that is being answered."""
        self._buffer, self._scanned = b"", 0
        self._body: LengthBody | ChunkedBody | None = None
        """What of the last request is still to come."""
        self._is_read_paused = self._is_over = self._is_closing = self._closes_idle = False
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due, self._awaits = 0.0, _NOTHING
        self._last_head: CachedRequestHead | None = None
        self._lessons, self._unknown = MAX_LEARNED_HEADS, b""
        self._half_closed: asyncio.TimerHandle | None = None
        self._user: int | None = None
        self.note: Any = None
        """What the app found out about the client."""

    # -- from the transport ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport: Any = transport
        self._loop = asyncio.get_running_loop()
        state, get = self.state, transport.get_extra_info
        self.client, self.server = get_address(get("peername")), get_address(get("sockname"))
        if get("sslcontext") is not None:
            self.scheme = "https"
        if state.knows_peer_user:
            self._user = get_peer_user(get("socket"))
        state.add_connection(self)
        self._is_closing = state.is_retiring
        self._await(_HEAD, state.limits.header)

    def data_received(self, data: bytes) -> None:
        if self.request is None and self._body is None and not self._buffer:
            head, length, body = NO_KNOWN_HEAD
            if (last := self._last_head) is not None:
                head, length, body = last.match(data)
            if head is None:
                head, length, body = self.state.heads.find(data)
            if head is not None and not (self._is_closing or self.is_write_paused or self._has_no_room()):
                self._start_known(head, length, body)
                return
            if head is None:
                self._buffer = data
                self._read_buffer(data)
                return
        self._buffer += data
        self._read_buffer(None)

    def eof_received(self) -> bool:
        """The client sends no more, but it may still read: it gets the answer to what it has asked."""
        request = self.request
        # Behind the request that was just answered another may wait for its turn. What was all scanned is half a head.
        is_idle = request is None and self._scanned == len(self._buffer)
        if is_idle or self._body is not None or self.scheme == "https":
            return False
        if request is not None:
            request.keeps_alive = request.keeps_alive and bool(self._buffer)
        if self._half_closed is None:
            self._half_closed = self._loop.call_later(self.state.limits.idle, self.transport.abort)
            self._loop.call_later(FIRST_PROBE_SECONDS, self._probe_half_closed, FIRST_PROBE_SECONDS)
        return True

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.request is not None and self.request.watcher is not None and not self._is_over:
            self.request.watcher.on_client_drained()
        if self._buffer and not self._is_over:
            self._loop.call_soon(self._read_buffer, None, context=Context())

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self.resume_writing()
        if self._half_closed is not None:
            self._half_closed.cancel()
        request, self.request = self.request, None
        self._buffer, self._body, self._last_head, self.note = b"", None, None, None
        if request is not None:
            request.on_client_left()

    def _leave(self) -> None:
        """This connection is no longer one of HTTP: it has ended, or another protocol has it."""
        self._is_over = True
        self.state.remove_connection(self)
        self.cancel_timer()

    # -- reading -----------------------------------------------------------------------------------------

    def _read_buffer(self, lesson: bytes | None) -> None:
        """Read what the buffer holds, as far as the app takes it. `lesson`: it may be one whole request to learn."""
        try:
            while self._buffer and not self._is_over:
                if self._body is not None:
                    self._read_body()
                elif self.request is not None or self.is_write_paused:
                    if len(self._buffer) > MAX_READ_AHEAD_BYTES:
                        self._pause_reading()
                    return
                else:
                    # One request in a turn: a client that sends many at once must not keep others from being served.
                    self._read_head(lesson)
                    return
                lesson = None
        except BadRequest as problem:
            self._refuse(problem)

    def _read_head(self, lesson: bytes | None) -> None:
        """Read a head and start its request, if the head is complete."""
        if not self._scanned and self._buffer.startswith(b"\r\n"):
            self._buffer = self._buffer[2:]  # some clients end a body with a line too many (RFC 9112 §2.2)
        end = find_head_end(self._buffer, self._scanned)
        if not end and self._half_closed is not None:
            self.transport.close()  # the rest never comes
            return
        if not end:
            if not self._scanned and self._awaits is not _HEAD:
                self._await(_HEAD, self.state.limits.header)
            self._scanned = len(self._buffer)
            return
        head = read_head(self._buffer[:end])
        if self._has_no_room():
            raise BadRequest("too many connections are open; try again later", 503)
        if head.upgrade == b"websocket" and self.state.open_websocket is not None:
            self._upgrade(head, end)
            return
        self._buffer, self._scanned = self._buffer[end:], 0
        self._stop_waiting()
        body = ChunkedBody() if head.length is None else LengthBody(head.length)
        scope: dict[str, Any] = head.make_scope()
        request = HttpRequest(self, self.complete_scope(scope))
        request.keeps_alive = head.keeps_alive and not self._is_closing
        request.is_head, request.is_old = head.method == "HEAD", head.version == "1.0"
        request.ignores_upgrade = bool(head.upgrade)
        self.request = request
        if not body.is_complete:
            self._body, request.has_more = body, True
            request.expects_continue = head.expects_continue and not self._buffer
            if self._buffer:
                self._read_body()
            if self._half_closed is not None and not body.is_complete:
                self.transport.close()  # the rest never comes
                return
        if lesson is not None and self._body is None and not self._buffer and request.keeps_alive:
            self._learn(lesson, request)
        if self.request is request:
            self.state.start_task(request.run())

    def _learn(self, data: bytes, request: HttpRequest) -> None:
        heads = self.state.heads
        if self._lessons or self._unknown == heads.looked_for != b"":
            self._lessons = max(self._lessons - 1, 0)
            request.head = heads.add_head(data, request.scope)
        self._unknown = heads.looked_for

    def _read_body(self) -> None:
        body, request = self._body, self.request
        assert body is not None
        part, self._buffer = body.feed(self._buffer)
        if request is None:  # it was answered already: the rest is thrown away
            self._dropped += len(part)
        if body.overhead > MAX_HEAD_BYTES or self._dropped > MAX_HEAD_BYTES + self.state.limits.message:
            raise BadRequest(f"more than {MAX_HEAD_BYTES} bytes came that are no part of the body", 431)
        if body.is_complete:
            self._body = None
        if request is not None:
            request.add_body_part(part, has_more=not body.is_complete)
            if len(request.body) > MAX_WAITING_BODY_BYTES and not body.is_complete:
                self._pause_reading()
        elif body.is_complete:
            self._await_next()

    def _start_known(self, head: CachedRequestHead, length: bytes, body: bytes) -> None:
        """Start a request with a known head, whose body is there."""
        self._awaits, self._last_head = _NOTHING, head
        self.request = request = HttpRequest(self, None, head, length, body)
        self.state.start_task(request.run())

    def complete_scope(self, scope: dict[str, Any]) -> dict[str, Any]:
        """Add the members that are those of this connection."""
        scope["client"], scope["server"], scope["scheme"] = self.client, self.server, self.scheme
        scope["state"] = state = self.state.app_state.copy()
        if self._user is not None:
            state[PEER_USER_KEY] = self._user
        return scope

    def _has_no_room(self) -> bool:
        return len(self.state.connections) > self.state.limits.connections

    def _upgrade(self, head: RequestHead, end: int) -> None:
        """Hand the connection over to the protocol of WebSockets, which begins behind the head."""
        if head.method != "GET" or head.version != "1.1" or head.length != 0:
            raise BadRequest("a connection is upgraded with GET, in HTTP/1.1")
        rest, self._buffer = self._buffer[end:], b""
        make = self.state.open_websocket
        assert make is not None
        self._leave()
        protocol = make(self, head, rest)
        self.transport.set_protocol(protocol)

    def _pause_reading(self) -> None:
        if not self._is_read_paused:
            self._is_read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, after the app has taken what waited."""
        if self._is_read_paused and (self._body is not None or len(self._buffer) <= MAX_READ_AHEAD_BYTES):
            self._is_read_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    # -- from requests -----------------------------------------------------------------------------------

    def on_response_complete(self, request: HttpRequest) -> None:
        """The response is written. What waits in the buffer is next."""
        self.request = None
        if self._is_over:
            return
        # Behind a request to upgrade, others may have read the bytes of another protocol: they are no request here.
        is_last = not request.keeps_alive or (self._half_closed is not None and not self._buffer)
        if is_last or (request.ignores_upgrade and self._buffer):
            self.close_after_response()
            return
        if self._closes_idle:
            self._close_idle_later()
        if self._body is not None:
            self._dropped = 0
            self._await(_REST, self.state.limits.body)
        else:
            # Not `_await_next`: this is every request.
            self._awaits, self._due = _IDLE, self._loop.time() + KEEP_ALIVE_SECONDS
            if self._timer is None:
                self._timer = self._loop.call_at(self._due, self._on_timer)
        if self._is_read_paused:
            self.resume_reading()
        if self._buffer:
            self._loop.call_soon(self._read_buffer, None, context=Context())

    def close_after_response(self) -> None:
        """The last response is written. The client may still send; it should get the response all the same."""
        if self._body is not None or self._buffer:
            self._linger()
        else:
            self.transport.close()

    def _refuse(self, problem: BadRequest) -> None:
        """End the connection: with a refusal, unless its client waits for another response."""
        request, is_head = self.request, self._buffer.startswith(b"HEAD ")
        if request is not None:
            if request.has_started:
                self.transport.abort()  # in the middle of a response no refusal can be sent
                return
            self.request, is_head = None, request.is_head
            request.on_client_left()
        elif self._body is not None:
            self._linger()  # the request has its response
            return
        if self.transport.is_closing():
            return
        body = encode({"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": problem.text}})
        self.transport.write(
            b"%b%d\r\nconnection: close\r\n\r\n%b"
            % (JSON_RESPONSE_HEADS[problem.status], len(body), b"" if is_head else body)
        )
        self._linger()

    def _linger(self) -> None:
        """Read for a moment, and drop what comes. If a connection is closed while its client sends, the system tells
        the client so, and drops the response."""
        self._leave()
        self._buffer = b""
        self.transport.set_protocol(FinalReader(self))

    # -- deadlines ---------------------------------------------------------------------------------------

    def _await_next(self) -> None:
        self._await(_IDLE, KEEP_ALIVE_SECONDS)

    def _await(self, what: str, seconds: float) -> None:
        self._awaits, self._due = what, self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._due, self._on_timer)

    def _stop_waiting(self) -> None:
        self._awaits = _NOTHING

    def cancel_timer(self) -> None:
        """The response is open for long. The timer is not needed before its end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._is_over or self.transport.is_closing() or self._awaits is _NOTHING:
            return
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._on_timer)
        elif self._awaits is _HEAD:
            self._refuse(HEAD_TIMEOUT)
        else:
            self.transport.close()

    def _probe_half_closed(self, seconds: float) -> None:
        """A client that has left looks the same. Only writing to it shows the difference, so the app is woken up."""
        if self._is_over or self.transport.is_closing():
            return
        if self.request is not None:
            self.request.probe_half_closed_client()
        elif not self._buffer:  # else the next request waits until the answer before it is read
            self.transport.close()
            return
        self._loop.call_later(min(2 * seconds, MAX_PROBE_SECONDS), self._probe_half_closed, 2 * seconds)

    # -- the end -----------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """The next response is the last. An idle connection is closed after a moment: a request may be on its way, and
        would be lost if the connection were closed at once."""
        self.retire()
        self._closes_idle = True
        if self.request is None:
            self._close_idle_later()

    def _close_idle_later(self) -> None:
        # In two steps: a busy loop runs a timer that is due before it reads what has come meanwhile.
        self._loop.call_later(CLOSE_LINGER_SECONDS, self._loop.call_later, CLOSE_STEP_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        if self.request is None and not self._is_over:
            self.transport.close()
            if self.scheme == "https" and not self.is_write_paused:
                # A client that keeps it for later does not read, so it does not answer the end of TLS.
                self._loop.call_later(TLS_CLOSE_SECONDS, self.transport.abort)

    def retire(self) -> None:
        """The next head is the last, and says so. The connection isn't closed before: its client must be told first."""
        self._is_closing = True
        if self.request is not None and not self.request.has_head:
            self.request.keeps_alive = False

    @property
    def is_idle(self) -> bool:
        """Whether it may give way to a new connection: no request has come that must be answered."""
        return self.request is None

    @property
    def address(self) -> str:
        return self.client[0] if self.client is not None else ""


class TlsHandshake(asyncio.Protocol):
    """A connection until its TLS handshake is done. It counts as any other, and gives way as an idle one."""

    is_idle = True

    def __init__(self, connection: HttpConnection, context: SSLContext) -> None:
        self.state, self.address = connection.state, ""
        self._connection, self._context = connection, context
        self._is_over = self._is_ending = False
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        client = get_address(transport.get_extra_info("peername"))
        self.address = client[0] if client is not None else ""
        self.state.add_connection(self)
        work = self._run()
        with suppress(StopIteration):  # it has ended
            # The first step is taken here, so that no byte is read before it.
            self.state.start_task(await_started_coroutine(work, work.send(None)))

    def data_received(self, data: bytes) -> None:
        """The first part of a request, with the end of the handshake."""
        self._early += data

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        tls: Any = None
        try:
            seconds = self.state.limits.header
            tls = await loop.start_tls(
                self.transport, self, self._context, server_side=True, ssl_handshake_timeout=seconds
            )
        except OSError:
            pass  # it is closed
        finally:
            self._is_over = True
            self.state.remove_connection(self)
        if tls is None or tls.is_closing():
            return
        connection = self._connection
        tls.set_protocol(connection)
        connection.connection_made(tls)
        if self._early:
            connection.data_received(self._early)
        if self._is_ending:
            connection.shut_down()

    def shut_down(self) -> None:
        """The server stops. A handshake has a moment, as an idle connection has."""
        self._is_ending = True
        asyncio.get_running_loop().call_later(CLOSE_LINGER_SECONDS, self._abort)

    def _abort(self) -> None:
        if not self._is_over:
            self.transport.abort()

    def retire(self) -> None:
        """Nothing to do: after the handshake, the connection knows it."""


class FinalReader(asyncio.Protocol):
    """Reads a connection whose last response is written, and drops what comes: for a moment, and not very much."""

    def __init__(self, served: HttpConnection) -> None:
        transport, self._left = served.transport, MAX_DROPPED_BYTES
        self._timer = asyncio.get_running_loop().call_later(REFUSAL_LINGER_SECONDS, transport.abort)
        self._served = served
        served.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._served.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._served.connection_lost(exc)


def get_address(found: Any) -> tuple[str, int] | None:
    """The host and the port; None for a unix socket."""
    return None if found is None or isinstance(found, (str, bytes)) else (str(found[0]), int(found[1]))
