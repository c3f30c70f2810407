"""A calculator: the first program of every tutorial."""

from fastmcp import FastMCP

# One server for all tools.
mcp = FastMCP("Calculator 🧮")


@mcp.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b  # no more than that


@mcp.tool()
async def scale(value: float, factor: float = 2.0) -> float:
    """Multiply a number."""
    return value * factor


@mcp.tool(name="join_words", description="Join words with a separator.")
def join(words: list[str], separator=" ") -> str:
    return separator.join(words)


if __name__ == "__main__":
    mcp.run()
