"""A server that another one mounts. Its tool asks, and writes down each time it does."""

from __future__ import annotations

import sys
from pathlib import Path

from defserve import Context, Server

server = Server("backend", "1")


@server.tool
def greet(ctx: Context, log: str) -> dict[str, str]:
    name = ctx.wait(ctx.ask("Who is ada?", str))
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(f"greeted {name}\n")
    return {"hello": name}


if __name__ == "__main__":
    sys.exit(server.main())
