"""Of all who want to do something under one key, one does it. The others get its outcome, or do it if that one died."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from defserve.errors import TimedOut
from defserve.stores.identity import ServerIdentity
from defserve.stores.shared.shared_tables import SharedOnceRunner
from defserve.stores.shared.worker_link import SharedStoreLink
from defserve.stores.store import StoreUnavailable
from tests.stores.redis_server import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def links() -> AsyncIterator[list[SharedStoreLink]]:
    server = RedisServer().start()
    made = [SharedStoreLink(server.address, ServerIdentity("name", "notes")) for _ in range(3)]
    async with AsyncExitStack() as stack:
        for link in made:
            await link.start()
            stack.push_async_callback(link.stop)
        yield made
    server.remove()


async def test_one_of_many_does_it_and_all_get_the_outcome(links: list[SharedStoreLink]):
    done: list[int] = []

    async def work() -> tuple[str, bool]:
        done.append(1)
        await asyncio.sleep(0)
        return "outcome", True

    found = await asyncio.gather(*(SharedOnceRunner(links[n % 3]).run_once("key", 60, work) for n in range(12)))
    assert found == ["outcome"] * 12 and len(done) == 1
    assert await SharedOnceRunner(links[0]).run_once("other", 60, work) == "outcome" and len(done) == 2


async def test_an_outcome_that_is_not_kept_and_a_failure_leave_it_to_the_next_one(links: list[SharedStoreLink]):
    done: list[str] = []

    def work(outcome: str, *, is_kept: bool, fails: bool = False) -> Any:
        async def run() -> tuple[str, bool]:
            done.append(outcome)
            if fails:
                raise ValueError(outcome)
            return outcome, is_kept

        return run

    assert await SharedOnceRunner(links[0]).run_once("key", 60, work("no", is_kept=False)) == "no"
    with pytest.raises(ValueError, match="broken"):
        await SharedOnceRunner(links[1]).run_once("key", 60, work("broken", is_kept=True, fails=True))
    for place in (2, 0):
        assert await SharedOnceRunner(links[place]).run_once("key", 60, work("yes", is_kept=True)) == "yes"
    assert done == ["no", "broken", "yes"]


@pytest.mark.parametrize("trouble", [StoreUnavailable("The reply is lost"), asyncio.CancelledError()])
async def test_who_does_not_learn_that_it_is_to_do_it_keeps_nobody_waiting(
    links: list[SharedStoreLink], monkeypatch: pytest.MonkeyPatch, trouble: BaseException
):
    async def work() -> tuple[str, bool]:
        return "done", True

    real = links[0].run_script

    async def run(*args: Any) -> Any:
        await real(*args)
        raise trouble

    with monkeypatch.context() as patch, suppress(asyncio.CancelledError):
        patch.setattr(links[0], "run_script", run)
        assert await SharedOnceRunner(links[0]).run_once("key", 60, work) == "done"
    async with asyncio.timeout(20):
        assert await SharedOnceRunner(links[1]).run_once("key", 60, work) == "done"


async def test_who_waits_for_a_worker_that_dies_does_it_and_without_a_store_everybody_does(
    links: list[SharedStoreLink],
):
    began, done = asyncio.Event(), list[str]()

    async def hangs() -> tuple[str, bool]:
        began.set()
        await asyncio.Event().wait()
        return "", False

    async def work() -> tuple[str, bool]:
        done.append("done")
        return "done", True

    first = asyncio.create_task(SharedOnceRunner(links[0]).run_once("key", 60, hangs))
    await began.wait()
    second = asyncio.create_task(SharedOnceRunner(links[1]).run_once("key", 60, work))
    await links[0].run_script("return redis.call('DEL', ARGV[1] .. 'lease:' .. ARGV[2])", links[0].worker)
    assert await second == "done"
    first.cancel()
    links[2].is_up = False
    assert await SharedOnceRunner(links[2]).run_once("key", 60, work) == "done"
    assert done == ["done", "done"]


async def test_who_waits_for_another_process_does_not_wait_for_ever(links: list[SharedStoreLink]):
    begun, end = asyncio.Event(), asyncio.Event()

    async def work() -> tuple[str, bool]:
        begun.set()
        await end.wait()
        return "late", True

    working = asyncio.create_task(SharedOnceRunner(links[0]).run_once("key", 60, work))
    await begun.wait()
    with pytest.raises(TimedOut, match="another process has not finished this within 0.1 s"):
        await SharedOnceRunner(links[1]).run_once("key", 60, work, 0.1)
    end.set()
    assert await working == "late"
    assert await SharedOnceRunner(links[1]).run_once("key", 60, work, 0.1) == "late"
