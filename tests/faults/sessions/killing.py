"""Processes that share sessions are killed, and their Redis is: no session, event or answer is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from random import Random
from typing import Any

from tests.faults.killing import Tally
from tests.faults.process import ROOT, Broken
from tests.faults.sessions.client import Client
from tests.stores.redis_server import RedisServer

WORKERS, CLIENTS = 3, 4
REDIS_EVERY = 5


class Workers:
    """The processes, each with the port it is at; None while it is not there."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._running: list[tuple[asyncio.subprocess.Process, int] | None] = [None] * WORKERS

    def ports(self) -> list[int]:
        return [each[1] for each in self._running if each is not None]

    async def start(self, place: int) -> None:
        path = os.pathsep.join((str(ROOT / "framework"), str(ROOT)))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.sessions.worker", self._address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode().strip()
        self._running[place] = process, int(line.rstrip("/").rpartition(":")[2])

    async def kill(self, place: int) -> None:
        found, self._running[place] = self._running[place], None
        if found is not None:
            found[0].send_signal(signal.SIGKILL)
            await found[0].wait()


async def talk(client: Client, random: Random, over: asyncio.Event) -> None:
    """Calls of all kinds, one after the other, each checked."""
    while not over.is_set():
        kind = random.choice(("echo", "count", "ask", "touch"))
        if kind == "count":
            total, seen = random.randint(1, 40), list[Any]()
            text = await client.call("count", {"total": total}, seen)
            numbers = [message["params"]["data"] for message in seen]
            if numbers != [str(number) for number in range(len(numbers))]:
                raise Broken(f"{client.name} was told {numbers}")
            if text is not None and (text != f"{total} counted" or len(numbers) != total):
                raise Broken(f"{client.name} was told {text} after {len(numbers)} of {total}")
        elif kind == "ask":
            text = await client.call("ask", {}, [])
            if text is not None and text != f"{client.name} {client.last}":
                raise Broken(f"{client.name} {client.last} got the answer of {text}")
        else:
            given = "text" if kind == "echo" else "uri"
            text = await client.call(kind, {given: f"memo://{client.name}"})
            if text not in (None, f"memo://{client.name}"):
                raise Broken(f"{client.name} got {text}")


async def _kill_all(seed: int, runs: int) -> Tally:
    random, tally = Random(seed), Tally()
    redis = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    workers, over = Workers(redis.address), asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    try:
        await asyncio.gather(*map(workers.start, range(WORKERS)))
        clients = [Client(f"c{number}", Random(seed + number), workers.ports) for number in range(CLIENTS)]
        watched: list[list[str]] = []
        for client in clients:
            await client.open()
            watched.append([])
            await client.subscribe(f"memo://{client.name}")
            tasks.append(asyncio.create_task(client.watch(watched[-1])))
        talking = [asyncio.create_task(talk(client, random, over)) for client in clients]
        for run in range(runs):
            await asyncio.sleep(random.uniform(0.05, 0.6))
            if run % REDIS_EVERY == REDIS_EVERY - 1:
                redis.kill()
                await asyncio.sleep(random.uniform(0.0, 0.5))
                redis.start()
            else:
                place = random.randrange(WORKERS)
                await workers.kill(place)
                began = time.monotonic()
                await workers.start(place)
                tally.restarts.append(time.monotonic() - began)
            for task in (*talking, *tasks):
                if task.done():
                    task.result()
        over.set()
        await asyncio.gather(*talking)
        for client, ids in zip(clients, watched, strict=True):
            if len(set(ids)) != len(ids):
                raise Broken(f"{client.name} was told of a change twice: {ids}")
        tally.runs = runs
        tally.acknowledged = sum(client.answered for client in clients)
        tally.rollbacks = sum(client.told for client in clients)
        return tally
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for place in range(WORKERS):
            await workers.kill(place)
        redis.remove()


def kill_sharing(seed: int, runs: int) -> Tally:
    """Of the tally, `rollbacks` are the calls whose client was told that their process died. Raises Broken."""
    tally = asyncio.run(_kill_all(seed, runs))
    tally.restarts.clear()  # a process takes as long to start as Python does
    return tally
