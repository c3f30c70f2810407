"""A server of the official Python SDK 1.x that does all it can. Its own interpreter runs it, behind a kernel."""

from __future__ import annotations

from desk_items import NAMES, declare, drawer
from mcp.server.fastmcp import Context, FastMCP
from mcp.types import Completion, SamplingMessage, TextContent
from pydantic import BaseModel

server = FastMCP("desk")


class Name(BaseModel):
    name: str


declare(server, Context)


@server.tool()
async def add_drawer(ctx: Context) -> str:
    """Add a tool; its name."""
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


@server.completion()
async def complete(ref: object, argument: object, context: object) -> Completion:
    return Completion(values=[name for name in NAMES if name.startswith(argument.value)])


server.run()
