"""What everything on sockets shares: listening sockets, who is at the other end, ASGI's types, calls that wait.

Sockets listen before anything starts, so a refusal is one clear line. Who is at the other end (the address that a
trusted proxy forwards, the user of a unix socket) is a fact of the connection: what follows from it is decided in
`auth.authority`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import struct
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, MutableMapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

from defserve.base.concurrency import lock_folder
from defserve.base.redaction import get_logger
from defserve.errors import UsageError
from defserve.serve.address import Address

if TYPE_CHECKING:
    from websockets.asyncio.connection import Connection


OWNER_ONLY = 0o177
LISTEN_BACKLOG = 2048

# A name may have an address that this machine lacks, as localhost may have ::1.
ABSENT = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}

# How much the system buffers for a slow reader. It is small, so that we notice a reader that stops.
AHEAD_BYTES = 128 * 1024

# Open files that are not connections: logs, databases, pipes, what tools open.
OTHER_FILES = 100


def get_max_connections() -> int:
    """How many connections this process can have. Past the limit for open files, it could not even accept one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return sys.maxsize
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else max(files - OTHER_FILES, files // 2, 1)


@contextmanager
def bind_sockets(address: Address) -> Generator[list[socket.socket]]:
    """The sockets of an address, closed at the end. The file of a unix socket is removed.

    They listen already: clients that come early wait, and a second server is refused however long the first one takes
    to start. Raises UsageError when the address cannot be bound.
    """
    sockets = [_bind_unix(address)] if address.scheme == "unix" else _bind_network(address)
    made = os.stat(address.host).st_ino if address.scheme == "unix" else None
    try:
        yield sockets
    finally:
        for one in sockets:
            one.close()
        with suppress(OSError):
            # Another server may have taken the path since.
            if made is not None and os.stat(address.host).st_ino == made:
                os.unlink(address.host)


def _bind_network(address: Address) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, place in dict.fromkeys(found):
            # All sockets have the same port, even if the system chooses it.
            port = sockets[0].getsockname()[1] if sockets else address.port
            try:
                sockets.append(_bind_one(family, (place[0], port, *place[2:])))
            except OSError as error:
                if error.errno not in ABSENT or len(found) == 1:
                    raise
        if not sockets:
            raise OSError(errno.EADDRNOTAVAIL, "this machine has no such address")
    except OSError as error:
        for one in sockets:
            one.close()
        raise _refusal(address, error) from None
    return sockets


def _bind_one(family: int, place: tuple[Any, ...]) -> socket.socket:
    # asyncio sets TCP_NODELAY only if the protocol is named here. Without it each response waits 40 ms.
    one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections inherit it
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, AHEAD_BYTES)
        one.bind(place)
        one.listen(LISTEN_BACKLOG)
    except OSError:
        one.close()
        raise
    return one


def _bind_unix(address: Address) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise UsageError(f"cannot listen on {address}: this system has no unix sockets", fix="use an http:// address")
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Of two that start after a kill, the second would find the file of the first stale until that one listens.
        with lock_folder(os.path.dirname(address.host) or "."):
            _remove_stale(address.host)
            # The file is made with its final mode, so that others can never connect.
            before = os.umask(OWNER_ONLY)
            try:
                one.bind(address.host)
            finally:
                os.umask(before)
            one.listen(LISTEN_BACKLOG)
    except OSError as error:
        one.close()
        raise _refusal(address, error) from None
    return one


