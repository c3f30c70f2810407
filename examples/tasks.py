"""Tools that run as tasks: the client gets an id at once and asks later how far the task is, in any process.

With `TASKS_STORE=sqlite:///tasks.db` (or `redis://…`) all processes on that store tell about the same tasks. A client
in a session, and one that takes no tasks, gets plain calls.
"""

import asyncio
import os
from itertools import count

from pydantic import BaseModel

from defserve import Context, Server, ToolError

server = Server("tasks", "1.0.0", store=os.environ.get("TASKS_STORE"))

BOOKS = ["Emma", "Persuasion", "Sanditon", "Lady Susan"]
STEP_SECONDS = 0.02


class Sure(BaseModel):
    confirm: bool


@server.tool(task="optional", ttl=600, poll=0.1)
async def rebuild(index: str, ctx: Context) -> str:
    """Rebuild a search index, if the person agrees."""
    if not (await ctx.ask(f"Rebuild {index} with {len(BOOKS)} documents?", Sure)).confirm:
        raise ToolError("Nothing was changed.")
    for _ in ctx.track(BOOKS):  # becomes the status message: "1 of 4"
        await asyncio.sleep(STEP_SECONDS)
    return f"{len(BOOKS)} documents in {index}"


@server.tool(task="required", ttl=600, poll=0.1)
def watch(minutes: float, ctx: Context) -> str:
    """Watch a folder for a while, in a thread. Clients that take no tasks are refused, except in a session."""
    for _ in range(round(minutes * 60 / STEP_SECONDS)):
        if ctx.cancelled:
            return "stopped"
        ctx.wait(asyncio.sleep(STEP_SECONDS))
    return "nothing happened"


invoices = count(1)


@server.tool(task="required", ttl=600, poll=0.1, retry=2)
async def bill(customer: str, ctx: Context) -> str:
    """Write an invoice. If this process dies, another runs it again; the number is drawn once all the same."""
    number = await ctx.once("number", lambda: next(invoices))
    if ctx.task is not None:
        ctx.task.say(f"writing invoice {number}")
    await asyncio.sleep(STEP_SECONDS)
    return f"invoice {number} for {customer}"


@server.tool(task="required", ttl=600, poll=0.1, begin="later")
async def travel(ctx: Context) -> str:
    """Ask first, as any tool does. Only then a task begins."""
    city = await ctx.ask("Where to?", str)
    if ctx.task is not None:
        await ctx.task.begin()
    await asyncio.sleep(STEP_SECONDS)
    return f"in {city}"


if __name__ == "__main__":
    server.main()
