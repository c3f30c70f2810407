"""Serving through a WebSocket that the server opens itself. It serves every peer there, and reconnects.

The socket alone (`dial`, `WebSocketClient`) is what clients use too. It is no part of the way of an HTTP server: its
imports (urllib.request) would cost one 20 ms.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

from defserve.auth.oauth import is_loopback
from defserve.base.backoff import Backoff
from defserve.base.redaction import get_logger
from defserve.base.version import VERSION
from defserve.core.composition import Composition
from defserve.core.engine import Engine
from defserve.core.extension import Carrier
from defserve.core.peer import PeerIdentity
from defserve.errors import PeerError, PeerGone, PeerTimeout, UsageError
from defserve.serve.address import AddressUnreachable, CredentialsRequired, HttpRefusal
from defserve.serve.connection import Connection, ShutdownHandler
from defserve.serve.lifespans import close_connection, drain_connection, enter_lifespans
from defserve.serve.sockets import drain_unless_stalled
from defserve.serve.threads import lower_switch_interval

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection


FAILED = 1
ADMISSION_SECONDS = 10.0
MAX_BACKOFF_SECONDS = 3600.0

# Two that fight for a place stay out for so long at most, one after the other.
FIGHT_SECONDS = 2 * MAX_BACKOFF_SECONDS

log = get_logger()
# For the library: at the level `debug` it logs the headers of a handshake, the token too.
_quiet = get_logger("websockets.client")
_quiet.setLevel(logging.WARNING)


class OutboundCarrier(Carrier, Protocol):
    """A carrier that is told when it is connected, and knows whether the place has let us in."""

    def on_connected(self, engine: Engine, send: Callable[[bytes], None]) -> None: ...
    def on_disconnected(self) -> None: ...
    def caller(self, peer: str) -> PeerIdentity: ...

    @property
    def admitted(self) -> asyncio.Event:
        """Set while the place has let us in."""
        ...


class ReplacedBackoff(Backoff):
    """Who loses its place to another waits longer than `longest`: twice as long every time, up to an hour.

    If the last time was more than `FIGHT_SECONDS` ago, that begins anew.
    """

    def __init__(
        self, first: float = 0.5, longest: float = 30.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(first, longest, jitter=(0.5, 1.0))
        self._stay_out, self._clock = Backoff(longest, MAX_BACKOFF_SECONDS), clock
        self._replaced: float | None = None

    def on_replaced(self) -> None:
        """Another has taken the place: the next wait is a long one."""
        last, self._replaced = self._replaced, self._clock()
        if last is not None and self._replaced - last > FIGHT_SECONDS:
            self._stay_out.reset()
        self._next = self._stay_out.next_wait()


class OutboundRunner:
    """One composition at one place. `stay` ends when `over` is set, or raises PeerError if it is never let in.

    `return_url` is for coming back after another connection took our place: there it must not take the place back.
    `on_admitted` is called each time that the place has let us in.
    """

    def __init__(
        self,
        composition: Composition,
        guest: OutboundCarrier,
        url: str,
        *,
        token: str | None = None,
        return_url: str | None = None,
        backoff: ReplacedBackoff | None = None,
        on_admitted: Callable[[], None] | None = None,
    ) -> None:
        self.composition, self.guest, self.url, self._token = composition, guest, url, token
        self.return_url, self._was_replaced = return_url or url, False
        self._on_admitted = on_admitted
        self.backoff = backoff or ReplacedBackoff()
        self.over = asyncio.Event()
        self.seconds: float | None = None
        self._was_admitted = False

    def stop(self, seconds: float | None) -> None:
        """Finish the running calls, for at most so many seconds, and leave. Call it on the loop."""
        self.seconds = seconds
        self.over.set()

    async def stay_connected(self, engine: Engine) -> None:
        while not self.over.is_set():
            try:
                await self._visit(engine)
            except PeerError as error:
                if not (isinstance(error, PeerGone) or self._was_admitted):
                    raise
                log.warning("%s", error.message)
            if not self.over.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.backoff.next_wait()):
                        await self.over.wait()

    async def _visit(self, engine: Engine) -> None:
        limits = self.composition.limits
        transport = await self._open(limits.message)
        if transport is None:
            return
        ended = asyncio.Event()
        connection = Connection(self.composition, transport, carrier=self.guest, caller=self.guest.caller)
        connection.attach(engine)
        self.guest.on_connected(engine, transport.send)
        try:
            transport.start(asyncio.get_running_loop(), connection.feed_frames, ended.set)
            if await self._wait_for_admission(ended):
                await _first(ended, self.over)
            if self.over.is_set():
                await drain_connection(connection, limits.farewell if self.seconds is None else self.seconds)
                await transport.wait_until_written(limits.farewell)
        finally:
            try:
                await close_connection(connection, limits.farewell)
            finally:  # also if it is cancelled once more
                self.guest.on_disconnected()
                await transport.aclose()
        self._judge(*transport.end)

    async def _open(self, longest: int) -> WebSocketClient | None:
        """The connection. None if `over` was set first."""
        url = self.return_url if self._was_replaced else self.url
        opening = asyncio.create_task(WebSocketClient.open(url, token=self._token, longest=longest))
        over = asyncio.create_task(self.over.wait())
        try:
            await asyncio.wait((opening, over), return_when=asyncio.FIRST_COMPLETED)
            return opening.result() if opening.done() else None
        finally:
            over.cancel()
            opening.cancel()

    async def _wait_for_admission(self, ended: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(ADMISSION_SECONDS):
                await _first(self.guest.admitted, ended, self.over)
        except TimeoutError:
            raise PeerGone(f"not let in within {ADMISSION_SECONDS:g} s") from None
        if not self.guest.admitted.is_set():
            return False
        self._was_admitted = True
        self._was_replaced = False
        self.backoff.reset()
        log.info("connected to %s", format_address_for_log(self.url))
        if self._on_admitted is not None:
            self._on_admitted()
        return True

    def _judge(self, code: int, reason: str) -> None:
        if self.over.is_set():
            return
        if code == POLICY_VIOLATION_CODE:
            raise PeerError(f"refused: {reason or 'policy'}", data={"code": code})
        if code == NORMAL:
            # Sent away on purpose, most likely for another process with the same name and token. If both came back at
            # once, they would replace each other for ever. So this one stays out, and each time for longer.
            self.backoff.on_replaced()
            self._was_replaced = True
            raise PeerGone(f"sent away: {reason or 'no reason given'}. This process stays out until the name is free")
        raise PeerGone(f"the connection ended: {code} {reason}".rstrip())


@asynccontextmanager
async def run_outbound(outbound: OutboundRunner) -> AsyncGenerator[OutboundRunner]:
    """Serve on this loop, once the place has let us in. Raises PeerError if it does not."""
    composition, loop = outbound.composition, asyncio.get_running_loop()

    def stop(seconds: float) -> None:
        loop.call_soon_threadsafe(outbound.stop, seconds)

    async with enter_lifespans(composition) as engine:
        composition.service.add_runner(stop)
        staying = loop.create_task(outbound.stay_connected(engine))
        try:
            admission = loop.create_task(outbound.guest.admitted.wait())
            await asyncio.wait((staying, admission), timeout=ADMISSION_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            admission.cancel()
            if staying.done():
                await staying
            if not outbound.guest.admitted.is_set():
                raise PeerTimeout(f"not let in within {ADMISSION_SECONDS:g} s")
            composition.service.mark_ready()
            yield outbound
        finally:
            outbound.over.set()
            composition.service.remove_runner(stop)
            await asyncio.wait((staying,))
            if not staying.cancelled():
                staying.exception()


def serve_outbound(place: OutboundRunner) -> int:
    """Serve until a signal ends it. Returns the exit code."""
    composition, loop = place.composition, asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        stop = ShutdownHandler(loop, composition)
        stop.install_signal_handlers()
        try:
            with lower_switch_interval(composition.limits.threads):
                return loop.run_until_complete(_main(place, stop))
        except asyncio.CancelledError:
            return stop.exit_code  # a signal cut the lifespan short
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _main(place: OutboundRunner, stop: ShutdownHandler) -> int:
    stop.main = asyncio.current_task()
    composition, service = place.composition, place.composition.service
    service.add_runner(stop.drain)
    try:
        async with enter_lifespans(composition) as engine:
            stop.serving = True
            service.mark_ready()
            staying = asyncio.create_task(place.stay_connected(engine))
            over = asyncio.create_task(stop.over.wait())
            await asyncio.wait((staying, over), return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            if not staying.done():
                place.stop(0 if stop.interrupted else stop.seconds)
                await stop.run_until_second_signal(asyncio.wait((staying,)))
                staying.cancel()
                await asyncio.wait((staying,), timeout=composition.limits.farewell)
            service.remove_runner(stop.drain)
            stop.serving = False
            stop.set_deadline(composition.limits.drain)
    finally:
        service.remove_runner(stop.drain)
        stop.finish()
    error = staying.exception() if staying.done() and not staying.cancelled() else None
    if isinstance(error, PeerError):
        print(f"defserve: {error.message}", file=sys.stderr)
        return FAILED
    if error is not None:
        raise error
    return stop.exit_code


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


# -- A WebSocket that we open ourselves, as a transport: text frames both ways.


CONNECT_SECONDS = 10.0
PING_SECONDS = 20.0
DIAL_CLOSE_SECONDS = 2.0
BACKLOG_BYTES = 16 * 1024 * 1024

POLICY_VIOLATION_CODE: Final = 1008
NORMAL: Final = 1000


class WebSocketClient:
    """One open connection. `end` says how it ended: the closing code, and the reason in words.

    While more than `BACKLOG_BYTES` are `queued` to be sent, nothing is read: a peer that does not read cannot ask more.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.closed = False
        self.end: tuple[int, str] = (0, "")
        self._waiting: deque[tuple[bytes, Callable[[], None] | None]] = deque()
        self.queued = 0
        self._more, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._reading = asyncio.Event()
        self._reading.set()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, url: str, *, token: str | None = None, headers: Mapping[str, str] | None = None, longest: int
    ) -> WebSocketClient:
        """Raises what `dial` raises."""
        return cls((await dial_websocket(url, token=token, headers=headers, longest=longest, compression=None))[0])

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        received: Callable[[list[bytes | None]], None],
        ended: Callable[[], None],
    ) -> None:
        self._tasks = [loop.create_task(self._read_frames(received, ended)), loop.create_task(self._write())]

    def send(self, message: bytes, taken: Callable[[], None] | None = None) -> None:
        """Queue a message. An empty one is not sent."""
        if message and not self.closed:
            self._waiting.append((message, taken))
            self.queued += len(message)
            self._idle.clear()
            self._more.set()
        elif taken is not None:
            taken()

    def flush(self) -> None:
        """Nothing is held back."""

    def pause(self) -> None:
        """Read nothing more: what the peer sends waits in the connection."""
        self._reading.clear()

    def resume(self) -> None:
        self._reading.set()

    async def wait_until_written(self, seconds: float) -> None:
        """Wait until everything has been sent, for at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    def close(self) -> None:
        """Close the connection. Waiting messages are not sent."""
        if not self.closed:
            self.closed = True
            self._more.set()

    async def aclose(self) -> None:
        """Close the connection, and wait until both sides know."""
        self.close()
        try:
            await self._socket.close()
        except BaseException:
            self._socket.transport.abort()
            raise
        finally:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read_frames(self, received: Callable[[list[bytes | None]], None], ended: Callable[[], None]) -> None:
        closed = import_websockets().ConnectionClosed
        try:
            while True:
                received([await self._socket.recv(decode=False)])
                if self.queued > BACKLOG_BYTES:
                    await self._idle.wait()
                await self._reading.wait()
        except closed as error:
            frame = error.rcvd or error.sent
            self.end = (frame.code, frame.reason) if frame is not None else (1006, "without a reason")
        finally:
            self.close()
            ended()

    async def _write(self) -> None:
        closed = import_websockets().ConnectionClosed
        try:
            while not self.closed:
                await self._more.wait()
                self._more.clear()
                while self._waiting and not self.closed:
                    message, _ = self._waiting[0]
                    try:
                        await self._socket.send(message, text=True)
                    except closed:
                        self.closed = True
                    self._take_first()
                self._idle.set()
        finally:
            self.closed = True
            while self._waiting:
                self._take_first()

    def _take_first(self) -> None:
        """The first message was sent, or never will be."""
        message, taken = self._waiting.popleft()
        self.queued -= len(message)
        if taken is not None:
            taken()


def format_address_for_log(url: str) -> str:
    """A URL without user, password and query, which may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


