"""A server for strangers: no tokens. Every tool that runs leaves a mark in a file, which no answer can hide."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from defserve import Context, Limits, Server, ToolError, dangerous, safe

MARKS = Path(os.environ["ATTACK_MARKS"])

# Short times, so that a slow attack is over soon; small tables, so that a flood is.
server = Server(
    "open",
    "1",
    limits=Limits(header=2, body=3, question=20),
    granted=["memory.write"],
)


def mark(word: str) -> None:
    with MARKS.open("a") as file:
        file.write(word + "\n")


@server.tool
@safe
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool(name="mark")
@safe
def mark_tool(word: str) -> str:
    """Leave a mark."""
    mark(word)
    return "marked"


@server.tool
@dangerous("shell.execute")
def erase(word: str) -> str:
    """Needs a permission that nobody granted, and a confirmation."""
    mark(f"erase:{word}")
    return "erased"


@server.tool
@dangerous("memory.write")
def wipe(word: str) -> str:
    """Its permission is granted by the operator; a confirmation is still needed."""
    mark(f"wipe:{word}")
    return "wiped"


@server.tool
@safe
async def sure(word: str, ctx: Context) -> str:
    """Asks for a yes in the middle of the function."""
    if not await ctx.confirm("Really?"):
        raise ToolError("not confirmed")
    mark(f"sure:{word}")
    return "sure"


@server.tool
@safe
async def ask(ctx: Context) -> str:
    """Asks for a text, which anybody may give."""
    return f"hello {await ctx.ask('Your name?', str)}"


@server.tool
@safe
async def slow(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(min(seconds, 30))
    return "slept"


@server.tool
@safe
async def count(n: int, ctx: Context) -> str:
    """Report progress n times."""
    for number in range(min(n, 1000)):
        ctx.progress(number, n)
        await asyncio.sleep(0.05)
    return "counted"


@server.tool
@safe
def who(ctx: Context) -> str:
    """Who is calling."""
    return ctx.principal


@server.resource("memo://a")
async def memo() -> str:
    """A resource to watch."""
    return "a"
