"""A lifespan, and what it holds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastmcp import Context, FastMCP


class Database:
    def __init__(self) -> None:
        self.rows = {"tea": 3}

    def close(self) -> None:
        self.rows.clear()


@asynccontextmanager
async def lifespan(server: FastMCP) -> AsyncIterator[dict]:
    database = Database()
    try:
        yield {"database": database}
    finally:
        database.close()


mcp = FastMCP("Warehouse", lifespan=lifespan)


@mcp.tool
def left(item: str, ctx: Context) -> int:
    """How many are left."""
    database = ctx.lifespan_context["database"]
    return database.rows.get(item, 0)


@mcp.tool
async def take(item: str, count: int, ctx: Context) -> str:
    """Take some."""
    rows = ctx.request_context.lifespan_context["database"].rows
    rows[item] -= count
    return f"{rows[item]} left"


if __name__ == "__main__":
    mcp.run()
