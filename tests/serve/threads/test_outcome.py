"""What a worker thread's function came to, for the task that waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from defserve.serve.threads import ThreadFuture, WorkerPool


def with_pool(work: Callable[[Callable[[Callable[[], Any]], ThreadFuture[Any]]], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        pool = WorkerPool(2, loop.call_soon_threadsafe)
        try:
            await work(lambda function: ThreadFuture(pool, loop, function))
        finally:
            pool.close()

    asyncio.run(main())


def fails() -> None:
    raise ZeroDivisionError("no")


def test_a_task_goes_on_in_the_callback_that_brings_the_outcome() -> None:
    async def work(run: Any) -> None:
        begun, told = threading.Event(), list[str]()
        outcome = run(lambda: begun.wait(30))

        def callback(_: object) -> None:
            told.append("callback")

        outcome.add_done_callback(callback)

        async def wait() -> None:
            assert await outcome
            told.append("task")

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        begun.set()
        await task
        assert told == ["task", "callback"]  # a callback takes another turn

    with_pool(work)


def test_all_who_wait_get_the_outcome() -> None:
    async def work(run: Any) -> None:
        async def wait(outcome: Any) -> int:
            return await outcome

        outcome = run(lambda: 42)
        assert await asyncio.gather(wait(outcome), wait(outcome), outcome, asyncio.shield(outcome)) == [42] * 4
        with pytest.raises(ZeroDivisionError):
            await run(fails)

    with_pool(work)


def test_who_cancels_gives_the_function_up() -> None:
    async def work(run: Any) -> None:
        release, late = threading.Event(), list[int]()
        blockers = [run(lambda: release.wait(30)) for _ in range(2)]
        behind = run(lambda: late.append(1))
        task = asyncio.ensure_future(asyncio.wait_for(behind, 0.01))
        with pytest.raises(TimeoutError):
            await task
        release.set()
        assert await asyncio.gather(*blockers) == [True, True]
        assert await run(lambda: 7) == 7
        assert not late  # it had not begun, so it never does

    with_pool(work)


def test_a_task_may_stop_waiting_and_leave_the_outcome_to_others() -> None:
    async def work(run: Any) -> None:
        release = threading.Event()
        outcome = run(lambda: release.wait(30))
        waiting = asyncio.create_task(asyncio.wait((outcome,), timeout=0.01))
        _, pending = await waiting
        assert pending == {outcome}
        release.set()
        assert await outcome

    with_pool(work)
