"""Warm calls from the bytes that came to the bytes that go, without a socket: `in_process.py ROAD COUNT`.

A road is `raw` (a plain protocol on httptools), `session`, `stateless` or `stdio`. Prints how many microseconds of
processor time a call took: the median of several bursts.

On a busy machine count instructions instead. With `DEFSERVE_BENCH_COUNTED` set, one burst is counted:
`valgrind --tool=callgrind --instr-atstart=no python in_process.py ROAD COUNT` says how many were "Collected". Take off
what it collects for a COUNT of 0, and divide by COUNT.
"""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from time import process_time_ns
from typing import Any

HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
COUNTED = "DEFSERVE_BENCH_COUNTED"
WARM_UP, BURSTS = 300, 20
HOST = "127.0.0.1:8000"
FIRST_ID = 1_000_000


class Wire(asyncio.Transport):
    """A transport that keeps what was written last."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)})
        self.written = b""

    def write(self, data: Any) -> None:
        self.written = data

    def is_closing(self) -> bool:
        return False


class Pipe:
    """What a session on a pipe needs of its transport, keeping what was written last."""

    closed, queued = False, 0

    def __init__(self) -> None:
        self.written = b""

    def send(self, message: bytes, taken: Callable[[], None] | None = None) -> None:
        self.written = message
        if taken is not None:
            taken()

    def flush(self) -> None:
        """Nothing waits."""

    resume = pause = flush


Frames = Callable[[int], bytes]
"""The bytes of a call with an id of seven digits."""
Take = Callable[[bytes], object]
"""Takes the bytes of one read."""


def message(id: int | None, method: str, params: dict[str, Any]) -> bytes:
    about = {} if id is None else {"id": id}
    return json.dumps({"jsonrpc": "2.0", **about, "method": method, "params": params}, separators=(",", ":")).encode()


def opening() -> bytes:
    about = {"name": "bench", "version": "1"}
    return message(1, "initialize", {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": about})


def call(**more: Any) -> bytes:
    return message(FIRST_ID, "tools/call", {"name": "add", "arguments": {"a": 2, "b": 3}, **more})


def numbered(whole: bytes) -> Frames:
    """The same call with other ids. Making it costs next to nothing beside taking it."""
    before, _, after = whole.rpartition(b"%d" % FIRST_ID)
    return lambda id: b"%b%d%b" % (before, id, after)


def request(body: bytes, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: {HOST}\r\nAccept: application/json, text/event-stream\r\n"
        f"Content-Type: application/json\r\nUser-Agent: bench\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def stateless_call() -> bytes:
    return request(call(_meta=META), MCP_Protocol_Version=STATELESS, Mcp_Method="tools/call", Mcp_Name="add")


async def written(wire: Any, take: Take, data: bytes) -> bytes:
    """What is written when this has come, however long that takes."""
    wire.written = b""
    # As a loop does it: in no task.
    asyncio.get_running_loop().call_soon(take, data)
    while not wire.written:  # noqa: ASYNC110  an event would be one more thing that is measured
        await asyncio.sleep(0)
    return wire.written


async def over_raw(wire: Any) -> tuple[Take, Frames]:
    from raw_http import RawConnection

    protocol = RawConnection()
    protocol.connection_made(wire)
    return protocol.data_received, numbered(stateless_call())


async def over_http(wire: Any) -> Take:
    from defserve_http import server

    from defserve.serve.address import Address
    from defserve.serve.http1.connection import HttpConnection
    from defserve.serve.network import make_server_state
    from defserve.server.web import make_asgi_app

    app = make_asgi_app(server.composition, server.mcp, None, {}, Address.parse(f"http://{HOST}/mcp"))
    protocol = HttpConnection(make_server_state(app, server.limits))
    protocol.connection_made(wire)
    return protocol.data_received


async def over_stateless_http(wire: Any) -> tuple[Take, Frames]:
    return await over_http(wire), numbered(stateless_call())


async def over_http_session(wire: Any) -> tuple[Take, Frames]:
    take = await over_http(wire)
    opened = (await written(wire, take, request(opening()))).partition(b"mcp-session-id: ")[2]
    about = {"Mcp_Session_Id": opened.partition(b"\r")[0].decode(), "MCP_Protocol_Version": HANDSHAKE}
    await written(wire, take, request(message(None, "notifications/initialized", {}), **about))
    return take, numbered(request(call(), **about))


async def over_stdio(wire: Any) -> tuple[Take, Frames]:
    from defserve_http import server

    from defserve.serve.connection import Connection
    from defserve.serve.lifespans import enter_lifespans

    connection = Connection(server.composition, wire)
    connection.attach(await enter_lifespans(server.composition).__aenter__())

    def take(data: bytes) -> None:
        connection.feed_frames([data])

    await written(wire, take, opening())
    take(message(None, "notifications/initialized", {}))
    return take, numbered(call())


ROADS = {"raw": over_raw, "session": over_http_session, "stateless": over_stateless_http, "stdio": over_stdio}


async def main(road: str, count: int) -> None:
    wire: Any = Pipe() if road == "stdio" else Wire()
    take, frames = await ROADS[road](wire)
    for id in range(FIRST_ID, FIRST_ID + WARM_UP):
        answer = await written(wire, take, frames(id))
        assert b'"text":"5"' in answer and b"%d" % id in answer, answer
    bursts: list[float] = []

    def burst(first: int) -> None:
        began = process_time_ns()
        for id in range(first, first + count):
            take(frames(id))
        bursts.append((process_time_ns() - began) / count / 1000)

    if COUNTED in os.environ:
        count_instructions(True)
        asyncio.get_running_loop().call_soon(burst, FIRST_ID)
        await asyncio.sleep(0)
        count_instructions(False)
        return
    for number in range(BURSTS):
        asyncio.get_running_loop().call_soon(burst, FIRST_ID + number * count)
        await asyncio.sleep(0)
    print(f"{median(bursts):.2f}")


def count_instructions(is_on: bool) -> None:
    """Have callgrind, under which this process runs, begin or end to count."""
    state = "on" if is_on else "off"
    subprocess.run(["callgrind_control", f"--instr={state}", str(os.getpid())], check=True, capture_output=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
