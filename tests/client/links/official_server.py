"""A server of the official SDK, for the host to talk to."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from pydantic import BaseModel

server = MCPServer("official")


class Name(BaseModel):
    name: str


def ask_name() -> Elicit[Name]:
    return Elicit("Who?", Name)


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def work(ctx: Context) -> str:
    """Report progress and say hello."""
    for step in range(3):
        await ctx.report_progress(step, 3)
    await ctx.info("hello")
    return "done"


@server.tool()
async def greet(name: Annotated[Name, Resolve(ask_name)]) -> str:
    """Ask for a name."""
    return f"hello {name.name}"


@server.resource("note://a")
def note() -> str:
    """A note."""
    return "note a"


@server.prompt()
def hi(name: str) -> str:
    """Say hi."""
    return "hi " + name


if __name__ == "__main__":
    server.run()
