"""Answers that are expensive to find are kept for a minute, and callers who ask at the same time share one search."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Annotated

from defserve import Server, safe

server = Server("prices", "1.0.0")


class Cache:
    """Keeps what an async function returned, by its argument. What it raised is not kept."""

    def __init__(self, find: Callable[[str], Awaitable[float]], seconds: float, most: int) -> None:
        self.find, self.seconds, self.most = find, seconds, most
        self.clock: Callable[[], float] = time.monotonic
        self._kept: OrderedDict[str, tuple[float, asyncio.Future[float]]] = OrderedDict()

    async def get(self, key: str) -> float:
        until, found = self._kept.get(key, (0.0, None))
        if found is None or until <= self.clock() or failed(found):
            found = asyncio.ensure_future(self.find(key))
            self._kept[key] = (self.clock() + self.seconds, found)
            self._kept.move_to_end(key)
            if len(self._kept) > self.most:
                self._kept.popitem(last=False)
        return await asyncio.shield(found)  # a caller who goes away does not end the search of the others


def failed(found: asyncio.Future[float]) -> bool:
    return found.done() and (found.cancelled() or found.exception() is not None)


async def look_up(article: str) -> float:
    """Stands for a slow request to somebody else."""
    await asyncio.sleep(0.05)
    return round(len(article) * 1.25, 2)


prices = Cache(look_up, seconds=60, most=1000)


@server.tool
@safe
async def price(article: Annotated[str, "Its name."]) -> float:
    """The price of an article in euros, at most a minute old."""
    return await prices.get(article.strip().lower())


@server.resource("prices://currencies", ttl=3600)
def currencies() -> dict[str, float]:
    """What one euro is worth. Read at most once an hour, however many clients ask."""
    return {"USD": 1.1, "JPY": 160.0}


if __name__ == "__main__":
    server.main()
