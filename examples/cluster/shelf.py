"""A shelf of books that three workers serve behind nginx. What one worker keeps in Redis, every worker finds.

docker compose up --build        in this folder; docs/deployment.md has the steps
defserve run shelf.py            alone, and in memory
"""

from __future__ import annotations

import asyncio
import os

from defserve import Context, Server

server = Server("shelf", "1.0", store=os.environ.get("SHELF_STORE", "memory:"))

BOOKS = {"Momo": 304, "Ronja": 235, "Emil": 160}


@server.tool
def books() -> dict[str, int]:
    """The books on the shelf, and how many pages they have."""
    return BOOKS


@server.tool
def worker() -> int:
    """The process that answers: another one, now and then."""
    return os.getpid()


@server.tool(task="required", poll=0.2, retry=2)
async def read_aloud(title: str, ctx: Context) -> str:
    """Read a book, which takes a while. Any worker tells how far it is."""
    for page in range(5):
        ctx.progress(page, 5)
        await asyncio.sleep(0.1)
    return f"{title}: {BOOKS[title]} pages, done."


if __name__ == "__main__":
    server.main()
