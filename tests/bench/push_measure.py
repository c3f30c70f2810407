"""What a pushed event costs: events per second from `push` to its receipt, through one session, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from defserve import Server
from defserve.client import Mcpl
from defserve.testing.transports import connect_test_client

from .measure import Run
from .targets import SUBJECT

ROADS = ("memory", "http", "ws")
AT_ONCE = 32
VERSION = "2025-11-25"


def measure_push(run: Run) -> None:
    """Events of one line, 32 on their way at a time, all of them counted at the host."""
    for turn in range(run.plan.stream_rounds):
        for road in ROADS:
            run.say(f"push over {road} {turn + 1}/{run.plan.stream_rounds}")
            run.results.add(f"push/{road}", SUBJECT, asyncio.run(_push(road, max(500, run.plan.chunks // 20))))


PUSH: dict[str, Callable[[Run], None]] = {"push-events": measure_push}


async def _push(road: str, events: int) -> float:
    server = Server("clock", "1")
    ticking = server.feature_set("clock.ticking", "Tell the time", uses=["pushEvents"])
    heard = 0

    def hear(event: object) -> None:
        nonlocal heard
        heard += 1

    async def send(numbers: range) -> None:
        for number in numbers:
            await ticking.push(f"tick {number}")

    async with connect_test_client(road, server, {"version": VERSION, "mcpl": Mcpl(on_event=hear)}) as client:
        await client.tools()  # behind which the host has said that it is ready
        began = perf_counter()
        await asyncio.gather(*(send(range(first, events, AT_ONCE)) for first in range(AT_ONCE)))
        took = perf_counter() - began
    if heard != events:
        raise RuntimeError(f"{heard} of {events} events arrived")
    return events / took
