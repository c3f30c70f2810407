"""The official SDK, version 1."""

from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.prompts import base

mcp = FastMCP("Weather", host="127.0.0.1", port=9001, stateless_http=True, json_response=True)


@mcp.tool()
async def forecast(city: str, ctx: Context) -> str:
    """Tomorrow's weather."""
    await ctx.info(f"asked for {city}")
    await ctx.report_progress(1, 1)
    return f"sun in {city}"


@mcp.tool(title="Degrees", structured_output=False)
def degrees(city: str) -> dict[str, int]:
    """The temperature."""
    return {"celsius": len(city)}


@mcp.resource("weather://{city}/now")
def now(city: str) -> str:
    """The weather now."""
    return f"rain in {city}"


@mcp.prompt(title="Dress")
def dress(city: str) -> list[base.Message]:
    return [
        base.UserMessage(f"I am going to {city}."),
        base.AssistantMessage("What do you own?"),
    ]


if __name__ == "__main__":
    mcp.run(transport="streamable-http")
