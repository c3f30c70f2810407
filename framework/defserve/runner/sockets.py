"""Listening sockets for an address. They listen before anything starts, so a refusal is one clear line."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from defserve.base.folders import only_change
from defserve.errors import UsageError
from defserve.runner.address import Address

OWNER_ONLY = 0o177
BACKLOG = 2048

# A name may have an address that this machine lacks, as localhost may have ::1.
ABSENT = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}

# How much the system buffers for a slow reader. It is small, so that we notice a reader that stops.
AHEAD_BYTES = 128 * 1024


# Open files that are not connections: logs, databases, pipes, what tools open.
OTHER_FILES = 100


def most_connections() -> int:
    """How many connections this process can have. Past the limit for open files, it could not even accept one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return sys.maxsize
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else max(files - OTHER_FILES, files // 2, 1)


@contextmanager
def bound(address: Address) -> Generator[list[socket.socket]]:
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
        one.listen(BACKLOG)
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
        with only_change(os.path.dirname(address.host) or "."):
            _remove_stale(address.host)
            # The file is made with its final mode, so that others can never connect.
            before = os.umask(OWNER_ONLY)
            try:
                one.bind(address.host)
            finally:
                os.umask(before)
            one.listen(BACKLOG)
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
