"""Many sessions that nobody uses: what each costs in the workers, and in Redis."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.faults.killing import Tally
from tests.faults.process import Broken
from tests.faults.rolling import Connection
from tests.faults.sessions.group import Group, served
from tests.stores.redis_server import RedisServer

WORKERS, CONNECTIONS = 4, 8
PAGE = os.sysconf("SC_PAGE_SIZE")
WARMING = 200


def keep_idle(seed: int, runs: int) -> Tally:
    """Open so many sessions, and print what one costs. Raises Broken if one of them is lost."""
    # Nothing of what is measured depends on how Redis writes to the disk.
    redis = RedisServer().start()
    try:
        return asyncio.run(_keep_idle(runs, redis))
    finally:
        redis.remove()


async def _keep_idle(runs: int, redis: RedisServer) -> Tally:
    async with served(WORKERS, redis.address, redis) as running:
        await _open(running, WARMING)
        workers, before, kept = running.workers(), _resident(running), redis.used_memory()
        sessions = await _open(running, runs)
        if running.workers() != workers:
            raise Broken("a worker has ended meanwhile")
        # A session is known to the worker that opened it.
        memory, stored = (_resident(running) - before) / runs, (redis.used_memory() - kept) / runs
        print(f"             {runs:,} idle sessions over {WORKERS} workers: {memory:,.0f} bytes each in the workers,")
        print(f"             {stored:,.0f} bytes each in Redis")
        connection = Connection(*await asyncio.open_connection("127.0.0.1", running.port))
        for session in sessions[:: max(1, runs // 100)]:
            if not await connection.is_known(session):
                raise Broken("a session is lost")
        return Tally(runs, acknowledged=len(sessions))


async def _open(running: Group, count: int) -> list[str]:
    async def some(share: int) -> list[str]:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", running.port))
        found = [await connection.open_session() for _ in range(share)]
        connection.close()
        return found

    shares = [count // CONNECTIONS + (place < count % CONNECTIONS) for place in range(CONNECTIONS)]
    return [id for found in await asyncio.gather(*map(some, shares)) for id in found]


def _resident(running: Group) -> int:
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE for pid in running.workers())
