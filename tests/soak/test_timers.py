"""Eight hours of a server by a clock that a test holds: what waits for its time ends by itself, and nothing gathers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from defserve import Limits, Server
from defserve.stores.store import Lease, MemoryStore, StoreBusy
from tests import clock
from tests.asgi import Peer, living
from tests.raw import STATELESS, turns

HOUR = 3600.0
EVERY = 300.0
IDLE = 1800.0
META = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}

server = Server("long", limits=Limits(idle=IDLE, tool=60))


@server.tool
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "waited"


@server.tool(task="required", ttl=600)
async def job(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


@pytest.mark.slow
def test_eight_hours_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    counts: list[tuple[int, int, int]] = []

    async def day() -> None:
        loop: Any = asyncio.get_running_loop()
        monkeypatch.setattr(time, "monotonic", loop.time)
        monkeypatch.setattr(time, "time", lambda: 1_800_000_000 + loop.time())
        async with living(server.asgi()) as app:
            began = loop.time()
            stays = await Peer(app).open()
            listening = await stays.listen().started()
            store, lease = MemoryStore(clock=loop.time), None
            while loop.time() - began < 8 * HOUR:
                await visit(app)
                assert await stays.call("wait", {"seconds": 1}) == "waited"
                await asyncio.sleep(EVERY)
                if (loop.time() - began) % HOUR < EVERY + 100:
                    await turns()
                    counts.append((len(app.streamable.sessions), len(asyncio.all_tasks()), len(loop._scheduled)))
                if loop.time() - began > 7.5 * HOUR and lease is None:
                    lease = Lease(store, "long")
                    await lease.acquire(1)
            assert lease is not None
            await is_kept(store, lease)
            assert listening.status == 200 and not listening.complete
            listening.leave()
            await listening.ended()

    clock.run(day())
    assert len(counts) >= 7
    sessions, tasks, timers = zip(*counts, strict=True)
    # Those of the last half hour, those about to be found idle, and the one that stays.
    assert max(sessions) <= IDLE / EVERY + 3, counts
    assert max(tasks[1:]) <= tasks[1] + 2, counts
    assert max(timers[1:]) <= timers[1] + 5, counts


async def is_kept(store: MemoryStore, lease: Lease) -> None:
    """A lease is its holder's for half an hour, renewed thousands of times, and another's as soon as it is released."""
    other = Lease(store, "long")
    with pytest.raises(StoreBusy):
        await other.acquire(60)
    await lease.release()
    await other.acquire(1)
    await other.release()


async def visit(app: Any) -> None:
    """Clients that come and leave without a word: with a session, with a call that takes too long, with a task."""
    left = await Peer(app).open()
    assert await left.call("wait", {"seconds": 0}) == "waited"
    slow = left.begin_call("wait", {"seconds": 500})
    await turns()
    slow.leave()
    stateless = Peer(app, STATELESS)
    begun = await stateless.ask("tools/call", {"name": "job", "arguments": {"seconds": 5}, "_meta": META})
    assert begun["result"]["status"] == "working", begun
