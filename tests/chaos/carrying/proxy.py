"""A way to a server that harms what it carries: TCP on this side, TCP or a unix socket on the other."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from random import Random

from tests.attack.speaking.sockets import Place
from tests.chaos.carrying.mangling import End, Mangle, Road, clear

READ = 65536


class Proxy:
    """Every connection gets troubles of its own, of the same kinds."""

    def __init__(self, to: Place, random: Random, up: Road | None, down: Road | None) -> None:
        self._to, self._random, self._up, self._down = to, random, up, down
        self.port = 0
        self.struck = 0
        """How often bytes were harmed."""
        self._carrying: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        try:
            with suppress(OSError):
                await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.transport.abort()
            self._carrying.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._to.is_unix:
            from_server, to_server = await asyncio.open_unix_connection(self._to.host)
        else:
            from_server, to_server = await asyncio.open_connection(self._to.host, self._to.port)
        up, down = (road.make(self._random) if road else clear(self._random) for road in (self._up, self._down))
        both = [
            asyncio.ensure_future(self._one_way(reader, to_server, up)),
            asyncio.ensure_future(self._one_way(from_server, writer, down)),
        ]
        try:
            for done in asyncio.as_completed(both):
                how = await done
                if how is not End.HALF:
                    if how is End.RESET:
                        _reset(writer)
                        _reset(to_server)
                    break
        finally:
            for one in (writer, to_server):
                one.close()
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _one_way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mangle: Mangle) -> End:
        """How this way ended."""
        while data := await reader.read(READ):
            for step in mangle(data):
                self.struck += step != data
                if isinstance(step, End):
                    if step is End.HALF:
                        writer.write_eof()
                    return step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    writer.write(step)
                    await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        return End.HALF

    async def end(self) -> None:
        """Cut whatever is still carried."""
        tasks = list(self._carrying)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    one = writer.get_extra_info("socket")
    if one is not None and one.family != socket.AF_UNIX:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def proxied(
    to: Place, random: Random, *, up: Road | None = None, down: Road | None = None
) -> AsyncGenerator[Proxy]:
    """A proxy for as long as the block runs. `up` is what happens to requests, `down` to answers."""
    proxy = Proxy(to, random, up, down)
    listener = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        await proxy.end()
