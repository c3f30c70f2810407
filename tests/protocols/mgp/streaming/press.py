"""A server that streams, and how its chunks are asked for and heard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from defserve import Context, Image, Limits, Server
from tests.raw import Json, Raw

CHUNK = "notifications/mgp.stream.chunk"
STREAM = {"stream": True}
WORDS = ["one ", "two ", "three"]
PNG = b"\x89PNG\r\n\x1a\n"


class Press(Server):
    """A server that streams. `gate` holds its tools up; `closed` names those that were cleaned up."""

    def __init__(self, limits: Limits | None = None, **options: Any) -> None:
        super().__init__("press", "1", limits=limits, **options)
        self.gate, self.closed, self.printed = asyncio.Event(), list[str](), 0


def press(limits: Limits | None = None, **options: Any) -> Press:
    server = Press(limits, **options)

    @server.tool
    async def words() -> AsyncIterator[str]:
        for word in WORDS:
            yield word

    @server.tool
    def words_in_thread() -> Iterator[str]:
        yield from WORDS

    @server.tool
    async def emitted(ctx: Context) -> str:
        for word in WORDS:
            ctx.emit(word)
        return "done"

    @server.tool
    def emitted_in_thread(ctx: Context) -> str:
        for word in WORDS:
            ctx.emit(word)
        return "done"

    @server.tool
    async def pictured() -> AsyncIterator[str | Image]:
        yield "look: "
        yield Image(PNG)

    @server.tool
    async def streams(ctx: Context) -> bool:
        return ctx.can("stream")

    @server.tool
    async def forever() -> AsyncIterator[str]:
        try:
            while True:
                server.printed += 1
                yield "x" * 100
                await asyncio.sleep(0)
        finally:
            server.closed.append("forever")

    @server.tool
    def forever_in_thread() -> Iterator[str]:
        try:
            while True:
                server.printed += 1
                yield "x" * 100
        finally:
            server.closed.append("forever_in_thread")

    @server.tool
    def emits_forever_in_thread(ctx: Context) -> str:
        while not ctx.cancelled:
            ctx.emit("x" * 100)
        return "never"

    @server.tool
    async def held() -> AsyncIterator[str]:
        for word in WORDS:
            yield word
        await server.gate.wait()
        yield " more"

    @server.tool
    async def many(count: int) -> AsyncIterator[str]:
        for number in range(count):
            server.printed += 1
            yield f"{number},"

    @server.tool
    def many_in_thread(count: int) -> Iterator[str]:
        for number in range(count):
            server.printed += 1
            yield f"{number},"

    @server.tool
    async def worked(ctx: Context) -> str:
        ctx.progress(1, total=4, message="a quarter")
        ctx.progress(3, total=4)
        ctx.progress(2, total=4)
        return "done"

    @server.tool
    async def counted(ctx: Context) -> str:
        ctx.progress(0.5)
        ctx.progress(7)
        return "done"

    @server.tool
    async def echo(text: str) -> str:
        return text

    return server


def of(messages: list[Json], method: str = CHUNK) -> list[Json]:
    return [message["params"] for message in messages if message.get("method") == method]


async def begin(peer: Raw, tool: str, **arguments: Any) -> int:
    return await peer.begin("tools/call", {"name": tool, "arguments": arguments, "_mgp": STREAM})


async def hear(peer: Raw, count: int) -> list[Json]:
    """The next chunks."""
    while len(of(peer.heard)) < count:
        peer.heard.append(json.loads(await peer.link.receive()))
    return of(peer.heard)
