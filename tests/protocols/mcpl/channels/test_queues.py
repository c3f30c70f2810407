"""One channel's work is done one at a time, in the order in which it came."""

from __future__ import annotations

import asyncio

import pytest

from defserve.protocols.mcpl.channels.queues import ChannelQueues
from tests.raw import turns

pytestmark = pytest.mark.anyio


class Work:
    """Tasks that wait for their turn in a lane, and the order in which they had it."""

    def __init__(self) -> None:
        self.lanes, self.order, self.gate = ChannelQueues(), list[str](), asyncio.Event()

    def begin(self, name: str, lane: str = "a") -> asyncio.Task[None]:
        return asyncio.create_task(self._run(name, lane))

    async def _run(self, name: str, lane: str) -> None:
        async with self.lanes.turn(lane):
            self.order.append(f"{name} begins")
            await self.gate.wait()
            self.order.append(f"{name} ends")


async def test_those_behind_wait_and_other_lanes_do_not():
    work = Work()
    tasks = [work.begin("first"), work.begin("second"), work.begin("other", lane="b")]
    await turns()
    assert work.order == ["first begins", "other begins"]
    work.gate.set()
    await asyncio.gather(*tasks)
    assert work.order[2:] == ["first ends", "other ends", "second begins", "second ends"]
    assert work.lanes.waiting == 0


async def test_one_that_gives_up_lets_nobody_overtake():
    work = Work()
    first, second, third = work.begin("first"), work.begin("second"), work.begin("third")
    await turns()
    second.cancel()
    await turns()
    fourth = work.begin("fourth")
    await turns()
    assert work.order == ["first begins"]
    work.gate.set()
    await asyncio.gather(first, third, fourth)
    assert work.order[1:] == ["first ends", "third begins", "third ends", "fourth begins", "fourth ends"]


async def test_the_last_one_that_gives_up_leaves_the_lane_to_the_one_before():
    work = Work()
    first, second = work.begin("first"), work.begin("second")
    await turns()
    second.cancel()
    await turns()
    third = work.begin("third")
    await turns()
    assert work.order == ["first begins"]
    work.gate.set()
    await asyncio.gather(first, third)
    assert work.order[1:] == ["first ends", "third begins", "third ends"]


async def test_a_lane_that_failed_goes_on():
    lanes = ChannelQueues()
    with pytest.raises(ValueError, match="oh"):
        async with lanes.turn("a"):
            raise ValueError("oh")
    async with lanes.turn("a"):
        pass
    assert lanes.waiting == 0