async def dial_websocket(
    url: str,
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    longest: int,
    **options: Any,
) -> tuple[ClientConnection, str]:
    """An open connection, and its address as it may be shown.

    `options` are those of `websockets.connect`. Raises PeerError if it is refused, PeerGone if nobody is there,
    UsageError without `websockets`.
    """
    library = import_websockets()
    wrong = UsageError(f"{url!r} is not a ws(s) address", fix="write it in full: ws://127.0.0.1:8000/mcp")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise wrong from None
    address = format_address_for_log(url)
    credentials = {"Authorization": f"Bearer {token}"} if token else {}
    defaults: dict[str, Any] = {
        "open_timeout": CONNECT_SECONDS,
        "ping_interval": PING_SECONDS,
        "ping_timeout": PING_SECONDS,
        "close_timeout": DIAL_CLOSE_SECONDS,
        "proxy": None if is_loopback(parts.hostname or "") else True,
        "logger": _quiet,
    }
    # Where a proxy may be in between, its address says nothing of the server.
    peers = set[str]() if defaults["proxy"] is None or not getproxies() else None
    try:
        socket = await _without_redirects(peers)(
            url,
            additional_headers={**(headers or {}), **credentials},
            user_agent_header=f"defserve/{VERSION}",
            max_size=longest,
            **(defaults | options),
        )
    except library.InvalidURI:
        raise wrong from None
    except library.InvalidStatus as error:
        raise _refusal(address, error.response, peers) from None
    except library.InvalidProxy:  # its address may have a password
        raise AddressUnreachable(f"{address} cannot be reached: the environment names a proxy that is none") from None
    except (OSError, TimeoutError, ImportError, ValueError, library.InvalidHandshake) as error:
        # Also a name that no resolver takes, and a proxy that has no port or needs a package.
        raise AddressUnreachable(f"{address} cannot be reached: {error or type(error).__name__}") from None
    return socket, address


