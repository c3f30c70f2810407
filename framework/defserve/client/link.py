"""The connection of a client: whole JSON messages in, whole JSON messages out.

Also how it gets its credentials (`ClientAuth`), where the sign-in to a server is kept, and how long one peer may keep
the event loop busy.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable
from urllib.parse import urlsplit

from defserve.auth.oauth import convert_to_http_url
from defserve.core.messages import Message, Reply, Request, RequestId
from defserve.errors import PeerError, PeerGone
from defserve.stores.files import get_user_file_path

if TYPE_CHECKING:
    from defserve.client.signin.authorizer import ServerAuthorizer

MessageHandler: TypeAlias = Callable[[Message, bytes], Awaitable[None]]
"""Takes a message that came beside an answer, and its bytes."""

ResolveHost: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses that a connection to a host and port may go to, in order. Raises Refused if there are none."""


class ProgramMissing(PeerGone):
    """The program of a server cannot be started: there is none, or it may not be run. Trying again does not help."""


class HttpChallenge(NamedTuple):
    """A request that an HTTP server refused for its credentials. `sent` is the `Authorization` it had, or empty.

    `peers` are the IP addresses that the server was ever reached at.
    """

    status: int
    headers: Mapping[str, str]
    sent: str
    peers: Collection[str]


class ClientAuth(Protocol):
    """How a client gets its credentials: `SignIn`, `ClientCredentials` and others."""

    def authorizer(self, url: str) -> ServerAuthorizer:
        """Who gives the credentials for the server at `url`. Raises UsageError if they could not be sent there."""
        ...


class LostRequest:
    """The request `id` will not be answered any more, but the link is still open. `error` says why."""

    __slots__ = ("id", "error")

    def __init__(self, id: RequestId, error: PeerError) -> None:
        self.id, self.error = id, error


class SessionLost(PeerGone):
    """The server no longer knows our session. It has refused the message, and done nothing of what it says."""

    def __init__(self) -> None:
        super().__init__("the server ended the session")


class ClientLink(Protocol):
    """A connection to one server. Memory, stdio, HTTP and WebSocket each have one.

    A link that needs parts of a message (for headers or streams) reads the JSON itself.
    """

    async def send(self, message: bytes) -> None:
        """Send one JSON message, without a line feed.

        Raises PeerGone if the server is gone, PeerError if it refuses the message. A request that was sent may still
        be reported as `LostRequest` later.
        """
        ...

    async def receive(self) -> bytes | LostRequest | None:
        """The next message, or a lost request, or None once the server is gone.

        A link that knows why the server left raises PeerGone with the reason instead.
        """
        ...

    async def aclose(self) -> None:
        """Disconnect. Safe to call twice."""
        ...


@runtime_checkable
class TargetedLink(Protocol):
    """A link that knows what it leads to, so that something can be remembered about it."""

    @property
    def target(self) -> str:
        """The command or address, the same at each start."""
        ...


@runtime_checkable
class ReopenableLink(Protocol):
    """A link that can connect to the same server anew, after the server has left."""

    async def reopen(self) -> None:
        """Connect anew. Raises PeerGone if the server cannot be started or reached."""
        ...


@runtime_checkable
class PushingLink(ClientLink, Protocol):
    """A link that takes messages at once, and hands them out the moment they come: no task has to wait for them."""

    def write(self, message: bytes) -> Awaitable[None] | None:
        """Like `send`, but done if it gives None. Else the server has not taken it yet: await what it gives."""
        ...

    def push(self, take: Callable[[bytes], None], gone: Callable[[PeerGone], None]) -> None:
        """From now on call `take` with each message and `gone` at the end, instead of being asked by `receive`."""
        ...


@runtime_checkable
class ExchangingLink(ClientLink, Protocol):
    """A link on which every request has an exchange of its own, so that nobody has to match answers with requests."""

    on_session_lost: Callable[[], object] | None
    """Called if the link learns, beside any message of ours, that the server no longer knows our session.

    If it is None, the end of the session is the end of the link.
    """

    @property
    def session_id(self) -> str | None:
        """The id of the session, if the server opened one."""
        ...

    async def send_request(self, request: Request, message: bytes, hear: MessageHandler) -> Reply:
        """Send a request (`message` has its bytes) and wait for its answer. Cancelling it closes the exchange.

        Raises SessionLost, PeerGone if the answer is lost, PeerError if the server refuses the request.
        """
        ...

    def forget_session(self) -> None:
        """The next request opens a new session."""
        ...


@runtime_checkable
class SigningInLink(Protocol):
    """A link that may have to sign in before the server takes a request. That has limits of its own."""

    @property
    def is_signing_in(self) -> bool:
        """Whether it does so now."""
        ...


@runtime_checkable
class PollingLink(Protocol):
    """A link whose server may end a response before the answer, which is then asked for again."""

    on_hang_up: Callable[[RequestId], object] | None
    """Called with the id of the request."""


# -- Where the sign-in to a server is kept. It imports little, because every command with an address looks there.


SIGN_IN_FOLDER: Final = "sign-ins"
_PORTS: Final = {"http": 80, "https": 443}


def canonicalize_url(url: str) -> str:
    """The one way in which the address of a server is written: as a key, not to connect to."""
    try:
        parts = urlsplit(convert_to_http_url(url.strip()))
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return url
    named = f"[{host}]" if ":" in host else host
    place = named if port in (None, _PORTS.get(parts.scheme)) else f"{named}:{port}"
    return f"{parts.scheme}://{place}{parts.path.rstrip('/')}{f'?{parts.query}' if parts.query else ''}"


def get_sign_in_path(url: str, folder: Path | None = None) -> Path:
    """The file of the sign-in to a server."""
    name = hashlib.sha256(canonicalize_url(url).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return (folder or get_user_file_path(SIGN_IN_FOLDER)) / f"{name}.json"


def has_stored_sign_in(url: str) -> bool:
    """Whether this user has signed in to a server."""
    return os.path.isfile(get_sign_in_path(url))


# -- How long one peer may keep the event loop busy at a time. All the others share it.


MAX_LOOP_TURN_SECONDS: Final = 0.002
MAX_PIECE: Final = 4 * 1024
"""Bytes. A piece of nothing but line ends is read in a few milliseconds."""


class LoopTimeBudget:
    """Counts the time that is spent on what one stream brings. Once it is too much, other tasks have a turn."""

    __slots__ = ("_spent",)

    def __init__(self) -> None:
        self._spent = 0.0

    async def charge_time(self, since: float) -> None:
        """Count the time since then, as `monotonic` gives it."""
        self._spent += monotonic() - since
        if self._spent > MAX_LOOP_TURN_SECONDS:
            self._spent = 0.0
            await asyncio.sleep(0)


def split_into_pieces(data: bytes) -> Iterable[bytes]:
    """The data in parts that are read quickly, whatever is in them."""
    if len(data) <= MAX_PIECE:
        return (data,)
    return (data[place : place + MAX_PIECE] for place in range(0, len(data), MAX_PIECE))
