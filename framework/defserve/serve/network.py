"""Serving an ASGI app on sockets with uvicorn, from the first connection to the exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from defserve.errors import UsageError
from defserve.limits import Limits
from defserve.serve.address import TLS_SCHEMES, Address
from defserve.serve.connection import INTERRUPTED_EXIT_CODE
from defserve.serve.fastpath.deadlines import MAX_REQUEST_HEAD_BYTES
from defserve.serve.fastpath.install import UvicornCompatReport, install_fast_path
from defserve.serve.sockets import (
    LISTEN_BACKLOG,
    AddressNormalizer,
    ForwardedAddressMiddleware,
    PeerUserProtocol,
    bind_sockets,
    check_peer_user_support,
    get_max_connections,
)
from defserve.serve.threads import lower_switch_interval

if TYPE_CHECKING:
    import uvicorn

    from defserve.serve.asyncio_engine import EagerTaskStarter
    from defserve.serve.session_opener import SessionOpener

log = logging.getLogger("defserve")

FAILED = 1

KEEP_ALIVE = 75
PING = 20.0
IN_A_ROW = 20


def print_address(address: str) -> None:
    """Say where it is served, in the line that scripts wait for."""
    print(f"serving on {address}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How to listen. `parser` is `auto`, `httptools` or `h11`.

    `forwarded` reads the addresses that a trusted proxy forwards; None if no proxy is trusted. With `peer_user`,
    requests on a unix socket say which user sent them. `started` is called with the listener, on its loop, when it
    listens. Without it, `show_address` is; with it, messages of uvicorn are logged like those of others. Then
    `announce` is awaited: it says what else the operator should know.
    """

    parser: str = "auto"
    certfile: str | None = None
    keyfile: str | None = None
    forwarded: AddressNormalizer | None = None
    peer_user: bool = False
    started: Callable[[Any], None] | None = None
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
    listener = make_listener(app, address, options, limits, sessions.request_stop)
    sessions.over = listener.leave
    with bind_sockets(address) if inherited is None else nullcontext(inherited) as sockets:
        try:
            with lower_switch_interval(limits.threads):
                listener.run(sockets)
        except SystemExit:  # a lifespan failed; uvicorn has logged why
            return FAILED
    return listener.code


def make_listener(app: Any, address: Address, options: NetworkOptions, limits: Limits, end: Callable[[], None]) -> Any:
    """A `uvicorn.Server` with the fast path, deadlines and our exit codes. Raises UsageError without uvicorn.

    `end` is called on the loop at the first signal. It must call `leave(seconds)`: then the listener stops listening,
    and unfinished responses have so many seconds. After it has run, `code` is the exit code.
    """
    try:
        import uvicorn
    except ImportError:
        raise _missing(f"serving on {address} needs uvicorn, which is not installed") from None

    if options.forwarded is not None:
        app = ForwardedAddressMiddleware(app, options.forwarded)
    limits = replace(limits, connections=min(limits.connections, get_max_connections()))
    config = uvicorn.Config(app, **_settings(address, options, limits))
    _load(config, options)
    if config.ws_protocol_class is None and address.scheme in ("ws", "wss"):
        raise _missing(f"serving on {address} needs websockets, which is not installed")
    _log_incompatibilities(fit := install_fast_path(config, limits), options)
    if options.peer_user:
        check_peer_user_support()
        http: Any = config.http_protocol_class
        config.http_protocol_class = type(http.__name__, (PeerUserProtocol, http), {})
    listener = _listener_class(uvicorn.Server, address, options, end, can_retire=not fit.deadlines)
    return listener(config)


