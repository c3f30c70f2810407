from __future__ import annotations

import asyncio

import pytest

from defserve.errors import Refused
from defserve.protocols.mcp.tasks.records import MAX_DEAD_RUNNERS, Heartbeat
from defserve.stores.store import LEASE_SPACES, MemoryStore, StoreChange, StoreUnavailable

pytestmark = pytest.mark.anyio

SECONDS = 0.2


class FailingStore(MemoryStore):
    is_away = False
    error: Exception = StoreUnavailable("away")

    async def change(self, change: StoreChange) -> bool:
        if self.is_away:
            raise self.error
        return await super().change(change)


async def test_a_process_is_alive_for_as_long_as_it_has_tasks():
    store = MemoryStore()
    one, other = Heartbeat(store, SECONDS), Heartbeat(store, SECONDS)
    busy = True
    await one.start(lambda: busy)
    for _ in range(6):
        assert not await other.is_dead(one.id)
        await asyncio.sleep(SECONDS / 2)
    busy = False
    async with asyncio.timeout(30):
        while not await other.is_dead(one.id):  # noqa: ASYNC110 (the other side sets no event)
            await asyncio.sleep(0.02)


async def test_a_process_that_ends_gives_up_its_lease():
    store = MemoryStore()
    one, other = Heartbeat(store, 60), Heartbeat(store, SECONDS)
    await one.start(lambda: True)
    assert not await other.is_dead(one.id)
    await one.stop()
    assert await other.is_dead(one.id)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("the handler is closed")])
async def test_a_lease_that_is_missing_for_a_moment_costs_nothing(error: Exception):
    store = FailingStore()
    store.error = error
    one, other = Heartbeat(store, SECONDS), Heartbeat(store, 10 * SECONDS)
    await one.start(lambda: True)
    store.is_away = True
    async with asyncio.timeout(30):
        while await store.get(LEASE_SPACES.make_space(f"tasks {one.id}"), ["holder"]):  # noqa: ASYNC110 (a store sets no event)
            await asyncio.sleep(0.02)
    looking = asyncio.create_task(other.is_dead(one.id))
    await asyncio.sleep(0)
    store.is_away = False
    assert await looking is False
    await one.stop()


async def test_a_lease_that_cannot_be_had_is_told():
    store = FailingStore()
    store.is_away = True
    with pytest.raises(Refused):
        await Heartbeat(store, SECONDS).start(lambda: True)


async def test_a_dead_process_is_waited_for_once_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch):
    beat = Heartbeat(MemoryStore(), 0.001)
    assert all(await asyncio.gather(*(beat.is_dead(f"{number}") for number in range(MAX_DEAD_RUNNERS + 10))))
    assert len(beat._dead) <= MAX_DEAD_RUNNERS  # pyright: ignore
    assert await beat.is_dead("gone")

    async def sleep(seconds: float) -> None:
        raise AssertionError(f"waits {seconds} s")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert await beat.is_dead("gone")
    assert await beat.is_dead("")
    with pytest.raises(AssertionError, match="waits"):
        await beat.is_dead("another")
