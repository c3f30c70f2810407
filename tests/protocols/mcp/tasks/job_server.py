"""Run by the tests as a process of its own: tasks that take as long as they are told."""

from __future__ import annotations

import asyncio
import os

from defserve import Context, Limits, Server

server = Server("jobs", "1", store=os.environ.get("JOBS_STORE"), limits=Limits(drain=2, task_heartbeat=1))


@server.tool(task="required", poll=0.05)
async def wait(seconds: float) -> str:
    """Take some time."""
    await asyncio.sleep(seconds)
    return "done"


@server.tool(task="required", poll=0.05, retry=1)
async def again(seconds: float, ctx: Context) -> str:
    """Take some time at first, and none if it is run again."""
    await asyncio.sleep(seconds if ctx.task is not None and ctx.task.retries else 0)
    return "done"


if __name__ == "__main__":
    server.main()
