"""The tools of the servers for strangers. Every tool that runs leaves a mark in a file, which no answer can hide."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from defserve import Context, Server, ToolError, dangerous, safe
from defserve import tool as marked

MARKS = Path(os.environ["ATTACK_MARKS"])


def mark(word: str) -> None:
    with MARKS.open("a") as file:
        file.write(word + "\n")


@marked
@safe
def echo(text: str) -> str:
    """Say it again."""
    return text


@marked(name="mark")
@safe
def mark_tool(word: str) -> str:
    """Leave a mark."""
    mark(word)
    return "marked"


@marked
@dangerous("shell.execute")
def erase(word: str) -> str:
    """Needs a permission that nobody granted, and a confirmation."""
    mark(f"erase:{word}")
    return "erased"


@marked
@dangerous("memory.write")
def wipe(word: str) -> str:
    """Its permission is granted by the operator; a confirmation is still needed."""
    mark(f"wipe:{word}")
    return "wiped"


@marked
@safe
async def sure(word: str, ctx: Context) -> str:
    """Asks for a yes in the middle of the function."""
    if not await ctx.confirm("Really?"):
        raise ToolError("not confirmed")
    mark(f"sure:{word}")
    return "sure"


@marked
@safe
async def ask(ctx: Context) -> str:
    """Asks for a text, which anybody may give."""
    return f"hello {await ctx.ask('Your name?', str)}"


@marked
@safe
async def slow(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(min(seconds, 30))
    return "slept"


@marked
@safe
async def count(n: int, ctx: Context) -> str:
    """Report progress n times."""
    for number in range(min(n, 1000)):
        ctx.progress(number, n)
        await asyncio.sleep(0.05)
    return "counted"


@marked
@safe
def who(ctx: Context) -> str:
    """Who is calling."""
    return ctx.principal


def declare(server: Server) -> Server:
    """Give a server all of them."""
    for function in (echo, mark_tool, erase, wipe, sure, ask, slow, count, who):
        server.include(function)
    return server
