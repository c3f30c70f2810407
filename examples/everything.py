"""One of each: a tour of all that a server can offer, with the smallest natural function for each idea."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, Field

from defserve import Assistant, Context, Depends, Icon, Image, Message, Server, ToolError, User

# A picture of one pixel.
DOT = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABAQAAAAA3bvkkAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg==")


# The server: who it is, and what has to be there while it runs (tools see it as `ctx.lifespan`).
@asynccontextmanager
async def opening_hours(server: Server) -> AsyncGenerator[dict[str, str]]:
    yield {"motto": "write a def, serve it"}


server = Server(
    "everything",
    "1.0.0",
    title="Everything",
    description="One of each",
    website_url="https://example.com/everything",
    instructions="Try any tool: nothing here does harm.",
    icons=[Icon("https://example.com/dot.png", mime_type="image/png", sizes=["48x48"])],
    lifespan=opening_hours,
)


# Tools: a sync function runs in a thread, a quick pure one may run inline, an async one on the loop.
@server.tool
def motto(ctx: Context) -> str:
    """The server's motto."""
    return ctx.lifespan["motto"]


@server.tool(inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def sleep(seconds: Annotated[float, Field(ge=0, le=60, description="How long")]) -> str:
    """Wait, then say so."""
    await asyncio.sleep(seconds)
    return "awake"


@server.tool(timeout=0.05)
async def oversleep() -> None:
    """Never comes back by itself; its timeout answers."""
    await asyncio.sleep(60)


# All that a client may want to show or know about a tool.
@server.tool(
    title="Roll a die",
    annotations={"readOnlyHint": True, "openWorldHint": False},
    icons=["https://example.com/die.png"],
    meta={"example.com/fair": True},
)
def roll() -> int:
    """Roll a die that has seen better days."""
    return 4


# Types in and out: models, dataclasses, typed dicts, enums and literals.
class Line(BaseModel):
    item: str
    price: float = Field(gt=0)
    quantity: int = 1


class Bill(BaseModel):
    lines: int
    total: float


@server.tool
def bill(order: list[Line]) -> Bill:
    """Add up an order."""
    return Bill(lines=len(order), total=sum(line.price * line.quantity for line in order))


@dataclass
class Point:
    x: float
    y: float


@server.tool
def midpoint(a: Point, b: Point) -> Point:
    """The point halfway between two."""
    return Point((a.x + b.x) / 2, (a.y + b.y) / 2)


class Weather(TypedDict):
    city: str
    degrees: float


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


@server.tool
def weather(city: str, unit: Unit = Unit.CELSIUS, round_to: Literal[0, 1] = 0) -> Weather:
    """The weather, which is always fine."""
    return {"city": city, "degrees": round(21.25 if unit is Unit.CELSIUS else 70.25, round_to)}


# Failing: what the model can act on is a ToolError; anything else reaches it only as an error id.
@server.tool
def withdraw(amount: int) -> str:
    """Take money from an account that holds 100."""
    if amount > 100:
        raise ToolError("only 100 are left: ask for less")
    return f"{amount} withdrawn"


@server.tool
def stumble() -> str:
    """Fails in a way nobody foresaw."""
    raise RuntimeError("the secret is 1234")


# Long work: progress, log messages, and parts that are sent as they come (every kind of part: `content.py`).
@server.tool
async def count_to(last: int, ctx: Context) -> str:
    """Count, and tell how far it got."""
    ctx.progress(0, last, "ready")
    for number in ctx.track(range(1, last + 1)):
        ctx.log.info("counted", number=number)
        ctx.log.debug("nobody reads this")
    return f"counted to {last}"


@server.tool
def recite(ctx: Context) -> str:
    """Send parts on the way; what is returned comes last."""
    ctx.emit("first")
    ctx.emit(Image(DOT))
    return "last"


@server.tool
async def spell(word: str) -> AsyncIterator[str]:
    """Send a word letter by letter."""
    for letter in word:
        yield letter


# Dependencies: made for one call, given back when it ends, and not part of the schema.
free_lanes = [2, 1]


def take_lane() -> Iterator[int]:
    lane = free_lanes.pop()
    try:
        yield lane
    finally:
        free_lanes.append(lane)


@server.tool
def swim(lane: Annotated[int, Depends(take_lane)], fail: bool = False) -> str:
    """Swim in a lane of one's own."""
    if fail:
        raise ToolError("cramp: rest a while")
    return f"lane {lane}"


# Resources: text, bytes and JSON under a URI; a template serves many. Subscribers hear of updates.
@server.resource("text://welcome", title="Welcome", annotations={"audience": ["user"], "lastModified": "2026-07-28"})
def welcome() -> str:
    """A word of welcome."""
    return "Welcome!"


@server.resource("image://dot", mime_type="image/png", size=len(DOT), icons=["https://example.com/dot.png"])
def dot() -> bytes:
    """The picture's bytes."""
    return DOT


@server.resource("config://settings", ttl=60, meta={"example.com/owner": "ops"})
def settings() -> dict[str, Any]:
    """Settings, as JSON."""
    return {"colour": "green", "level": 3}


notes = {"milk": "buy some"}


@server.resource("note://{name}", mime_type="text/markdown")
def note(name: str) -> str:
    """A note by its name."""
    return notes.get(name, "(empty)")


@server.tool
def write_note(name: str, text: str) -> str:
    """Change a note and tell who watches it."""
    notes[name] = text
    server.resource_updated(f"note://{name}")
    return "written"


# Prompts: a text, several messages, a picture. Literals complete themselves; other arguments get a function.
@server.prompt(title="Greeting")
def greet(name: str, tone: Literal["warm", "formal"] = "warm") -> str:
    """Greet somebody.

    Args:
        name: Whom to greet.
    """
    return f"Write a {tone} greeting for {name}."


@server.prompt
def debate(topic: str, rounds: int = 1) -> list[Message]:
    """Start a debate."""
    return [User(f"Let us debate {topic}, {rounds} rounds."), Assistant("Gladly. You begin.")]


@server.prompt
def look() -> list[str | Image]:
    """Show a picture and ask about it."""
    return ["What is this?", Image(DOT)]


@server.completion("greet", "name")
def people(value: str, tone: str | None) -> list[str]:
    names = ["Ms Ada", "Mr Alan"] if tone == "formal" else ["Ada", "Alan", "Grace"]
    return [name for name in names if name.startswith(value)]


@server.completion("note://{name}", "name")
def note_names(value: str) -> list[str]:
    return [name for name in sorted(notes) if name.startswith(value)]


# Asking the person, the model and the client: straight-line code for both eras. More of it is in `asking.py`.
class Guest(BaseModel):
    name: str = Field(min_length=1)
    nights: int = Field(1, ge=1, description="How long you stay")


@server.tool
async def check_in(ctx: Context) -> str:
    """Ask for several fields in one form."""
    guest = await ctx.ask("Who are you?", Guest)
    return f"{guest.name} stays {guest.nights} nights"


@server.tool
async def summarize(text: str, ctx: Context) -> str:
    """Let the client's model write."""
    return (await ctx.sample(f"Summarize: {text}", max_tokens=50, system="Be brief.")).text


@server.tool
async def workplaces(ctx: Context) -> list[str]:
    """Where the client lets the server work."""
    return [root.uri for root in await ctx.roots()]


# Growing while serving: clients are told that the list of tools has changed.
@server.tool
def learn(word: str) -> str:
    """Add a tool that says a word."""

    def say() -> str:
        return word

    server.add_tool(say, name=f"say_{word}", description=f"Say {word}.")
    return f"say_{word}"


@server.tool
def forget(word: str) -> str:
    """Remove that tool again."""
    server.remove_tool(f"say_{word}")
    return f"forgot {word}"


if __name__ == "__main__":
    server.main()
