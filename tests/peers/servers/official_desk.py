"""A server of the official Python SDK 1.x that does all it can. Its own interpreter runs it, behind a kernel."""

from __future__ import annotations

import asyncio

from mcp.server.fastmcp import Context, FastMCP
from mcp.types import Completion, SamplingMessage, TextContent
from pydantic import BaseModel

server = FastMCP("desk")
gone: list[str] = []


class Name(BaseModel):
    name: str


@server.tool()
def double(number: int) -> int:
    """Twice as much."""
    return 2 * number


@server.tool()
async def steps(ctx: Context) -> str:
    """Three steps of progress."""
    for step in (1, 2, 3):
        await ctx.report_progress(step, 3)
    return "done"


@server.tool()
async def clean(ctx: Context) -> str:
    """Write into the log what was cleaned."""
    await ctx.info("the desk is clean")
    return "done"


@server.tool()
async def wait(guest: str, ctx: Context) -> str:
    """Wait until the client gives up."""
    await ctx.report_progress(1)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        gone.append(guest)
        raise
    return "never"


@server.tool()
def gave_up() -> str:
    """Whose calls of `wait` were cancelled."""
    return " ".join(gone)


@server.tool()
async def add_drawer(ctx: Context) -> str:
    """Add a tool; its name."""

    def drawer() -> str:
        """What is in the drawer."""
        return "pens"

    server.add_tool(drawer)
    await ctx.session.send_tool_list_changed()
    return "drawer"


@server.tool()
async def greet(ctx: Context) -> str:
    """Ask for a name."""
    return f"hello {(await ctx.elicit('Who are you?', Name)).data.name}"


@server.tool()
async def summarize(ctx: Context) -> str:
    """Let the client's model write."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="Summarize it."))
    return (await ctx.session.create_message([message], max_tokens=50)).content.text


@server.tool()
async def places(ctx: Context) -> str:
    """The client's roots."""
    return " ".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.resource("desk://lamp")
def lamp() -> str:
    """The lamp."""
    return "it is on"


@server.resource("desk://drawers/{number}")
def drawers(number: str) -> str:
    """A drawer by its number."""
    return f"drawer {number}"


@server.prompt()
def letter(to: str) -> str:
    """Write a letter."""
    return f"Write to {to}."


@server.completion()
async def complete(ref: object, argument: object, context: object) -> Completion:
    return Completion(values=[name for name in ("Ann", "Anton", "Bob") if name.startswith(argument.value)])


server.run()
