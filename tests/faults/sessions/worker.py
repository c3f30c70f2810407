"""One of several processes of a server that share sessions: `python -m tests.faults.sessions.worker ADDRESS`.

It prints where it is. Its lease is short, so that the others soon know that it was killed.
"""

from __future__ import annotations

import asyncio
import sys

from defserve import Context, Server
from defserve.stores.shared import link
from defserve.transports.http.shared import session
from tests.at_address import at_address

LEASE = 1.5


def made(address: str) -> Server:
    server = Server("shared", "1", shared=address, secret="s" * 32)

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def count(total: int, ctx: Context) -> str:
        """Say the numbers up to a total, one after the other."""
        for number in range(total):
            ctx.log.info(str(number))
            await asyncio.sleep(0.01)
        return f"{total} counted"

    @server.tool
    async def ask(ctx: Context) -> str:
        return await ctx.ask("what?", str)

    @server.tool
    async def touch(uri: str) -> str:
        server.resource_updated(uri)
        return uri

    @server.resource("memo://{name}")
    async def memo(name: str) -> str:
        return name

    return server


async def main(address: str) -> None:
    link.LEASE, link.BEAT, session.LEASE = LEASE, LEASE / 4, LEASE  # type: ignore[misc]
    async with at_address(made(address)) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
