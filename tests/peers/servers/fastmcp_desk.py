"""A server of FastMCP 4.x that does all it can. Its own interpreter runs it, behind a kernel."""

from __future__ import annotations

import asyncio

from fastmcp import Context, FastMCP
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
    ToolListChangedNotification,
)

server = FastMCP("desk")
gone: list[str] = []
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@server.tool
def double(number: int) -> int:
    """Twice as much."""
    return 2 * number


@server.tool
async def steps(ctx: Context) -> str:
    """Three steps of progress."""
    for step in (1, 2, 3):
        await ctx.report_progress(step, 3)
    return "done"


@server.tool
async def clean(ctx: Context) -> str:
    """Write into the log what was cleaned."""
    await ctx.info("the desk is clean")
    return "done"


@server.tool
async def wait(guest: str, ctx: Context) -> str:
    """Wait until the client gives up."""
    await ctx.report_progress(1)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        gone.append(guest)
        raise
    return "never"


@server.tool
def gave_up() -> str:
    """Whose calls of `wait` were cancelled."""
    return " ".join(gone)


@server.tool
async def add_drawer(ctx: Context) -> str:
    """Add a tool; its name."""

    def drawer() -> str:
        """What is in the drawer."""
        return "pens"

    server.add_tool(drawer)
    await ctx.send_notification(ToolListChangedNotification())
    return "drawer"


@server.tool
async def greet(ctx: Context) -> str | InputRequiredResult:
    """Ask for a name."""
    if ctx.input_responses is None:
        form = ElicitRequestFormParams(message="Who are you?", requested_schema=NAME)
        return InputRequiredResult(input_requests={"who": ElicitRequest(params=form)})
    return f"hello {ctx.input_responses['who'].content['name']}"


@server.tool
async def summarize(ctx: Context) -> str | InputRequiredResult:
    """Let the client's model write."""
    if ctx.input_responses is None:
        message = SamplingMessage(role="user", content=TextContent(type="text", text="Summarize it."))
        asked = CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=50))
        return InputRequiredResult(input_requests={"text": asked})
    return ctx.input_responses["text"].content.text


@server.tool
async def places(ctx: Context) -> str | InputRequiredResult:
    """The client's roots."""
    if ctx.input_responses is None:
        return InputRequiredResult(input_requests={"roots": ListRootsRequest()})
    return " ".join(str(root.uri) for root in ctx.input_responses["roots"].roots)


@server.resource("desk://lamp")
def lamp() -> str:
    """The lamp."""
    return "it is on"


@server.resource("desk://drawers/{number}")
def drawers(number: str) -> str:
    """A drawer by its number."""
    return f"drawer {number}"


@server.prompt
def letter(to: str) -> str:
    """Write a letter."""
    return f"Write to {to}."


@server.completion
def complete(ref: object, argument: object, context: object) -> list[str]:
    return [name for name in ("Ann", "Anton", "Bob") if name.startswith(argument.value)]


server.run(show_banner=False)
