"""Which user is at the other end of a unix socket, as the system reports it."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Final

from defserve.errors import UsageError
from defserve.transports.asgi import PEER_USER

# struct ucred: process, user and group.
_CREDENTIALS: Final = struct.Struct("3i")


class PeerUser(asyncio.Protocol):
    """Mixed in before uvicorn's protocol: puts the user into the state of every request of the connection."""

    app_state: dict[str, Any]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if (user := user_of(transport.get_extra_info("socket"))) is not None:
            self.app_state = {**self.app_state, PEER_USER: user}


def check_peer_user() -> None:
    """Raises UsageError on a system that does not report the user."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise UsageError(
            "this system does not say which user is at the other end of a unix socket",
            fix="leave out --trust-same-user; let callers sign in with Server(auth=…)",
        )


def user_of(one: Any) -> int | None:
    """The user at the other end of a socket. None if it is not a unix socket, or the system does not say."""
    if one is None or one.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    found = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(found)[1]
