"""A server for a cluster: it says when it is ready, and finishes its calls before its pod ends."""

import asyncio
import os
from typing import Annotated

from defserve import Context, Limits, Server, safe

server = Server("bakery", "1.0.0", store=os.environ.get("STORE", "memory:"), limits=Limits(drain=20))


@server.tool
@safe
async def bake(seconds: Annotated[int, "How long it takes."], ctx: Context) -> str:
    """Bake a cake, which may take a while."""
    for _ in ctx.track(range(seconds)):
        await asyncio.sleep(1)
    return "the cake is ready"


if __name__ == "__main__":
    server.main()
