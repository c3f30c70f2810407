"""What a server on a Unix socket reports over HTTP: whether it is ready, and its metrics."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from typing import Final

from defserve.errors import PeerGone

MOST_BYTES: Final = 4 * 1024 * 1024
SECONDS: Final = 5.0


def get(path: str, report: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """The status and the text of a report, such as `/metrics`. Raises PeerGone if nobody answers at the socket."""
    connection = _UnixConnection("localhost", timeout=SECONDS)
    connection.path = path
    try:
        connection.request("GET", report, headers=dict(headers))
        response = connection.getresponse()
        return response.status, response.read(MOST_BYTES).decode(errors="replace")
    except (OSError, HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise PeerGone(f"nobody answers at unix:{path}: {reason}") from None
    finally:
        connection.close()


class _UnixConnection(HTTPConnection):
    path = ""

    def connect(self) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("this system has no Unix sockets")
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self.path)
