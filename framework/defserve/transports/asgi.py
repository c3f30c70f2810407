"""ASGI's types, and one of ours: a request that our own server hands over in one piece."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]
HeaderList: TypeAlias = Iterable[Header]

WHOLE = "whole request of defserve"
"""The member of a scope that holds a `WholeRequest`. The reader must remove it, because it refers to the scope."""


PEER_USER = "user of the peer"
"""The member of a scope's `state` that holds the user at the other end of a unix socket. Only our server sets it."""


class RequestHead(Protocol):
    """A head that many requests may share. `note` keeps what the app found out about it the first time."""

    note: Any


class WholeRequest(Protocol):
    """A request whose server can hand over the body, and send the response, in one piece."""

    @property
    def head(self) -> RequestHead | None:
        """The head, if it may come again."""
        ...

    def take_body(self, limit: int) -> bytes | None:
        """The body, if all of it is there and within `limit`."""
        ...

    def respond(self, status: int, body: bytes) -> bool:
        """Send a complete response of JSON. False: it was not sent; send it by the steps of ASGI."""
        ...
