"""HTTP/1.1 by hand: what is sent is sent as it is, and what comes back is read as a careful client reads it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.attack.speaking.sockets import PATIENCE, Place, connect

Json = dict[str, Any]
BOTH = "application/json, text/event-stream"
FAST = 60 * 1024 * 1024
"""What a flood sends as fast as it can, before it takes its time."""


@dataclass(frozen=True)
class Response:
    """One response. A stream that has not ended is read as far as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def messages(self) -> list[Json]:
        """The JSON-RPC messages in it: its body, or those of its events."""
        if "event-stream" not in self.headers.get("content-type", ""):
            return _messages_in(self.body)
        return [message for text in events(self.body) for message in _messages_in(text)]

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def events(body: bytes) -> Iterable[bytes]:
    """The data of each whole event in a stream."""
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]:
        data = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
        if data and any(data):
            yield b"\n".join(data)


def _messages_in(text: bytes) -> list[Json]:
    with suppress(ValueError):
        found = json.loads(text)
        return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]
    return []


class Wire:
    """One connection. Errors of the network are no errors here: the peer has hung up, and that is an answer."""

    def __init__(self, place: Place, *, patience: float = PATIENCE, receive_buffer: int | None = None) -> None:
        self.socket = connect(place, patience=patience, receive_buffer=receive_buffer)
        self.patience, self.read, self.is_closed = patience, b"", False

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Whether all of it was taken."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def flood(self, piece: bytes, seconds: float) -> float | None:
        """Send it again and again. After how many seconds the peer took no more; None if it took all.

        A server may read on for a moment after its answer, so that its client can read that; it may not do so for ever.
        """
        began, sent = time.monotonic(), 0
        while (spent := time.monotonic() - began) < seconds:
            if not self.send(piece):
                return spent
            sent += len(piece)
            if sent > FAST:
                time.sleep(0.005)
        return None

    def half_close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(1)

    def more(self, seconds: float) -> bool:
        """Wait for bytes. False: none came in time, or the peer has closed (`is_closed`)."""
        try:
            self.socket.settimeout(max(seconds, 0.001))
            data = self.socket.recv(65536)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        self.is_closed = not data
        self.read += data
        return bool(data)

    def closes_within(self, seconds: float) -> bool:
        """Whether the peer closes in time, whatever it says before."""
        deadline = time.monotonic() + seconds
        while not self.is_closed and (left := deadline - time.monotonic()) > 0:
            self.more(left)
        return self.is_closed

    def response(self, seconds: float | None = None, *, verb: str = "POST") -> Response | None:
        """The next response; None if the peer closes, or says nothing in time."""
        deadline = time.monotonic() + (self.patience if seconds is None else seconds)
        while True:
            head = self._take(b"\r\n\r\n", deadline)
            if head is None:
                return None
            lines = head.decode("latin-1").split("\r\n")
            status = int(lines[0].split(" ")[1])
            headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines[1:])}
            if status >= 200 or status == 101:
                break
        if status in (101, 204, 304) or verb == "HEAD":
            return Response(status, headers, b"")
        if "chunked" in headers.get("transfer-encoding", ""):
            return Response(status, headers, self._chunks(deadline))
        length = headers.get("content-length")
        return Response(status, headers, self._take_bytes(None if length is None else int(length), deadline))

    def _take(self, end: bytes, deadline: float) -> bytes | None:
        while end not in self.read:
            if self.is_closed or time.monotonic() > deadline or not self.more(deadline - time.monotonic()):
                return None
        taken, _, self.read = self.read.partition(end)
        return taken

    def _take_bytes(self, count: int | None, deadline: float) -> bytes:
        while count is None or len(self.read) < count:
            if not self.more(deadline - time.monotonic()):
                break
        taken, self.read = (self.read, b"") if count is None else (self.read[:count], self.read[count:])
        return taken

    def _chunks(self, deadline: float) -> bytes:
        body = b""
        while (size := self._take(b"\r\n", deadline)) is not None:
            length = int(size.split(b";")[0], 16)
            if length == 0:
                self._take(b"\r\n", deadline)
                break
            body += self._take_bytes(length, deadline)
            self._take(b"\r\n", deadline)
        return body


def head(verb: str, target: str, place: Place, headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """The bytes of a request's head, with a Host unless one is given."""
    given = list(headers.items() if isinstance(headers, Mapping) else headers)
    if not any(name.lower() == "host" for name, _ in given):
        given.insert(0, ("Host", place.authority))
    lines = [f"{verb} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def request(
    place: Place,
    verb: str,
    target: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    *,
    patience: float = PATIENCE,
) -> Response | None:
    """One request on a connection of its own."""
    given = dict(headers or {})
    if body is not None:
        given = {"Content-Type": "application/json", "Content-Length": str(len(body)), **given}
    with Wire(place, patience=patience) as wire:
        wire.send(head(verb, target, place, {**given, "Connection": "close"}) + (body or b""))
        return wire.response(verb=verb)
