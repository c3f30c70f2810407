"""Listening on sockets with the HTTP server of `http1`, from the first connection to the exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from defserve.base.redaction import get_logger
from defserve.errors import UsageError
from defserve.limits import Limits
from defserve.serve.address import TLS_SCHEMES, Address
from defserve.serve.connection import INTERRUPTED_EXIT_CODE
from defserve.serve.http1.connection import HttpConnection, HttpServerState, TlsHandshake
from defserve.serve.sockets import (
    LISTEN_BACKLOG,
    AddressNormalizer,
    ForwardedAddressMiddleware,
    bind_sockets,
    check_peer_user_support,
    get_max_connections,
)
from defserve.serve.threads import lower_switch_interval

if TYPE_CHECKING:
    from defserve.serve.session_opener import SessionOpener

log = get_logger()

FAILED: Final = 1

# asyncio's own loop takes the backlog for how many to accept in a row. Among them it closes none.
ACCEPTED_IN_A_ROW: Final = 20
POLL_SECONDS: Final = 0.02
CERTIFICATE_CHECK_SECONDS: Final = 5.0


def print_address(address: str) -> None:
    """Say where it is served, in the line that scripts wait for."""
    print(f"serving on {address}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How to listen.

    `forwarded` reads the addresses that a trusted proxy forwards; None if no proxy is trusted. With `peer_user`,
    requests on a unix socket say which user sent them. `started` is called with the listener, on its loop, when it
    listens. Without it, `show_address` is. Then `announce` is awaited: it says what else the operator should know.
    """

    certfile: str | None = None
    keyfile: str | None = None
    forwarded: AddressNormalizer | None = None
    peer_user: bool = False
    started: Callable[[Listener], None] | None = None
    show_address: Callable[[str], None] = print_address
    announce: Callable[[], Awaitable[None]] | None = None


def run_listener(
    app: Any,
    address: Address,
    options: NetworkOptions,
    limits: Limits,
    sessions: SessionOpener,
    inherited: list[socket.socket] | None = None,
) -> int:
    """Serve until a signal or a client ends it. Returns the exit code. `inherited` sockets are bound already."""
    listener = Listener(app, address, options, limits, sessions.request_stop)
    sessions.over = listener.leave
    with bind_sockets(address) if inherited is None else nullcontext(inherited) as sockets:
        with lower_switch_interval(limits.threads):
            return listener.run(sockets)


@asynccontextmanager
async def serve_sockets(app: Any, limits: Limits, sockets: list[socket.socket]) -> AsyncGenerator[None]:
    """Serve an app on the running loop, for as long as a block runs. Connections that are open at the end are cut."""
    state = make_server_state(app, limits)
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(lambda: HttpConnection(state), sock=each) for each in sockets]
    try:
        yield
    finally:
        for server in servers:
            server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await state.close()
        await asyncio.sleep(0)


def make_server_state(app: Any, limits: Limits, *, knows_peer_user: bool = False) -> HttpServerState:
    """What connections of one listener share, with WebSockets if they are installed."""
    limits = replace(limits, connections=min(limits.connections, get_max_connections()))
    state = HttpServerState(app, limits, knows_peer_user=knows_peer_user)
    try:
        from defserve.serve.http1.websocket import WebSocketConnection
    except ImportError:
        return state
    state.open_websocket = WebSocketConnection
    return state


