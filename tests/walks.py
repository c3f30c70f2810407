"""The walk of a call: which files of the package one `tools/call` visits, from its bytes to the reply's."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

from defserve import Server
from defserve.serve.connection import Connection
from defserve.serve.lifespans import enter_lifespans
from defserve.serve.stdio import StdioTransport
from tests.imports import PACKAGE
from tests.listening import listening, request
from tests.raw import PREFIX, STATELESS

PAGE = PACKAGE.parents[1] / "ARCHITECTURE.md"
HEADING = "## The walk of a call\n"
FOLDER = f"{PACKAGE}{os.sep}"
WARM_UP = 3

# Road → the most files that a call may visit on it.
MOST = {"stdio": 22, "HTTP": 28}


class Walk:
    """Files of the package in the order in which a call visits them first. `there` are those up to the function."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.there: list[str] = []

    def step(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(FOLDER):
            self.files[frame.f_code.co_filename.removeprefix(FOLDER).removesuffix(".py")] = None

    def __str__(self) -> str:
        back = [file for file in self.files if file not in self.there]
        return f"{' → '.join(self.there)} → *the function* → {' → '.join(back)}"


def walking_server() -> tuple[Server, list[Walk]]:
    """A server with one tool. Its function says of the last of the walks how far it is."""
    server, walks = Server("walk", "1"), list[Walk]()

    @server.tool
    async def add(a: int, b: int) -> int:
        """Add."""
        if walks:
            walks[-1].there = list(walks[-1].files)
        return a + b

    return server, walks


def call_body(id: int) -> bytes:
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
    params = {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": meta}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()


@asynccontextmanager
async def over_stdio(server: Server) -> AsyncGenerator[Callable[[int], Awaitable[bytes]]]:
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    transport: Any = StdioTransport(server.limits.message)
    transport._input, transport._output = our_in, our_out
    loop = asyncio.get_running_loop()
    async with enter_lifespans(server.composition) as engine:
        connection = Connection(server.composition, transport)
        connection.attach(engine)
        transport.start(loop, connection.feed_frames, connection.close)

        async def call(id: int) -> bytes:
            answered = loop.create_future()
            loop.add_reader(their_in, lambda: answered.set_result(os.read(their_in, 65536)))
            os.write(their_out, call_body(id) + b"\n")
            try:
                return await answered
            finally:
                loop.remove_reader(their_in)

        yield call
        connection.close()
    for descriptor in (their_in, our_out, our_in, their_out):
        os.close(descriptor)


@asynccontextmanager
async def over_http(server: Server) -> AsyncGenerator[Callable[[int], Awaitable[bytes]]]:
    about = (f"mcp-protocol-version: {STATELESS}", "mcp-method: tools/call", "mcp-name: add")
    async with listening(server) as where:
        reader, writer = await where.connect()

        async def call(id: int) -> bytes:
            writer.write(request(*about, "accept: application/json, text/event-stream", body=call_body(id)))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            return await reader.readexactly(length)

        yield call
        writer.close()


ROADS: dict[str, Callable[[Server], Any]] = {
    "stdio": over_stdio,
    "HTTP": over_http,
}


async def walk_of(road: str) -> Walk:
    """The walk of one call behind a few that warm everything up."""
    server, walks = walking_server()
    async with ROADS[road](server) as call:
        for id in range(WARM_UP):
            await call(id)
        walk = Walk()
        walks.append(walk)
        sys.setprofile(walk.step)
        try:
            reply = json.loads(await call(WARM_UP))
        finally:
            sys.setprofile(None)
    assert reply["result"]["content"][0]["text"] == "3"
    return walk


def section(walks: dict[str, Walk]) -> str:
    """The section of ARCHITECTURE.md that shows the walks."""
    lines = "\n".join(f"- **{road}**, {len(walk.files)} files: {walk}" for road, walk in walks.items())
    return f"""{HEADING}
The transport makes a line or an HTTP request of bytes, and `core/messages` a message. The session checks that it may
come now, and the offer that it brings says which extensions are active (`lifecycle`). It starts the handler that the
composition has for the method; if there's no room, the call waits in `core/call`. `tools` finds the tool that this
caller may see, and the stages that concern it check the caller. `binding` checks the arguments, `function` injects the
others and calls the author's function (deadlines: `serve/asyncio_engine`), `results` packs what it returned. The reply
goes back through the session to the transport.

Below: the files that one `tools/call` of the stateless era visits, in the order of the first visit. Everything is warm:
the head of the request came before, and so did the offer. Over HTTP such a request has a session of its own; `tools`
comes before it, as arguments that are repeated as headers must agree. `spare_tasks` are eager tasks for Python 3.11.
`tests/test_walks.py` holds the numbers; `python -m tests.walks` writes this section.

{lines}
"""


def write(walks: dict[str, Walk]) -> None:
    """Put the section into ARCHITECTURE.md, in the place of the one that is there."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEADING)
    _, mark, after = rest.partition("\n## ")
    PAGE.write_text(f"{before.rstrip()}\n\n{section(walks)}{mark}{after}", encoding="utf-8")


if __name__ == "__main__":
    write({road: asyncio.run(walk_of(road)) for road in ROADS})
