"""Run by the rows as a process of its own: a server that writes an audit log, and asks."""

from __future__ import annotations

import os

from defserve import Context, Server, dangerous, safe

server = Server("keeping", "1", audit=os.environ["CHAOS_AUDIT"], granted=["memory.write"])


@server.tool
@safe
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool
@dangerous("memory.write")
def wipe() -> str:
    """What must be written down before it happens."""
    return "wiped"


@server.tool
@safe
async def ask(ctx: Context) -> str:
    """Ask for a name."""
    return f"hello {await ctx.ask('Your name?', str)}"


if __name__ == "__main__":
    server.main()
