"""Logging and progress."""

import asyncio

from fastmcp import Context, FastMCP

mcp = FastMCP("Importer", mask_error_details=True)


@mcp.tool
async def load(rows: list[str], ctx: Context) -> str:
    """Load rows."""
    await ctx.info(f"loading {len(rows)} rows")
    done = 0
    for row in rows:
        if not row:
            await ctx.warning("an empty row")
            continue
        done += 1
        await ctx.report_progress(progress=done, total=len(rows))
    await ctx.debug("done")  # for whoever looks
    return f"{done} loaded"


@mcp.tool
async def peek(rows: list[str], limit: int = 1, context: Context | None = None) -> list[str]:
    """The first rows."""
    if context is not None:
        await context.log("only looking", level="debug")
    return rows[:limit]


def main() -> None:
    asyncio.run(mcp.run_async())


if __name__ == "__main__":
    main()
