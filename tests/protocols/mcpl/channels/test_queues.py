"""One channel's work is done one at a time, in the order in which it came."""

from __future__ import annotations

import asyncio

import pytest

from defserve.protocols.mcpl.channels.section import ChannelQueues
from tests.raw import turns

pytestmark = pytest.mark.anyio


class Work:
    """Tasks that wait for their turn in a queue, and the order in which they had it."""

    def __init__(self) -> None:
        self.queues, self.order, self.gate = ChannelQueues(), list[str](), asyncio.Event()

    def begin(self, name: str, queue: str = "a") -> asyncio.Task[None]:
        return asyncio.create_task(self._run(name, queue))

    async def _run(self, name: str, queue: str) -> None:
        async with self.queues.wait_for_turn(queue):
            self.order.append(f"{name} begins")
            await self.gate.wait()
            self.order.append(f"{name} ends")


async def test_later_work_waits_and_other_queues_do_not():
    work = Work()
    tasks = [work.begin("first"), work.begin("second"), work.begin("other", queue="b")]
    await turns()
    assert work.order == ["first begins", "other begins"]
    work.gate.set()
    await asyncio.gather(*tasks)
    assert work.order[2:] == ["first ends", "other ends", "second begins", "second ends"]
    assert work.queues.waiting == 0


async def test_a_cancelled_waiter_lets_nobody_overtake():
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


async def test_a_cancelled_last_waiter_leaves_the_queue_to_the_one_before():
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


async def test_nothing_is_left_of_a_queue_whose_last_waiter_was_cancelled():
    work = Work()
    first, second = work.begin("first"), work.begin("second")
    await turns()
    second.cancel()
    await turns()
    work.gate.set()
    await first
    await turns()
    assert len(work.queues) == 0


async def test_a_queue_goes_on_after_a_failure():
    queues = ChannelQueues()
    with pytest.raises(ValueError, match="oh"):
        async with queues.wait_for_turn("a"):
            raise ValueError("oh")
    async with queues.wait_for_turn("a"):
        pass
    assert queues.waiting == 0
