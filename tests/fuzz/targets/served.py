"""A server's connections, on a transport that only keeps what is written: any bytes, any cuts."""

from __future__ import annotations

import asyncio
from typing import Any

from defserve import Limits, Server
from defserve.runner.address import Address
from defserve.runner.network import NetworkOptions, make_listener
from tests.fuzz.targets.parsers import pieces

TURNS = 12

server = Server("fuzzed", limits=Limits(message=2000))


@server.tool
async def echo(text: str = "") -> str:
    return text


class Kept(asyncio.Transport):
    """Takes everything that is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)})
        self.written, self.closed = bytearray(), False

    def write(self, data: Any) -> None:
        assert len(self.written) < 1 << 20, "a short request gave a megabyte"
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        """Nothing is read from a real socket."""

    resume_reading = pause_reading

    def is_reading(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Connections:
    """Makes connections on a loop of its own, and hears of everything that goes wrong on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.wrong: list[Any] = []
        self.loop.set_exception_handler(lambda loop, context: self.wrong.append(context))
        app = server.asgi()
        address = Address("http", "127.0.0.1", 80, "/")
        self._listener: Any = make_listener(app, address, NetworkOptions("auto"), server.limits, lambda: None)

    def feed(self, parts: list[bytes]) -> bytes:
        """What a connection on which these came wrote."""
        return self.loop.run_until_complete(self._feed(parts))

    async def _feed(self, parts: list[bytes]) -> bytes:
        config, state = self._listener.config, self._listener.server_state
        protocol = config.http_protocol_class(config=config, server_state=state, app_state={})
        transport = Kept()
        transport.protocol = protocol
        protocol.connection_made(transport)
        for part in parts:
            if transport.closed:
                break
            transport.protocol.data_received(part)
            await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if not transport.closed:
            transport.protocol.eof_received()
        transport.protocol.connection_lost(None)
        for task in list(state.tasks):
            task.cancel()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert not self.wrong, self.wrong
        return bytes(transport.written)


_made: list[Connections] = []


def _connections() -> Connections:
    if not _made:
        _made.append(Connections())
    return _made[0]


def http(data: bytes) -> None:
    """Any bytes on a new connection: what is written back is HTTP/1.1, and no server error."""
    whole, parts = pieces(data)
    for cut in ([whole], parts):
        written = _connections().feed(cut)
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
        written = _connections().feed([UPGRADE, b"", *cut])
        assert written.startswith(b"HTTP/1.1 101"), written[:200]
        assert b"internal error" not in written
