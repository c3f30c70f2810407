"""A server that nginx stands in front of. Its progress has to arrive while it works, not all at once at the end."""

import asyncio
from typing import Annotated

from defserve import Context, Server, safe

server = Server("kitchen", "1.0.0")


@server.tool
@safe
async def bake(cakes: Annotated[int, "How many."], ctx: Context) -> str:
    """Bake cakes, one after the other."""
    for _ in ctx.track(range(cakes)):
        await asyncio.sleep(0.01)
    return f"{cakes} cakes are ready"


if __name__ == "__main__":
    server.main()
