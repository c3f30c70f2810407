"""Dependencies."""

from fastmcp import FastMCP
from fastmcp.dependencies import CurrentContext, Depends
from fastmcp.server.context import Context

mcp = FastMCP("Wired")


def rates() -> dict[str, float]:
    return {"USD": 1.1}


@mcp.tool
def convert(amount: float, currency: str, table: dict[str, float] = Depends(rates)) -> float:
    """Convert euros."""
    return amount * table[currency]


@mcp.tool
async def noted(text: str, ctx: Context = CurrentContext()) -> str:
    """Note something."""
    await ctx.info(text)
    return text.upper()


if __name__ == "__main__":
    mcp.run()