def _without_redirects(peers: set[str] | None) -> Any:
    """`websockets.connect`, which would follow redirects and show them what is in headers.

    The IP addresses that it connects to are put into `peers`.
    """
    from websockets.asyncio.client import ClientConnection, connect

    class Connection(ClientConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            if peers is not None:
                peers.add(str((transport.get_extra_info("peername") or ("",))[0]))
            super().connection_made(transport)

        async def drain(self) -> None:
            await drain_unless_stalled(self, super().drain, PING_SECONDS)

    class Connect(connect):
        def process_redirect(self, exc: Exception) -> Exception:
            return exc

    return partial(Connect, create_connection=Connection)


def _refusal(address: str, response: Any, peers: set[str] | None) -> PeerError:
    status = response.status_code
    headers = {name.lower(): ", ".join(response.headers.get_all(name)) for name in response.headers}
    if status in (401, 403) and (challenge := headers.get("www-authenticate")):
        return CredentialsRequired(address, status, challenge, headers, peers or ())
    refusal = PeerGone if status >= 500 else HttpRefusal
    return refusal(f"{address} answered HTTP {status} {response.reason_phrase}".rstrip(), data={"status": status})


def import_websockets() -> Any:
    """The library. Raises UsageError that says how to install it, if it is missing."""
    try:
        import websockets
    except ImportError:
        raise UsageError(
            "connecting to a ws address needs websockets, which is not installed",
            fix='pip install "defserve[http]"',
        ) from None
    return websockets
