from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Server
from defserve.testing import SyncClient
from examples.cookbook import caching

pytestmark = pytest.mark.anyio


class Shop:
    """Where prices are looked up, and how often that was."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open = asyncio.Event()
        self.is_broken = False

    async def look_up(self, article: str) -> float:
        self.asked.append(article)
        await self.open.wait()
        if self.is_broken:
            raise OSError("the shop is closed")
        return 2.5


@pytest.fixture
def server() -> Server:
    return caching.server


def test_a_price_is_the_same_however_it_is_asked_for(client: SyncClient):
    assert client.call("price", article="Tea") == client.call("price", article=" tea ") == 3.75
    assert "USD" in client.read_text("prices://currencies")


async def test_callers_at_the_same_time_share_a_search_and_its_result_is_kept_for_a_minute():
    shop, now = Shop(), [0.0]
    cache = caching.Cache(shop.look_up, seconds=60, most=10)
    cache.clock = lambda: now[0]
    callers = [asyncio.create_task(cache.get("tea")) for _ in range(10)]
    await asyncio.sleep(0)
    callers[0].cancel()
    shop.open.set()
    found: list[Any] = await asyncio.gather(*callers, return_exceptions=True)
    assert found[1:] == [2.5] * 9
    now[0] = 59.9
    await cache.get("tea")
    assert shop.asked == ["tea"]
    now[0] = 60.0
    await cache.get("tea")
    assert shop.asked == ["tea", "tea"]


async def test_a_failure_is_not_kept_and_the_oldest_makes_room():
    shop = Shop()
    shop.open.set()
    cache = caching.Cache(shop.look_up, seconds=60, most=2)
    shop.is_broken = True
    with pytest.raises(OSError, match="closed"):
        await cache.get("tea")
    shop.is_broken = False
    for article in ("tea", "cups", "pots", "tea"):
        assert await cache.get(article) == 2.5
    assert shop.asked == ["tea", "tea", "cups", "pots", "tea"]
