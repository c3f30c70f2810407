"""A server's connections, on a transport that only keeps what is written: any bytes, any cuts."""

from __future__ import annotations

import asyncio
from typing import Any

from defserve import Limits, Server
from defserve.serve.http1.connection import HttpConnection
from defserve.serve.network import make_server_state
from tests.clock import HeldClock
from tests.fuzz.targets.parsers import pieces

MOMENT, WHILE = 0.1, 100.0
"""Seconds of a held clock: for what can be done at once, and for every timer of a connection."""

server = Server("fuzzed", limits=Limits(message=2000))


@server.tool
async def echo(text: str = "") -> str:
    return text


class Kept(asyncio.Transport):
    """Takes everything that is written. As a real one it tells its protocol of the end in the next turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)})
        self.written, self._loop, self._is_closing, self._is_paused = bytearray(), loop, False, False
        self.is_lost = False
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        assert len(self.written) < 1 << 20, "a short request gave a megabyte"
        if not self._is_closing:
            self.written += data

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._count_lost_event)

    abort = close

    def _count_lost_event(self) -> None:
        self.is_lost = True
        self.protocol.connection_lost(None)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """What follows is lost in any case."""

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False

    def is_reading(self) -> bool:
        return not (self._is_paused or self._is_closing)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Connections:
    """Makes connections on a loop of its own, whose clock is held, and hears of everything that goes wrong on it."""

    def __init__(self) -> None:
        self.loop = HeldClock()
        self.wrong: list[Any] = []
        self.loop.set_exception_handler(lambda loop, context: self.wrong.append(context))
        self._state = make_server_state(server.asgi(), server.limits)

    def feed(self, parts: list[bytes], patience: float = MOMENT) -> bytes:
        """What a connection on which these came wrote, until its peer left after so much patience."""
        return self.loop.run_until_complete(self._feed(parts, patience))

    async def _feed(self, parts: list[bytes], patience: float) -> bytes:
        state = self._state
        transport = Kept(self.loop)
        transport.protocol = HttpConnection(state)
        transport.protocol.connection_made(transport)
        for part in parts:
            if not transport.is_reading():
                await asyncio.sleep(MOMENT)
                if not transport.is_reading():
                    break
            transport.protocol.data_received(part)
            await asyncio.sleep(0)
        await asyncio.sleep(patience)
        if not (transport.is_closing() or transport.protocol.eof_received()):
            transport.close()
        await asyncio.sleep(MOMENT)
        transport.abort()
        await asyncio.sleep(WHILE)
        assert not self.wrong, self.wrong
        assert transport.is_lost and not (state.tasks or state.connections), (state.tasks, state.connections)
        return bytes(transport.written)


_made: list[Connections] = []


def _connections() -> Connections:
    if not _made:
        _made.append(Connections())
    return _made[0]


def close_connections() -> None:
    """Close the loop, if one was made: what is left to the garbage collector is blamed on whichever test comes next."""
    while _made:
        _made.pop().loop.close()


def _patience(data: bytes) -> float:
    """The first bit says whether the peer waits until it is timed out, or leaves as soon as it was answered."""
    return WHILE if data and data[0] & 0x80 else MOMENT


def http(data: bytes) -> None:
    """Any bytes on a new connection: what is written back is HTTP/1.1, and no server error."""
    whole, parts = pieces(data)
    for cut in ([whole], parts):
        written = _connections().feed(cut, _patience(data))
        assert not written or written.startswith(b"HTTP/1.1 "), written[:100]
        assert b"HTTP/1.1 500" not in written, written[:500]


UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)


def websocket(data: bytes) -> None:
    """Any frames after a good opening: the server answers by frames, and closes by the rules."""
    whole, parts = pieces(data)
    for cut in ([whole], parts):
        written = _connections().feed([UPGRADE, *cut], _patience(data))
        assert written.startswith(b"HTTP/1.1 101"), written[:200]
        assert b"internal error" not in written
