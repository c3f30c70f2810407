"""A library: resources of every kind, prompts, and tools that ask their caller something."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from defserve import Assistant, Context, Image, Link, Message, Server, User
from tests.inspector.greenhouse import day_picture

BOOKS = {"emma": "Emma Woodhouse, handsome, clever, and rich", "ulysses": "Stately, plump Buck Mulligan"}
COUNTRIES = {"Norway": ["Oslo", "Bergen"], "Italy": ["Rome", "Ostia"]}
COUNT = "library://count"


class Guest(BaseModel):
    name: str = Field(min_length=2, description="As on your passport.")
    age: int = Field(ge=0, le=150)
    room: Literal["reading", "music"] = "reading"


def library() -> Server:
    """A library of its own, so that no test changes what another one reads."""
    server = Server("library", "1.2.0")
    lent = [0]

    @server.resource("library://hours", mime_type="text/plain", title="Opening hours")
    def hours() -> str:
        """When we are open."""
        return "9 to 5\n<script>alert(1)</script>"

    @server.resource("library://stats")
    def stats() -> dict[str, object]:
        """How much there is."""
        return {"books": len(BOOKS), "shelves": ["north", "south"]}

    @server.resource("library://plan.png", mime_type="image/png")
    def plan() -> bytes:
        """Where the shelves are."""
        return day_picture()

    @server.resource("library://backup", mime_type="application/zip")
    def backup() -> bytes:
        """All of it."""
        return bytes(range(256)) * 8

    @server.resource(COUNT)
    def count() -> int:
        """How many books are lent."""
        return lent[0]

    @server.resource("library://books/{title}{?page}")
    def book(title: str, page: int = 1) -> str:
        """A page of a book."""
        return f"{BOOKS[title]} ({page})"

    @server.completion("library://books/{title}{?page}", "title")
    def titles(value: str) -> list[str]:
        return [title for title in BOOKS if title.startswith(value)]

    @server.prompt(title="Plan a day")
    def plan_day(country: str, city: str, pace: Literal["slow", "fast"] = "slow") -> list[Message]:
        """A day in a city.

        Args:
            country: Where it is.
        """
        return [
            User(f"Plan a {pace} day in {city}, {country}."),
            Assistant("Gladly. Here is a map."),
            User(Image(day_picture())),
        ]

    @server.prompt
    def hello() -> str:
        """Says hello."""
        return "Say hello."

    @server.completion("plan_day", "city")
    def cities(value: str, country: str | None) -> list[str]:
        return [city for city in COUNTRIES.get(country or "", []) if city.startswith(value)]

    @server.tool
    def lend() -> int:
        """Lend a book."""
        lent[0] += 1
        server.resource_updated(COUNT)
        return lent[0]

    @server.tool
    async def enter(ctx: Context) -> str:
        """Come in."""
        guest = await ctx.ask("Who are you?", Guest)
        return f"{guest.name}, {guest.age}, {guest.room}"

    @server.tool
    async def sign_in(ctx: Context) -> str:
        """Sign in elsewhere."""
        await ctx.ask_url("Sign in with the town, so that we know you.", "https://town.example/sign-in?for=library")
        return "signed in"

    @server.tool
    async def summarize(ctx: Context, text: str = "a long book") -> str:
        """Let the model of the client write."""
        return (await ctx.sample(f"Summarize: {text}", max_tokens=50, system="You are brief.")).text

    @server.tool
    async def where(ctx: Context) -> list[str]:
        """Where it may work."""
        return [str(root.uri) for root in await ctx.roots()]

    @server.tool
    def manual() -> Link:
        """Where to read on."""
        return Link("library://hours", title="Opening hours", mime_type="text/plain")

    declared = [hours, stats, plan, backup, count, book, titles, plan_day, hello, cities]
    assert declared and [lend, enter, sign_in, summarize, where, manual]
    return server
