"""A workshop: tools that run as tasks, that ask amid their work, that fail, and one that is quick."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from defserve import Context, Server, ToolError
from defserve.errors import ProtocolError


class Sure(BaseModel):
    confirm: bool
    why: str = "because"


def workshop() -> tuple[Server, asyncio.Event]:
    """The server, and what its slow tools wait for."""
    server, go_on = Server("workshop", "2.0.0"), asyncio.Event()

    @server.tool(task="optional", ttl=3600, poll=0.05)
    async def rebuild(index: str, ctx: Context) -> dict[str, object]:
        """Rebuild a search index. It takes a while.

        Args:
            index: Which one.
        """
        ctx.progress(1, 4, "reading 1 of 4")
        await go_on.wait()
        return {"index": index, "documents": 412}

    @server.tool(task="required", ttl=600, poll=0.05)
    async def clean(ctx: Context) -> str:
        """Delete what is old, after a question."""
        sure = await ctx.ask("Delete 12 documents?", Sure)
        if not sure.confirm:
            raise ToolError("Nothing was deleted.")
        return f"12 deleted, {sure.why}"

    @server.tool(task="required", poll=0.05)
    async def broken() -> str:
        """Ends with an error of the protocol."""
        raise ProtocolError("the disk is full", code=-32005, data={"disk": "sda"})

    @server.tool
    async def quick() -> int:
        """Answers at once."""
        return 7

    assert [rebuild, clean, broken, quick]
    return server, go_on
