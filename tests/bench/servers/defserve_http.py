"""defserve over HTTP as its documentation shows it, and a tool that lets idle memory be weighed without garbage."""

import gc
import sys

from shapes import tools_of

from defserve import Context, Limits, Server

# Room for more sessions than the 10,000 that are weighed, which is also the default.
server = Server("bench", limits=Limits(sessions=20_000, sessions_per_address=20_000))
for function, kind in tools_of("calls"):
    server.tool(inline=kind == "inline")(function)


@server.tool(inline=True)
def collect_garbage() -> int:
    """Collect garbage."""
    return gc.collect()


@server.tool
async def add_and_tell(a: int, b: int) -> int:
    """Add two integers, and tell those who want to know that a resource has changed."""
    server.resource_updated("memo://sum")
    return a + b


@server.tool
async def add_and_say(a: int, b: int, ctx: Context) -> int:
    """Add two integers, and say so before the result."""
    ctx.log.warning("adding")
    return a + b


if __name__ == "__main__":
    on = f"http://127.0.0.1:{sys.argv[1]}/mcp"
    if len(sys.argv) > 2:
        server.shared = sys.argv[3] if len(sys.argv) > 3 else None
        server.run(on, workers=sys.argv[2], stateless=server.shared is None)
    else:
        server.run(on)
