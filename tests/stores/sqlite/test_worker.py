"""A thread that works for event loops: everyone gets the outcome of their own job, or leaves without it."""

from __future__ import annotations

import asyncio
import functools
import operator
import threading
from collections.abc import Sequence
from contextvars import ContextVar

import pytest

from defserve.stores.sqlite import WorkerThread
from tests.rows import for_each_row
from tests.waiting import DEADLINE, until

pytestmark = pytest.mark.anyio

VAR: ContextVar[str] = ContextVar("var")


class Works:
    """Doubles numbers, once it may; what is no number is an error."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.may.set()
        self.done: list[list[int]] = []
        self.left = 0

    def __call__(self, jobs: Sequence[int]) -> Sequence[int | Exception]:
        self.may.wait(10)
        self.done.append(list(jobs))
        return [2 * job if job >= 0 else ValueError(job) for job in jobs]

    def leave(self) -> None:
        self.left += 1


def thread_of(works: Works) -> WorkerThread[int, int]:
    return WorkerThread("test", works, works.leave)


async def test_each_gets_its_own_outcome():
    thread = thread_of(works := Works())
    got = await asyncio.gather(thread.do(1), thread.do(-2), thread.do(3), return_exceptions=True)
    assert got[0] == 2 and got[2] == 6
    assert isinstance(got[1], ValueError) and got[1].args == (-2,)
    await thread.close()
    assert works.left == 1


@for_each_row("error", [OSError("the disk is on fire"), StopIteration(), SystemExit(3)], ids=repr)
async def test_work_that_raises_is_told_to_all_who_wait_and_the_thread_goes_on(error: BaseException):
    has_begun, may = threading.Event(), threading.Event()

    def work(jobs: Sequence[int]) -> Sequence[int]:
        has_begun.set()
        may.wait(10)
        if len(jobs) == 2:
            raise error
        return jobs

    thread: WorkerThread[int, int] = WorkerThread("test", work, lambda: None)
    first = asyncio.create_task(thread.do(1))
    await until(has_begun.is_set)
    others = [asyncio.create_task(thread.do(2)), asyncio.create_task(thread.do(3))]
    await asyncio.sleep(0)
    may.set()
    async with asyncio.timeout(DEADLINE):
        assert await first == 1
        got = await asyncio.gather(*others, return_exceptions=True)
        assert got[0] is not got[1]
        assert [(type(each), each.__cause__) for each in got if isinstance(each, BaseException)] == 2 * [
            (RuntimeError, error)
        ]
        assert await thread.do(4) == 4
        await thread.close()


async def test_work_that_forgets_a_job_leaves_nobody_waiting():
    thread: WorkerThread[int, int] = WorkerThread("test", lambda jobs: [], lambda: None)
    async with asyncio.timeout(DEADLINE):
        for _ in range(2):
            with pytest.raises(RuntimeError):
                await thread.do(1)
        await thread.close()


async def test_what_comes_while_it_works_is_done_together_and_in_order():
    thread = thread_of(works := Works())
    works.may.clear()
    asked = [asyncio.create_task(thread.do(n)) for n in range(20)]
    await asyncio.sleep(0)
    works.may.set()
    assert await asyncio.gather(*asked) == [2 * n for n in range(20)]
    assert functools.reduce(operator.iadd, works.done, []) == list(range(20))
    assert len(works.done) <= 3
    await thread.close()


async def test_one_who_is_cancelled_leaves_at_once_and_the_job_is_done_all_the_same():
    thread = thread_of(works := Works())
    works.may.clear()
    gone, stays = asyncio.create_task(thread.do(1)), asyncio.create_task(thread.do(2))
    await asyncio.sleep(0)
    gone.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await gone
    works.may.set()
    assert await stays == 4
    await thread.close()
    assert functools.reduce(operator.iadd, works.done, []) == [1, 2]


async def test_one_who_is_cancelled_before_it_waits_does_not_wait():
    thread = thread_of(works := Works())
    works.may.clear()

    async def cancelled_first() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return await thread.do(1)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancelled_first())
    works.may.set()
    await thread.close()


async def test_one_who_waits_no_longer_than_so_long_goes_on_in_time():
    thread = thread_of(works := Works())
    works.may.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await thread.do(1)
    works.may.set()
    assert await thread.do(2) == 4
    await thread.close()


async def test_who_goes_on_has_the_variables_it_had():
    thread = thread_of(Works())

    async def call(name: str) -> str:
        VAR.set(name)
        await thread.do(1)
        return VAR.get()

    names = [f"n{n}" for n in range(10)]
    assert await asyncio.gather(*map(call, names)) == names
    await thread.close()


def test_loops_of_several_threads_share_a_thread():
    thread, got = thread_of(Works()), []

    def ask(number: int) -> None:
        async def story() -> None:
            got.append(await thread.do(number))

        asyncio.run(story())

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(got) == [0, 2, 4, 6, 8]
    asyncio.run(thread.close())


def test_when_one_who_goes_on_ends_the_program_the_others_are_still_told():
    thread = thread_of(works := Works())
    loop = asyncio.new_event_loop()

    async def leave() -> None:
        await thread.do(1)
        raise SystemExit(3)

    works.may.clear()
    tasks = [loop.create_task(leave()), loop.create_task(thread.do(2))]
    loop.call_later(0.01, works.may.set)
    with pytest.raises(SystemExit):
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    assert loop.run_until_complete(tasks[1]) == 4
    loop.run_until_complete(thread.close())
    loop.close()
