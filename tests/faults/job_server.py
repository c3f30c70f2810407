"""Run by the tests as a process of its own: jobs that run as tasks, and write down when they begin and end."""

from __future__ import annotations

import asyncio
import os

from defserve import Context, Limits, Server

HEARTBEAT_SECONDS = float(os.environ.get("JOBS_HEARTBEAT", "0.5"))
RETRIES = 50

server = Server(
    "jobs",
    "1",
    store=os.environ.get("JOBS_STORE"),
    limits=Limits(task_heartbeat=HEARTBEAT_SECONDS, tasks=100_000, in_flight=500),
)


def note(line: str) -> None:
    # One write to a file that is only appended to: lines of several processes do not mix.
    file = os.open(os.environ["JOBS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


@server.tool(task="required")
async def once(name: str, seconds: float) -> str:
    """Run once, whatever happens."""
    note(f"begin {name}")
    await asyncio.sleep(seconds)
    note(f"end {name}")
    return name


@server.tool(task="required", retry=RETRIES)
async def again(name: str, seconds: float, ctx: Context) -> str:
    """Run until it comes to its end."""
    note(f"begin {name}")
    is_first = ctx.task is not None and ctx.task.retries == RETRIES
    await asyncio.sleep(seconds if is_first else seconds % 0.5)
    note(f"end {name}")
    return name


if __name__ == "__main__":
    server.main()
