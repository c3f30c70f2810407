"""The official SDK, version 2."""

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

mcp = MCPServer("Library", instructions="Lends books.")

BOOKS = {"emma": "Jane Austen"}


@mcp.tool()
async def author(title: str, ctx: Context) -> str:
    """Who wrote it."""
    await ctx.log("info", f"looking for {title}")
    if title not in BOOKS:
        raise ToolError(f"There is no {title}.")
    return BOOKS[title]


@mcp.resource("library://{title}")
def book(title: str) -> str:
    return f"{title} by {BOOKS[title]}"


@mcp.prompt()
def review(title: str) -> str:
    return f"Review {title}."


if __name__ == "__main__":
    mcp.run(transport="stdio")
