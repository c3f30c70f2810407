"""The server of the golden files: books, their covers, and a way to lose them."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from defserve import Context, Image, Server, ToolError, dangerous, safe

server = Server("shelf", "1.4.0", title="Book shelf", instructions="Look before you lend.")

COVER = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


class Book(BaseModel):
    title: str
    author: str
    year: int
    lent_to: str | None = None


@server.tool
@safe
def find_books(
    text: Annotated[str, Field(max_length=200)], order: Literal["title", "year"] = "title", limit: int = 10
) -> list[Book]:
    """Find books by words of their title, author or description, and give them back in the order that was asked for."""
    return [
        Book(title="Solaris", author="Stanisław Lem", year=1961),
        Book(title="Emma", author="Jane Austen", year=1815),
    ]


@server.tool
@safe
def cover(title: str) -> Image:
    """The cover of a book."""
    if title != "Solaris":
        raise ToolError(f"there is no cover of {title!r}")
    return Image(data=COVER, format="png")


@server.tool
@dangerous("filesystem.write")
def forget(title: str) -> str:
    """Remove a book."""
    return "forgotten"


@server.tool
async def lend(title: str, ctx: Context) -> str:
    """Lend a book to somebody."""
    return await ctx.choose("To whom?", {"ann": "Ann from next door", "bob": "Bob, who is late"})


@server.resource("shelf://today")
def today() -> str:
    """What was lent today."""
    return "Solaris, to Ann"


@server.resource("shelf://books/{title}")
def book(title: str) -> str:
    """A book by its title."""
    return title


@server.prompt
def recommend(mood: str, length: str = "short") -> str:
    """Recommend a book."""
    return f"Recommend a {length} book for somebody who feels {mood}.\nSay why in one sentence."
