from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from defserve.client.conversation import NO_ANSWER
from defserve.client.exchange import PendingRequest
from defserve.core.messages import Reply
from defserve.errors import PeerTimeout

pytestmark = pytest.mark.anyio

REPLY = Reply(1, {}, None)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_work_is_given_up_once_there_is_a_reply():
    pending = PendingRequest(1, "x")
    asyncio.get_running_loop().call_soon(pending.reply.set_result, REPLY)
    async with asyncio.timeout(20):
        assert await pending.await_unless_settled(asyncio.Event().wait()) is None


async def test_work_that_is_done_at_the_moment_of_the_reply_counts():
    wrong: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: wrong.append(context))
    pending = PendingRequest(1, "x")

    async def work() -> str:
        pending.reply.set_result(REPLY)
        return "done"

    assert await pending.await_unless_settled(work()) == "done"
    for _ in range(5):
        await asyncio.sleep(0)
    assert wrong == []


async def test_a_cancelled_caller_stays_cancelled():
    pending = PendingRequest(1, "x")
    task = asyncio.create_task(pending.await_unless_settled(asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    pending.reply.set_result(REPLY)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_deadline_is_moved_for_as_long_as_somebody_wants_to_wait():
    pending, asked = PendingRequest(1, "x"), 0

    def waits() -> bool:
        nonlocal asked
        asked += 1
        return asked < 4

    pending.set_deadline(asyncio.get_running_loop().call_later, 0.001, NO_ANSWER, waits)
    with pytest.raises(PeerTimeout, match="no answer to x within 0.001 s"):
        await pending.reply
    assert asked == 4


async def test_a_settled_request_has_no_deadline_any_more():
    pending = PendingRequest(1, "x")
    later = asyncio.get_running_loop().call_later
    pending.set_deadline(later, 0.001, NO_ANSWER, lambda: pytest.fail("asked"))
    pending.stop_waiting()
    await asyncio.sleep(0.01)
    assert not pending.reply.done()


async def test_a_failure_that_comes_to_nobody_is_not_reported():
    wrong: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: wrong.append(context))
    pending = PendingRequest(1, "x")
    pending.reply.set_exception(PeerTimeout("late"))
    pending.stop_waiting()
    del pending
    gc.collect()
    assert wrong == []