def _remove_stale(path: str) -> None:
    """Remove the file of a socket that nobody listens on. Raises OSError for anything else that is there."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise FileExistsError(errno.EEXIST, "there is a file that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise OSError(errno.EADDRINUSE, "another server listens there")


def _refusal(address: Address, error: OSError) -> UsageError:
    fixes = {
        errno.EADDRINUSE: "stop what listens there, or choose another address",
        errno.EACCES: "choose a port above 1023, or a directory you may write in",
    }
    reason = error.strerror or str(error)
    return UsageError(
        f"cannot listen on {address}: {reason[:1].lower() + reason[1:]}",
        fix=fixes.get(error.errno or 0, "choose another address"),
    )


# -- The address of a caller behind a trusted proxy, from `X-Forwarded-For`. Each proxy appends the address it saw.
#
# So the list is read from its end: the first address that is not a trusted proxy's is the caller's. What stands before
# it was written by the caller, and says nothing.


PROXIES_VARIABLE: Final = "FORWARDED_ALLOW_IPS"
ON_THIS_MACHINE: Final = "127.0.0.1,::1"
EVERYBODY: Final = "*"
FORWARDED_SCHEMES: Final = frozenset(("http", "https", "ws", "wss"))

Network = IPv4Network | IPv6Network
ForwardedScope = MutableMapping[str, Any]
AddressNormalizer = Callable[[str], str | None]


class ForwardedAddressMiddleware:
    """Wraps an ASGI app. `normal` gives an address without port and brackets, or None for any other text.

    Proxies are trusted on this machine, on a unix socket, and at the addresses in `FORWARDED_ALLOW_IPS`.
    """

    def __init__(self, app: Any, normal: AddressNormalizer) -> None:
        self._app, self._normal = app, normal
        self._proxies = _networks(os.environ.get(PROXIES_VARIABLE) or ON_THIS_MACHINE)

    async def __call__(self, scope: ForwardedScope, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan" and self._is_proxy(scope.get("client")):
            hops, scheme = list[bytes](), b""
            for name, value in scope["headers"]:
                if name == b"x-forwarded-for":
                    hops += value.split(b",")
                elif name == b"x-forwarded-proto":
                    scheme = value
            if (address := self.caller([hop.decode("latin-1") for hop in hops])) is not None:
                scope["client"] = (address, 0)
            _set_scheme(scope, scheme.decode("latin-1").strip())
        await self._app(scope, receive, send)

    def caller(self, hops: list[str]) -> str | None:
        """The caller's address. None: the list does not say it, so the address of the connection counts."""
        found = None
        for hop in reversed(hops):
            if (found := self._normal(hop)) is None or self._proxies is None or not self._lists(found):
                return found
        return found

    def _is_proxy(self, client: tuple[str, int] | None) -> bool:
        if client is None or self._proxies is None:
            return True
        address = self._normal(client[0])
        return address is not None and self._lists(address)

    def _lists(self, address: str) -> bool:
        found = ip_address(address)
        return any(found in network for network in self._proxies or ())


def _set_scheme(scope: ForwardedScope, scheme: str) -> None:
    if scheme in FORWARDED_SCHEMES:
        scope["scheme"] = scheme.replace("http", "ws") if scope["type"] == "websocket" else scheme


def _networks(text: str) -> list[Network] | None:
    """The trusted proxies; None for everybody. Raises UsageError."""
    listed = [part.strip() for part in text.split(",") if part.strip()]
    if EVERYBODY in listed:
        return None
    try:
        return [ip_network(part) for part in listed]
    except ValueError as error:
        raise UsageError(
            f"{PROXIES_VARIABLE}={text!r}: {error}", fix="list IP addresses and networks, with commas"
        ) from None


# -- Which user is at the other end of a unix socket, as the system reports it.


# struct ucred: process, user and group.
_CREDENTIALS: Final = struct.Struct("3i")


def check_peer_user_support() -> None:
    """Raises UsageError on a system that does not report the user."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise UsageError(
            "this system does not say which user is at the other end of a unix socket",
            fix="leave out --trust-same-user; let callers sign in with Server(auth=…)",
        )


def get_peer_user(one: Any) -> int | None:
    """The user at the other end of a socket. None if it is not a unix socket, or the system does not say."""
    if one is None or one.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    found = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(found)[1]


# -- Which network address stands for one machine, so that a limit for each machine cannot be passed by.


# Longer than any address, even with a zone.
MAX_ADDRESS_LENGTH = 64

# A host with IPv6 has at least a whole /64.
_HOST_BITS = 64


def get_client_network(address: str) -> str:
    """The address itself; of an IPv6 address its /64. What is no address stands for itself, cut short."""
    return _network_of(address[:MAX_ADDRESS_LENGTH])


@lru_cache(maxsize=1024)
def _network_of(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> _HOST_BITS << _HOST_BITS)}/64"


# -- ASGI's types, and one of ours: a request that our own server hands over in one piece.


Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]
HeaderList: TypeAlias = Iterable[Header]

BUFFERED_REQUEST_KEY = "whole request of defserve"
"""The member of a scope that holds a `BufferedRequest`. The reader must remove it, because it refers to the scope."""

PEER_USER_KEY = "user of the peer"
"""The member of a scope's `state` that holds the user at the other end of a unix socket. Only our server sets it."""


class RecurringRequestHead(Protocol):
    """A head that many requests may share. `note` keeps what the app found out about it the first time."""

    note: Any


