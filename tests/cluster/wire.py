"""The wire between machines: a TCP forwarder that delays, stalls, or lets only one direction through.

python -m tests.cluster.wire PLAN

The plan is JSON: `machines` maps the name of a machine to `own` and `wire`, its two addresses, and the `ports` it has.
Troubles come as lines of JSON on standard input: {"from": "n1", "to": "p1", "delay": 0.1, "loss": 0.05, "stall": false}
holds for what n1 sends to p1, on connections of either. No sender named: all troubles are over.

Bytes are never lost, as TCP never loses any. `loss` is how many of the pieces arrive late, as after a repetition.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

PIECE = 65536
REPEAT_SECONDS = (0.2, 0.6)
# A machine that is cut off for good must not keep connections of others open.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 4), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))
USER_TIMEOUT_MS = 10_000


@dataclass
class Trouble:
    """What happens to pieces in one direction."""

    delay: float = 0.0
    loss: float = 0.0
    stall: bool = False


@dataclass
class Wire:
    """`names` finds a machine by its own address."""

    machines: dict[str, dict[str, Any]]
    names: dict[str, str] = field(default_factory=dict[str, str])
    troubles: dict[tuple[str, str], Trouble] = field(default_factory=dict[tuple[str, str], Trouble])
    is_changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self) -> None:
        self.names = {machine["own"]: name for name, machine in self.machines.items()}
        for name, machine in self.machines.items():
            for port in machine["ports"]:

                async def accept(
                    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = name, port: int = port
                ) -> None:
                    with suppress(OSError, asyncio.CancelledError):
                        await self._carry(reader, writer, name, port)
                    writer.transport.abort()

                await asyncio.start_server(accept, machine["wire"], port)

    def change(self, line: str) -> None:
        words: dict[str, Any] = json.loads(line)
        if "from" not in words:
            self.troubles.clear()
        else:
            way = (words.pop("from"), words.pop("to"))
            self.troubles[way] = Trouble(**words)
        self.is_changed.set()
        self.is_changed = asyncio.Event()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: str, port: int) -> None:
        _watch_peer(writer)
        source = self.names.get(writer.get_extra_info("peername")[0], "?")
        # As from the machine itself: who is asked sees the address at which the other can be reached.
        there, back = await asyncio.open_connection(self.machines[to]["own"], port)
        _watch_peer(back)
        ways = [
            asyncio.create_task(self._one_way(reader, back, (source, to))),
            asyncio.create_task(self._one_way(there, writer, (to, source))),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in ways:
                task.cancel()
            back.transport.abort()

    async def _one_way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: tuple[str, str]) -> None:
        while data := await reader.read(PIECE):
            await self._wait(way)
            writer.write(data)
            await writer.drain()
        await self._wait(way)
        if writer.can_write_eof():
            writer.write_eof()

    async def _wait(self, way: tuple[str, str]) -> None:
        while (trouble := self.troubles.get(way)) is not None and trouble.stall:
            await self.is_changed.wait()
        if trouble is not None:
            seconds = trouble.delay * random.uniform(0.5, 1.5)
            if random.random() < trouble.loss:
                seconds += random.uniform(*REPEAT_SECONDS)
            await asyncio.sleep(seconds)


def _watch_peer(writer: asyncio.StreamWriter) -> None:
    one: socket.socket = writer.get_extra_info("socket")
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    for option, value in KEEPALIVE:
        one.setsockopt(socket.IPPROTO_TCP, option, value)


async def main(plan: dict[str, Any]) -> None:
    wire = Wire(plan["machines"])
    await wire.serve()
    print("up", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        wire.change(line)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
