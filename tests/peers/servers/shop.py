"""The server that peers are tried on: one small thing for each feature. SHOP_TOKEN makes it ask for that token."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, time, timedelta
from itertools import count

from pydantic import BaseModel, Field

from defserve import Assistant, Context, Message, Server, ToolError, User
from defserve.auth import StaticTokens

TOKEN = os.environ.get("SHOP_TOKEN")

server = Server("shop", "1.0.0", auth=StaticTokens({TOKEN: "ann"}) if TOKEN else None)
gone: list[str] = []
visits = count(1)


class Line(BaseModel):
    item: str
    price: float = Field(gt=0)
    quantity: int = 1


class Bill(BaseModel):
    lines: int
    total: float


class Guest(BaseModel):
    name: str = Field(min_length=1)
    nights: int = Field(1, ge=1)


class Crate(BaseModel):
    """A crate, and the crates in it."""

    weight: float = Field(gt=0)
    label: str | None = None
    contents: list[Line] = []
    crates: list[Crate] = []


class Hours(BaseModel):
    opens: time
    last_order: datetime
    break_length: timedelta


@server.tool
def hours() -> Hours:
    """When the shop is open, by the clock on its wall."""
    return Hours(opens=time(8, 30), last_order=datetime(2026, 11, 17, 21, 45), break_length=timedelta(minutes=45))


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
def bill(order: list[Line]) -> Bill:
    """Add up an order."""
    return Bill(lines=len(order), total=sum(line.price * line.quantity for line in order))


@server.tool
def weigh(crate: Crate) -> str:
    """Weigh a crate with all that are in it."""
    waiting, weights = [crate], list[float]()
    while waiting:
        one = waiting.pop()
        weights.append(one.weight)
        waiting += one.crates
    return f"{len(weights)} crates of {sum(weights):g} kg"


@server.tool
def primes() -> list[int]:
    """The first primes."""
    return [2, 3, 5]


@server.tool
def find(name: str) -> Bill | None:
    """Find a bill that is not there."""
    return None


@server.tool
def withdraw(amount: int) -> str:
    """Take money from an account that holds 100."""
    if amount > 100:
        raise ToolError("only 100 are left: ask for less")
    return f"{amount} withdrawn"


@server.tool
async def count_to(last: int, ctx: Context) -> str:
    """Count, and tell how far it got. The result follows the last step at once."""
    for number in range(1, last + 1):
        ctx.progress(number, last)
    return f"counted to {last}"


@server.tool
async def cook(seconds: float, ctx: Context) -> str:
    """Cook a meal: one step, a pause, another step, and the meal."""
    ctx.progress(1, 2)
    await asyncio.sleep(seconds)
    ctx.progress(2, 2)
    return "served"


@server.tool
async def check_in(ctx: Context) -> str:
    """Ask for several fields in one form."""
    guest = await ctx.ask("Who are you?", Guest)
    return f"{guest.name} stays {guest.nights} nights"


@server.tool
async def summarize(text: str, ctx: Context) -> str:
    """Let the client's model write."""
    return (await ctx.sample(f"Summarize: {text}", max_tokens=50)).text


@server.tool
def whoami(ctx: Context) -> str:
    """The caller's name."""
    return ctx.principal


@server.tool
def clean(ctx: Context) -> str:
    """Write into the log what was cleaned."""
    ctx.log.info("the shop is clean")
    return "done"


@server.tool
async def places(ctx: Context) -> list[str]:
    """The client's roots."""
    return [root.uri for root in await ctx.roots()]


@server.tool
async def wait(guest: str, ctx: Context) -> str:
    """Wait until the client gives up."""
    ctx.progress(1)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        gone.append(guest)
        raise
    return "never"


@server.tool
def gave_up() -> str:
    """Whose calls of `wait` were cancelled."""
    return " ".join(gone)


@server.tool
def invite() -> str:
    """Add a prompt; its name."""
    name = f"visit_{next(visits)}"

    def visit() -> str:
        return f"This is {name}."

    server.add_prompt(visit, name=name)
    return name


@server.tool
def decorate() -> str:
    """Change the word of welcome."""
    server.resource_updated("text://welcome")
    return "decorated"


@server.resource("note://{name}")
def note(name: str) -> str:
    """A note by its name."""
    return f"buy {name}"


@server.resource("text://welcome")
def welcome() -> str:
    """A word of welcome."""
    return "Welcome!"


@server.prompt
def debate(topic: str) -> list[Message]:
    """Start a debate."""
    return [User(f"Let us debate {topic}."), Assistant("Gladly. You begin.")]


@server.completion("debate", "topic")
def topics(value: str) -> list[str]:
    return [topic for topic in ("tables", "tabs", "tea") if topic.startswith(value)]


if __name__ == "__main__":
    server.main()
