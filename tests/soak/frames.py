"""Requests in WebSocket frames for a while, and how long each took. Sockets and epoll, to stay light."""

from __future__ import annotations

import json
import secrets
import select
import socket
import struct
from collections.abc import Generator, Sequence
from itertools import cycle, islice
from time import perf_counter
from typing import Any

from tests.bench.processes import HANDSHAKE_VERSION, STATELESS_META
from tests.bench.traffic import Timing

UPGRADE = (
    b"GET /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nsec-websocket-protocol: mcp\r\n\r\n"
)
TEXT, PING, PONG, MASKED = 0x81, 0x89, 0x8A, 0x80
SHORT, MEDIUM = 125, 126
IDS = 256
"""Then they come again. So many calls are never on their way at once."""
SUM = b'"text":"42"'


class Connection:
    """One WebSocket on which `add(40, 2)` is called; in a session of its own, or each call by itself."""

    def __init__(self, port: int, *, in_session: bool) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.sent_at: list[float] = []
        self._data = b""
        self.socket.sendall(UPGRADE)
        while b"\r\n\r\n" not in self._data:
            self._receive()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        if b" 101 " not in head:
            raise RuntimeError(f"no WebSocket: {head[:300]!r}")
        meta = {} if in_session else {"_meta": STATELESS_META}
        if in_session:
            self._shake_hands()
        params = {"name": "add", "arguments": {"a": 40, "b": 2}, **meta}
        self._calls = cycle([_frame("tools/call", params, id=id) for id in range(2, 2 + IDS)])

    def _shake_hands(self) -> None:
        client = {"name": "soak", "version": "1"}
        params = {"protocolVersion": HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": client}
        self.socket.sendall(_frame("initialize", params, id=1))
        while not [*self._frames()]:
            self._receive()
        self.socket.sendall(_frame("notifications/initialized", {}))

    def call(self, count: int) -> None:
        """So many calls in one write."""
        self.socket.sendall(b"".join(islice(self._calls, count)))
        self.sent_at += [perf_counter()] * count

    def answered(self) -> list[float]:
        """Read what has come: how long each call took that is answered now. Raises RuntimeError for a wrong answer."""
        self._receive()
        now, frames = perf_counter(), [*self._frames()]
        for frame in frames:
            if SUM not in frame:
                raise RuntimeError(f"a call answered {frame[:300]!r}")
        took, self.sent_at = [now - at for at in self.sent_at[: len(frames)]], self.sent_at[len(frames) :]
        return took

    def _receive(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise RuntimeError("the connection ended")
        self._data += data

    def _frames(self) -> Generator[bytes]:
        """The payloads that are whole. None that the server sends here needs more than 16 bits for its length."""
        at, data = 0, self._data
        while len(data) >= at + 4:
            size, begin = data[at + 1], at + 2
            if size == MEDIUM:
                size, begin = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            if len(data) < begin + size:
                break
            kind, payload, at = data[at], data[begin : begin + size], begin + size
            if kind == PING:
                self.socket.sendall(_masked(PONG, payload))
            else:
                yield payload
        self._data = data[at:]


def _frame(method: str, params: dict[str, Any], **id: int) -> bytes:
    return _masked(TEXT, json.dumps({"jsonrpc": "2.0", **id, "method": method, "params": params}).encode())


def _masked(kind: int, payload: bytes) -> bytes:
    key = secrets.token_bytes(4)
    size = (
        bytes([MASKED | len(payload)]) if len(payload) <= SHORT else struct.pack("!BH", MASKED | MEDIUM, len(payload))
    )
    return bytes([kind]) + size + key + bytes(byte ^ key[n % 4] for n, byte in enumerate(payload))


def drive(connections: Sequence[Connection], window: int, seconds: float) -> Timing:
    """Keep `window` calls on their way on each connection for about `seconds`, then wait for the last."""
    poll, latencies = select.epoll(), list[float]()
    by_descriptor = {connection.socket.fileno(): connection for connection in connections}
    began = now = perf_counter()
    for descriptor, connection in by_descriptor.items():
        poll.register(descriptor, select.EPOLLIN)
        connection.call(window)
    while any(connection.sent_at for connection in connections):
        for descriptor, _ in poll.poll(20):
            took = by_descriptor[descriptor].answered()
            latencies += took
            now = perf_counter()
            if took and now < began + seconds:
                by_descriptor[descriptor].call(len(took))
    poll.close()
    return Timing(len(latencies) / (now - began), latencies)
