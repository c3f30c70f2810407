"""What a call with state costs on each store: latency, processor time of the server, and round trips to the store.

In this process, with one caller who calls a tool that changes a small state, and beside it a tool without state. A
Redis and a Postgres are started for it, both on a socket file, and both keep what they acknowledge on the disk.

`python -m tests.bench.stores_measure` prints the table alone.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

from pydantic import BaseModel

from defserve import Server, State
from defserve.stores.identity import open_store
from defserve.stores.postgres import PostgresStore
from defserve.stores.store import Store
from tests.stores.postgres_server import PostgresServer, find_postgres
from tests.stores.redis_server import RedisServer

from .measure import QUICK, Run
from .targets import SUBJECT

WARM_UP = 10
PLAIN = "no state"


class Count(BaseModel):
    value: int = 0


class StoreCost(NamedTuple):
    """Of one call: the median of its latency and the processor time, in microseconds, and how often it asks a store."""

    p50: float
    cpu: float
    trips: float


def measure_stores(run: Run) -> None:
    """One caller on each store that there is, call after call."""
    with ExitStack() as stack:
        for name, address, count_trips in _list_stores(stack):
            for turn in range(run.plan.state_rounds):
                run.say(f"stores {name} {turn + 1}/{run.plan.state_rounds}")
                for what, cost in asyncio.run(_measure(name, address, count_trips, max(1, run.plan.commits // 10))):
                    for part, figure in cost._asdict().items():
                        run.results.add(f"stores-{part}/{what}", SUBJECT, figure)


STORES: dict[str, Callable[[Run], None]] = {"stores": measure_stores}

CountTrips = Callable[[Store], Callable[[], int]]
"""Gives a function that says how often a store was asked so far."""


def _list_stores(stack: ExitStack) -> Iterator[tuple[str, str, CountTrips]]:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-stores-"))
    yield "memory", "memory:", lambda store: lambda: 0
    yield "SQLite", f"sqlite:///{Path(folder) / 'store.db'}", lambda store: lambda: 0
    if shutil.which("redis-server") is not None:
        redis = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
        stack.callback(redis.remove)
        yield "Redis", redis.address, lambda store: lambda: _count_commands(redis)
    if find_postgres() is not None:
        postgres = PostgresServer("-c", "fsync=on").start()
        stack.callback(postgres.remove)
        yield "Postgres", postgres.url, _count_statements


def _count_commands(redis: RedisServer) -> int:
    """The scripts and reads of a store. Commands inside of a script are counted too, but not those names."""
    found = re.findall(r"cmdstat_(?:eval|evalsha|hmget):calls=(\d+)", redis.info("commandstats"))
    return sum(map(int, found))


def _count_statements(store: Store) -> Callable[[], int]:
    assert isinstance(store, PostgresStore)
    execute, count = store._execute, 0  # pyright: ignore[reportPrivateUsage]

    def counting(*given: object, **more: object) -> Awaitable[list[tuple[object, ...]]]:
        nonlocal count
        count += 1
        return execute(*given, **more)  # pyright: ignore[reportArgumentType, reportCallIssue]

    store._execute = counting  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    return lambda: count


async def _measure(name: str, address: str, count_trips: CountTrips, calls: int) -> list[tuple[str, StoreCost]]:
    store = open_store(address)
    server = Server("counter", store=store)
    server.state(Count)

    @server.tool
    def count_up(count: State[Count]) -> int:
        """Count."""
        count.value += 1
        return count.value

    @server.tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    trips = count_trips(store)
    async with server.connect("stateless") as client:

        async def measure(call: Callable[[], Awaitable[object]]) -> StoreCost:
            for _ in range(WARM_UP):
                await call()
            times, before, cpu = list[float](), trips(), process_time()
            for _ in range(calls):
                began = perf_counter()
                await call()
                times.append(perf_counter() - began)
            took, asked = process_time() - cpu, trips() - before
            return StoreCost(median(times) * 1e6, took / calls * 1e6, asked / calls)

        costs = [(name, await measure(lambda: client.call("count_up")))]
        if name == "memory":
            costs.append((PLAIN, await measure(lambda: client.call("add", a=1, b=2))))
    await store.close()
    return costs


def main() -> None:
    print(f"{'a call with state':18} {'p50':>9} {'processor':>10} {'round trips':>12}")
    with ExitStack() as stack:
        for name, address, count_trips in _list_stores(stack):
            for what, cost in asyncio.run(_measure(name, address, count_trips, QUICK.commits)):
                print(f"{what:18} {cost.p50:6.0f} µs {cost.cpu:7.0f} µs {cost.trips:12.1f}")


if __name__ == "__main__":
    main()