class Listener:
    """Serves an app on sockets. Ends with an exit code, which is `code`.

    `end` is called on the loop at the first signal. It must call `leave(seconds)`: then the listener stops listening,
    and unfinished responses have so many seconds. Raises UsageError for what cannot be served here.
    """

    def __init__(
        self, app: Any, address: Address, options: NetworkOptions, limits: Limits, end: Callable[[], None]
    ) -> None:
        if options.forwarded is not None:
            app = ForwardedAddressMiddleware(app, options.forwarded)
        if options.peer_user:
            check_peer_user_support()
        self.code, self.signals = 0, 0
        self.state = make_server_state(app, limits, knows_peer_user=options.peer_user)
        if self.state.open_websocket is None and address.scheme in ("ws", "wss"):
            raise UsageError(
                f"serving on {address} needs websockets, which is not installed", fix='pip install "defserve[http]"'
            )
        self._address, self._options, self._end = address, options, end
        self._certificate = _read_certificate(address, options)
        self._grace = limits.drain
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_leaving, self._is_forced = asyncio.Event(), False
        self._servers: list[asyncio.Server] = []

    def run(self, sockets: list[socket.socket]) -> int:
        """Serve on a loop of its own."""
        with asyncio.Runner(loop_factory=_get_loop_factory()) as runner:
            return runner.run(self.serve(sockets))

    async def serve(self, sockets: list[socket.socket]) -> int:
        """Serve until `leave` is called or a signal came. Returns the exit code."""
        self._loop = asyncio.get_running_loop()
        with self._handle_signals():
            lifespan = AppLifespan(self.state.app, self.state.app_state)
            if not await lifespan.start():
                return FAILED
            try:
                await self._listen(sockets)
                if self._certificate is not None:
                    self._loop.call_later(CERTIFICATE_CHECK_SECONDS, self._certificate.renew_if_changed, self._loop)
                await self._is_leaving.wait()
                await self._shut_down()
            finally:
                try:
                    if not self._is_forced:
                        await lifespan.stop()
                finally:
                    await self.state.close()
        return self.code

    async def _listen(self, sockets: list[socket.socket]) -> None:
        assert self._loop is not None
        backlog = ACCEPTED_IN_A_ROW if type(self._loop).__module__.startswith("asyncio") else LISTEN_BACKLOG
        for each in sockets:
            self._servers.append(await self._loop.create_server(self._make_protocol, sock=each, backlog=backlog))
            each.listen(LISTEN_BACKLOG)
        if self._options.started is not None:
            self._options.started(self)
        else:
            self._options.show_address(str(resolve_bound_address(self._address, sockets[0])))
        if self._options.announce is not None:
            await self._options.announce()

    def _make_protocol(self) -> asyncio.Protocol:
        connection = HttpConnection(self.state)
        # Not `create_server(ssl=…)`: it shows a connection when its handshake is done, and so nobody could count it.
        return connection if self._certificate is None else TlsHandshake(connection, self._certificate.context)

    async def _shut_down(self) -> None:
        """Stop listening, let responses finish, and cut off what takes too long."""
        state = self.state
        for server in self._servers:
            server.close()
        for connection in list(state.connections):
            connection.shut_down()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._grace
        while (state.connections or state.tasks) and not self._is_forced and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        if left := list(state.tasks):
            if not self._is_forced:
                log.warning("%d requests did not end in time and are cancelled", len(left))
            for task in left:
                task.cancel()
            if not self._is_forced:
                await asyncio.wait(left, timeout=1.0)
        for connection in list(state.connections):
            connection.transport.abort()

    @contextmanager
    def _handle_signals(self) -> Generator[None]:
        if signal.getsignal(signal.SIGINT) is None or not _is_main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, action in previous.items():
                signal.signal(number, action)

    def _on_signal(self, number: int, frame: Any) -> None:
        self.code = INTERRUPTED_EXIT_CODE if number == signal.SIGINT else 0
        self.signals += 1
        assert self._loop is not None
        # Not called here: the signal may have interrupted code that changes the same data.
        self._loop.call_soon_threadsafe(self._end if self.signals == 1 else self._force)

    def _force(self) -> None:
        """A second signal of either kind ends at once."""
        self._is_forced = True
        self._is_leaving.set()
        for connection in list(self.state.connections):
            connection.transport.abort()

    def retire(self) -> None:
        """Accept no more; others listen on the same socket. The next response on a connection is its last."""
        for server in self._servers:
            server.close()
        self.state.is_retiring = True
        for connection in list(self.state.connections):
            connection.retire()

    def leave(self, seconds: float) -> None:
        """Stop: unfinished responses have so many seconds. From any thread."""
        self._grace = max(seconds, 1.0)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_leaving.set)


class AppLifespan:
    """The ASGI lifespan of an app: one task that is told when the server starts and stops."""

    def __init__(self, app: Any, state: dict[str, Any]) -> None:
        self._app, self._state = app, state
        self._to_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._from_app: asyncio.Queue[str] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> bool:
        """Whether the app has started. Raises what the app raised instead."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        self._task = asyncio.create_task(self._app(scope, self._to_app.get, self._send))
        return await self._tell("startup")

    async def stop(self) -> None:
        """Raises what the app raised, then or before."""
        await self._tell("shutdown")

    async def _tell(self, what: str) -> bool:
        assert self._task is not None
        self._to_app.put_nowait({"type": f"lifespan.{what}"})
        answer = asyncio.ensure_future(self._from_app.get())
        await asyncio.wait((answer, self._task), return_when=asyncio.FIRST_COMPLETED)
        if answer.done() and answer.result() == f"lifespan.{what}.complete":
            return True
        answer.cancel()
        # An app raises after its answer, or instead of one. Some only answer, and stay.
        ended, _ = await asyncio.wait((self._task,), timeout=1.0)
        if ended:
            self._task.result()
        return False

    async def _send(self, message: dict[str, Any]) -> None:
        self._from_app.put_nowait(message["type"])


class Certificate:
    """A certificate in files. When they change, new connections get the new one."""

    def __init__(self, certfile: str, keyfile: str | None) -> None:
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.set_alpn_protocols(["http/1.1"])
        self._files = certfile, keyfile
        self.context.load_cert_chain(certfile, keyfile)
        self._stamp = self._read_stamp()

    def renew_if_changed(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the files, now and again later."""
        try:
            if (stamp := self._read_stamp()) != self._stamp:
                # A new context first: half a file must not spoil the one that is in use.
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*self._files)
                self.context.load_cert_chain(*self._files)
                self._stamp = stamp
                log.info("the certificate %s was read again", self._files[0])
        except OSError as error:  # an SSLError too
            log.warning("the certificate %s has changed and cannot be used: %s", self._files[0], error)
        loop.call_later(CERTIFICATE_CHECK_SECONDS, self.renew_if_changed, loop)

    def _read_stamp(self) -> list[tuple[int, int]]:
        found = [os.stat(name) for name in self._files if name is not None]
        return [(each.st_mtime_ns, each.st_ino) for each in found]


def _read_certificate(address: Address, options: NetworkOptions) -> Certificate | None:
    if address.scheme not in TLS_SCHEMES:
        return None
    if options.certfile is None:
        fix = "give --certfile and --keyfile (in code: certfile=, keyfile=)"
        raise UsageError(f"{address.scheme}:// needs a certificate", fix=fix)
    try:
        return Certificate(options.certfile, options.keyfile)
    except OSError as error:
        text = f"cannot use the certificate {options.certfile}: {error.strerror or error}"
        raise UsageError(text, fix="give the PEM files of a certificate chain and its key") from None


def _get_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed; None: asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def resolve_bound_address(address: Address, bound_socket: socket.socket) -> Address:
    """The address, with the port that the system chose if none was given."""
    return address if address.port or address.scheme == "unix" else replace(address, port=bound_socket.getsockname()[1])
