"""Coordination (MGP §10.1): a server that finds who can do a task behind a kernel, and has it done.

`KERNEL_URL` is the kernel's address and `KERNEL_TOKEN` a key for it. The kernel decides what this key may find and use.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from defserve import Context, Server, ToolError
from defserve.client import Client, connect_url


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[Client]:
    link = await connect_url(os.environ["KERNEL_URL"], token=os.environ.get("KERNEL_TOKEN"))
    async with Client(link) as client:
        yield client


server = Server("coordinator", "1.0.0", lifespan=lifespan)


@server.tool
async def delegate(task: str, arguments: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Have the tool that fits a task best do it."""
    kernel: Client = ctx.lifespan
    found = await kernel.call("mgp_tools_discover", query=task, max_results=1)
    if not found["tools"]:
        raise ToolError(f"nobody here can do this: {task}")
    chosen = found["tools"][0]
    result = await kernel.call("mgp_tools_call", name=chosen["name"], arguments=arguments)
    return {"server": chosen["server_id"], "tool": chosen["name"], "result": result}


if __name__ == "__main__":
    server.main()
