"""A server of FastMCP 4.x that does all it can. Its own interpreter runs it, behind a kernel."""

from __future__ import annotations

from desk_items import NAMES, declare, drawer
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
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


declare(server, Context)


@server.tool
async def add_drawer(ctx: Context) -> str:
    """Add a tool; its name."""
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


@server.completion
def complete(ref: object, argument: object, context: object) -> list[str]:
    return [name for name in NAMES if name.startswith(argument.value)]


server.run(show_banner=False)
