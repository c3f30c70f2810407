"""Pictures and mixed content."""

import base64

from fastmcp import FastMCP
from fastmcp.utilities.types import Image
from mcp.types import TextContent

mcp = FastMCP("Pictures")

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


@mcp.tool
def dot() -> Image:
    """One dot."""
    return Image(data=DOT, format="png")


@mcp.tool
def captioned(text: str) -> list:
    """A dot with a caption."""
    return [TextContent(type="text", text=text), Image(data=DOT, format="png")]


if __name__ == "__main__":
    mcp.run()
