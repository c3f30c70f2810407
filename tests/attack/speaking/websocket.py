"""WebSocket by hand (RFC 6455): frames as they are wanted, right or wrong."""

from __future__ import annotations

import base64
import json
import os
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tests.attack.speaking.http import Json, Response, Wire, head
from tests.attack.speaking.sockets import PATIENCE, Place

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MASK = b"\x01\x02\x03\x04"


def upgrade(place: Place, headers: Mapping[str, str] | None = None, path: str = "/mcp") -> bytes:
    """The request that opens a socket; a header given as None is left out."""
    usual: dict[str, Any] = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Protocol": "mcp",
        **(headers or {}),
    }
    return head("GET", path, place, {name: value for name, value in usual.items() if value is not None})


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True, length: int | None = None
) -> bytes:
    """One frame. `length` is what it says of its length, if that is not the truth."""
    size = len(payload) if length is None else length
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    bit = 0x80 if masked else 0
    if size < 126:
        start = bytes([first, bit | size])
    elif size < 65536:
        start = bytes([first, bit | 126]) + struct.pack(">H", size)
    else:
        start = bytes([first, bit | 127]) + struct.pack(">Q", size)
    return start + (MASK + apply_mask(payload) if masked else payload)


def apply_mask(payload: bytes) -> bytes:
    count = len(payload)
    repeated = (MASK * (count // 4 + 1))[:count]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(count, "big") if count else b""


class WebSocket(Wire):
    """A socket after its handshake. `answer` is the response to it; without a 101 nothing else works."""

    def __init__(
        self, place: Place, headers: Mapping[str, str] | None = None, path: str = "/mcp", *, patience: float = PATIENCE
    ) -> None:
        super().__init__(place, patience=patience)
        super().send(upgrade(place, headers, path))
        self.answer: Response | None = self.response()
        self.close_code: int | None = None

    def __enter__(self) -> WebSocket:
        return self

    @property
    def is_open(self) -> bool:
        return self.answer is not None and self.answer.status == 101

    @property
    def status(self) -> int | None:
        return self.answer.status if self.answer is not None else None

    def say(self, message: object) -> bool:
        return self.send(frame(TEXT, json.dumps(message).encode()))

    def next_frame(self, seconds: float) -> tuple[int, bytes] | None:
        """Opcode and payload; None if the peer closes the connection, or says nothing in time."""
        deadline = time.monotonic() + seconds
        start = self._exactly(2, deadline)
        if start is None:
            return None
        size = start[1] & 0x7F
        if size >= 126:
            more = self._exactly(2 if size == 126 else 8, deadline)
            if more is None:
                return None
            size = int.from_bytes(more, "big")
        payload = self._exactly(size, deadline)
        if payload is None:
            return None
        opcode = start[0] & 15
        if opcode == CLOSE:
            self.close_code = int.from_bytes(payload[:2], "big") if payload else 1005
        return opcode, payload

    def hear(self, seconds: float = PATIENCE) -> Json | None:
        """The next message. None: there is none in time, or the socket ends."""
        deadline = time.monotonic() + seconds
        while self.close_code is None and (found := self.next_frame(deadline - time.monotonic())) is not None:
            if found[0] == TEXT:
                with suppress(ValueError):
                    return json.loads(found[1])
        return None

    def ends_within(self, seconds: float) -> bool:
        """Whether the peer closes the socket in time, with a close frame or without one."""
        deadline = time.monotonic() + seconds
        while self.close_code is None and not self.is_closed and time.monotonic() < deadline:
            self.next_frame(deadline - time.monotonic())
        return self.close_code is not None or self.is_closed

    def _exactly(self, count: int, deadline: float) -> bytes | None:
        while len(self.read) < count:
            if self.is_closed or time.monotonic() > deadline or not self.more(deadline - time.monotonic()):
                return None
        taken, self.read = self.read[:count], self.read[count:]
        return taken
