"""Tools that give their result piece by piece: a client that asks for a stream sees each piece as it comes."""

import asyncio
from collections.abc import AsyncIterator, Iterator

from defserve import Context, Server

server = Server("streaming", "1.0.0")

VERSE = ("Tyger Tyger, ", "burning bright, ", "In the forests ", "of the night")


@server.tool
async def recite() -> AsyncIterator[str]:
    """Say a verse, a few words at a time."""
    for words in VERSE:
        yield words


@server.tool
async def count(pause: float = 0.001) -> AsyncIterator[str]:
    """Count until somebody says stop."""
    number = 0
    while True:
        number += 1
        yield f"{number} "
        await asyncio.sleep(pause)


@server.tool
def squares(upto: int) -> Iterator[str]:
    """A plain generator runs in a worker thread, which waits where its reader is slow."""
    for number in range(upto):
        yield f"{number * number}\n"


@server.tool
async def bake(ctx: Context) -> str:
    """What is emitted comes before what is returned."""
    for step, words in enumerate(("Mixing. ", "Baking. "), 1):
        ctx.emit(words)
        ctx.progress(step, total=2, message=words.strip())
    return "Here is your cake."


if __name__ == "__main__":
    server.main()