def _listener_class(
    server: type[uvicorn.Server],
    address: Address,
    options: NetworkOptions,
    end: Callable[[], None],
    *,
    can_retire: bool,
) -> type[uvicorn.Server]:
    """The class of listeners, made here because uvicorn is imported only to listen; see `make_listener`."""

    class Listener(server):
        """Ends with an exit code. uvicorn's own server raises the signal again."""

        code = 0
        signals = 0
        _loop: asyncio.AbstractEventLoop | None = None

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            self._loop = asyncio.get_running_loop()
            await super().startup(sockets)
            for one in sockets or ():
                one.listen(LISTEN_BACKLOG)
            if self.started and options.started is not None:
                options.started(self)
            elif self.started and sockets:
                options.show_address(str(resolve_bound_address(address, sockets[0])))
            if self.started and options.announce is not None:
                await options.announce()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets)
            steps: EagerTaskStarter | None = getattr(self.config.http_protocol_class, "first_steps", None)
            if steps is not None:
                await steps.close()

        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for number, action in previous.items():
                    signal.signal(number, action)

        def _on_signal(self, number: int, frame: Any) -> None:
            self.code = INTERRUPTED_EXIT_CODE if number == signal.SIGINT else 0
            self.signals += 1
            if self.signals == 1 and self._loop is not None:
                # Not called here: the signal may have interrupted code that changes the same data.
                self._loop.call_soon_threadsafe(end)
            else:
                # A second signal of either kind ends at once.
                self.force_exit, self.should_exit = self.signals > 1, True
                if self.force_exit and self._loop is not None:
                    self._loop.call_soon_threadsafe(self._cut)

        def _cut(self) -> None:
            """From Python 3.12 on, asyncio's own loop waits until every connection has ended."""
            for connection in [*self.server_state.connections]:
                connection.transport.abort()

        def retire(self) -> None:
            """Accept no more; others listen on the same socket. The next response on a connection is its last."""
            for server in self.servers:
                server.close()
            if can_retire:
                cast(Any, self.config.http_protocol_class).retire_connections()

        def leave(self, seconds: float) -> None:
            self.config.timeout_graceful_shutdown = max(int(seconds), 1)
            self.should_exit = True

    return Listener


def _log_incompatibilities(fit: UvicornCompatReport, options: NetworkOptions) -> None:
    """Log what does not fit this uvicorn. Someone who chose h11 knows that it has no fast path."""
    if fit.fast_path and options.parser != "h11":
        log.warning("serving without the fast path: %s", fit.fast_path)
    if fit.deadlines:
        log.warning("serving without deadlines for request heads and slow readers: %s", fit.deadlines)
    if fit.websockets:
        log.warning("serving WebSockets that end with the first signal: %s", fit.websockets)


def _missing(text: str) -> UsageError:
    return UsageError(text, fix='pip install "defserve[http]"')


def _load(config: uvicorn.Config, options: NetworkOptions) -> None:
    try:
        config.load()
    except ImportError:
        raise _missing(f"the HTTP parser {options.parser} is not installed") from None
    except OSError as error:
        # Only the certificate is read from a file.
        text = f"cannot use the certificate {options.certfile}: {error.strerror or error}"
        raise UsageError(text, fix="give the PEM files of a certificate chain and its key") from None


def _settings(address: Address, options: NetworkOptions, limits: Limits) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "http": options.parser,
        # Older versions of uvicorn choose a class that does not show the state of a socket.
        "ws": "websockets-sansio" if find_spec("websockets") else "auto",
        "lifespan": "on",
        "access_log": False,
        # Otherwise a request inherits the context variables of one that is answered when it comes.
        "reset_contextvars": True,
        "log_level": "warning",
        "server_header": False,
        "date_header": False,
        # `ForwardedAddressMiddleware` reads these headers. uvicorn takes any text for an address.
        "proxy_headers": False,
        # asyncio's own loop takes it for how many to accept in a row. Among them it closes none.
        "backlog": LISTEN_BACKLOG if find_spec("uvloop") else IN_A_ROW,
        "timeout_keep_alive": KEEP_ALIVE,
        "timeout_graceful_shutdown": int(limits.drain) or 1,
        # uvicorn also counts the new connection.
        "limit_concurrency": limits.connections + 1,
        # Larger than our own limit, which holds for both parsers and applies first.
        "h11_max_incomplete_event_size": 2 * MAX_REQUEST_HEAD_BYTES,
        "ws_max_size": limits.message,
        "ws_ping_interval": PING,
        "ws_ping_timeout": PING,
        "ws_per_message_deflate": False,
    }
    if options.started is not None:
        settings["log_config"] = None
    if address.scheme not in TLS_SCHEMES:
        return settings
    if options.certfile is None:
        fix = "give --certfile and --keyfile (in code: certfile=, keyfile=)"
        raise UsageError(f"{address.scheme}:// needs a certificate", fix=fix)
    return settings | {"ssl_certfile": options.certfile, "ssl_keyfile": options.keyfile}


def resolve_bound_address(address: Address, bound_socket: socket.socket) -> Address:
    """The address, with the port that the system chose if none was given."""
    return address if address.port or address.scheme == "unix" else replace(address, port=bound_socket.getsockname()[1])
