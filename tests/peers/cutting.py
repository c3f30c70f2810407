"""A way to a server that cuts the connection of a call once, in the middle of its stream, as a bad network would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


@asynccontextmanager
async def cutting(url: str) -> AsyncGenerator[str]:
    """Another address of the server at `url`. Of each client, it cuts one stream: the first that carries progress."""
    where = urlsplit(url)
    cut_for: set[bytes] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = await asyncio.open_connection(where.hostname, where.port)
        session = b""

        async def up() -> None:
            nonlocal session
            while data := await reader.read(65536):
                session = _session(data) or session
                to_server[1].write(data)
                await to_server[1].drain()

        async def down() -> None:
            while data := await to_server[0].read(65536):
                writer.write(data)
                await writer.drain()
                if b"notifications/progress" in data and session not in cut_for:
                    cut_for.add(session)
                    return

        tasks = [asyncio.create_task(up()), asyncio.create_task(down())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in (writer, to_server[1]):
                one.close()

    async with await asyncio.start_server(carry, "127.0.0.1", 0) as listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}{where.path}"


def _session(head: bytes) -> bytes:
    """The session a request belongs to, by its header; empty without one."""
    _, found, rest = head.lower().partition(b"mcp-session-id:")
    return rest.partition(b"\r\n")[0].strip() if found else b""