class KnownClient(Protocol):
    """The other end of a connection. `note` keeps what the app found out about it the first time."""

    note: Any


class BufferedRequest(Protocol):
    """A request whose server can hand over the body, and send the response, in one piece."""

    @property
    def head(self) -> RecurringRequestHead | None:
        """The head, if it may come again."""
        ...

    @property
    def scope(self) -> Scope:
        """ASGI's scope. For a head that came before it is made when it is first read."""
        ...

    @property
    def client(self) -> KnownClient:
        """Who sent it: the same for all requests of a connection."""
        ...

    async def receive(self) -> MutableMapping[str, Any]:
        """As in ASGI."""
        ...

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """As in ASGI."""

    def take_body(self, limit: int) -> bytes | None:
        """The body, if all of it is there and within `limit`."""
        ...

    def respond(self, status: int, body: bytes) -> bool:
        """Send a complete response of JSON. False: it was not sent; send it by the steps of ASGI."""
        ...

    @property
    def is_write_paused(self) -> bool:
        """Whether so much waits for the client that it has to read first."""
        ...

    def set_watcher(self, watcher: ClientWatcher | None) -> bool:
        """Tell `watcher` what the client does, instead of `receive`. False: it cannot, because the body isn't over."""
        ...

    def hold_open(self) -> None:
        """The app returns, and its response goes on with `write_response_part` until `end_response`."""

    def write_response_part(self, data: bytes) -> None:
        """Write a part of a response that was held open."""

    def end_response(self) -> None:
        """End a response that was held open."""


@runtime_checkable
class KnownHeadApp(Protocol):
    """An ASGI app that answers without a scope, if it has left a note at the head of the request."""

    def answer_known_head(self, request: BufferedRequest) -> Awaitable[None] | None:
        """Answer a request whose head has a note. Returns the rest to await, or None."""
        ...


class ClientWatcher(Protocol):
    """Who is told what the client of a request does. It is told between other steps of the loop, in no task."""

    def on_client_left(self) -> None:
        """The client has gone."""

    def on_client_doubted(self) -> None:
        """The client has closed its side. It may read, or be gone: writing to it shows which."""

    def on_client_drained(self) -> None:
        """The client has read what waited."""


# -- What network transports need of a call.


FinalReply: TypeAlias = tuple[bytes, int | None]
"""The reply of a call, and its code if it is an error."""


class UnfinishedCall(Protocol):
    """A call that is not over. Await its `rest`; then `reply` is there. Or have it sent instead, by `send_reply`."""

    @property
    def rest(self) -> Awaitable[None] | None: ...
    @property
    def reply(self) -> FinalReply | None: ...
    def send_reply(self) -> None: ...


CallOrReply: TypeAlias = UnfinishedCall | FinalReply
"""A call that waits; or its reply, if it does not."""


# -- How many fragments a WebSocket message may have. Each costs memory and time, however little is in it.


# A message has at most so many fragments that are smaller than this. Its size bounds how many others it has.
MAX_SMALL_FRAGMENTS: Final = 1024
SMALL_FRAGMENT_BYTES: Final = 1024
TOO_MANY_FRAGMENTS: Final = "too many fragments"


# -- How long a connection of the library `websockets` waits for a peer that does not read.


async def drain_unless_stalled(connection: Connection, drain: Callable[[], Awaitable[None]], seconds: float) -> None:
    """The connection's own `drain`, while the peer goes on reading. Raises TimeoutError, which ends the connection.

    The library waits for ever: a peer that stops reading would get no ping, and could not be closed either. Here it
    has so many seconds to take something, and after a close only until the deadline of that.
    """
    while True:
        waiting, deadline = connection.transport.get_write_buffer_size(), connection.close_deadline
        try:
            async with asyncio.timeout(seconds) if deadline is None else asyncio.timeout_at(deadline):
                return await drain()
        except TimeoutError:
            if deadline is not None or connection.transport.get_write_buffer_size() >= waiting:
                raise


# -- A request at which the app failed.


def log_failed_request(what: str, error: BaseException, scope: Scope) -> None:
    """Log why. The error may name the caller's token, as a KeyError of an author's verifier does."""
    shown = [value.rpartition(b" ")[2] for name, value in scope["headers"] if name == b"authorization"]
    get_logger().error("%s", what, exc_info=error, extra={"secrets": [token.decode("latin-1") for token in shown]})
