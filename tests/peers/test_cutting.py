from __future__ import annotations

import asyncio

import pytest

from tests.peers.cutting import cutting

pytestmark = pytest.mark.anyio

STEP = b"event: message\ndata: notifications/progress\n\n"


async def test_the_first_stream_with_progress_is_cut_and_the_next_one_is_whole():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STEP)
        await writer.drain()
        # The rest comes when the client asks for it, which a cut client cannot.
        if await reader.read(1):
            writer.write(b"the rest")
            await writer.drain()
        writer.close()

    async def asked(address: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rsplit(":", 1)[1].partition("/")[0]))
        writer.write(b"POST / HTTP/1.1\r\nMcp-Session-Id: one\r\n\r\n")
        got = await reader.readexactly(len(STEP))
        writer.write(b".")
        try:
            return got + await reader.read()
        except ConnectionError:
            return got
        finally:
            writer.close()

    async with asyncio.timeout(30), await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with cutting(f"http://127.0.0.1:{port}/mcp") as address:
            assert await asked(address) == STEP
            assert await asked(address) == STEP + b"the rest"
