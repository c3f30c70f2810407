"""A server for known callers: API keys (or what ATTACK_AUTH says), a resource to watch, tools that wait and ask."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from defserve import Context, Limits, Server, ToolError, dangerous, safe
from defserve.auth import JWT, ApiKeys, Principal

MARKS, FOLDER = Path(os.environ["ATTACK_MARKS"]), Path(os.environ["ATTACK_FOLDER"])


class Custom:
    """Knows the tokens of a file, as they are now."""

    async def verify(self, token: str) -> Principal | None:
        known = (FOLDER / "tokens").read_text().split()
        return Principal(f"holder-of-{token}") if token in known else None


VERIFIERS = {
    "keys": lambda: ApiKeys(FOLDER / "keys.json"),
    "jwt": lambda: JWT(
        key="the shared secret of the attack suite", algorithms="HS256", audience="attack", issuer="attack", leeway=0
    ),
    "custom": Custom,
}

server = Server(
    "keyed",
    "1",
    limits=Limits(header=2, body=3, question=20),
    auth=VERIFIERS[os.environ.get("ATTACK_AUTH", "keys")](),
    secret="the secret of the attack suite, which is none",
)


noted = server.event_channel("memo.noted")


def mark(word: str) -> None:
    with MARKS.open("a") as file:
        file.write(word + "\n")


@server.tool
@safe
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool
@safe
def who(ctx: Context) -> str:
    """Who is calling."""
    return ctx.principal


@server.tool
@safe
def strong(word: str) -> str:
    """Only strong keys may call it."""
    mark(f"strong:{word}")
    return "strong"


@server.tool
@dangerous("shell.execute")
def erase(word: str) -> str:
    """Has to be confirmed."""
    mark(f"erase:{word}")
    return "erased"


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
    """Asks for a text."""
    return f"hello {await ctx.ask('Your name?', str)}"


@server.tool
@safe
async def slow(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(min(seconds, 30))
    mark("slept")
    return "slept"


@server.tool(task="required")
@safe
async def job(word: str, ctx: Context) -> str:
    """Run as a task, and ask in the middle of it."""
    if not await ctx.confirm("Really?", key="sure"):
        raise ToolError("not confirmed")
    mark(f"job:{word}")
    return "done"


@server.tool
@safe
async def ticking(seconds: float, ctx: Context) -> str:
    """Report progress every tenth of a second."""
    for number in range(int(seconds * 10)):
        ctx.progress(number, seconds * 10)
        await asyncio.sleep(0.1)
    return "ticked"


@server.tool
@safe
def change() -> str:
    """Change the resource that others watch."""
    server.resource_updated("memo://a")
    return "changed"


@server.tool
@safe
def change_secret() -> str:
    """Change the resource that only some may see."""
    server.resource_updated("memo://secret")
    return "changed"


@server.tool
@safe
def note(word: str, everybody: bool, ctx: Context) -> str:
    """Tell those who listen: everybody, or only who calls."""
    noted.emit_now({"word": word}, to=None if everybody else ctx.principal)
    return "noted"


@server.resource("memo://a")
async def memo() -> str:
    """A resource to watch."""
    return "a"


@server.resource("memo://secret", scopes=["secrets:read"])
async def secret() -> str:
    """A resource for who has the scope."""
    return "the secret"
