"""How worker threads have something called on the event loop: the same in asyncio's way and by a descriptor."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from defserve.serve.threads import CallSoonWaker, EventfdWaker, LoopWaker, make_loop_waker

WAYS = [
    CallSoonWaker,
    pytest.param(EventfdWaker, marks=pytest.mark.skipif(not hasattr(os, "eventfd"), reason="Linux only")),
]
VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="none")

each_way = pytest.mark.parametrize("way", WAYS)


def run(
    way: Callable[[asyncio.AbstractEventLoop], LoopWaker], work: Callable[[LoopWaker], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        made = way(asyncio.get_running_loop())
        try:
            await asyncio.wait_for(work(made), 30)
        finally:
            made.close()

    asyncio.run(main())


def in_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


@each_way
def test_a_thread_has_something_called_on_the_loop(way: Any) -> None:
    async def work(made: LoopWaker) -> None:
        called, threads = asyncio.Event(), list[int]()

        def action() -> None:
            threads.append(threading.get_ident())
            called.set()

        for _ in range(3):
            called.clear()
            in_thread(lambda: made.wake(action))
            await called.wait()
        assert threads == [threading.get_ident()] * 3

    run(way, work)


@each_way
def test_an_action_leaves_nothing_in_the_context_of_the_next(way: Any) -> None:
    async def work(made: LoopWaker) -> None:
        seen, called = list[str](), asyncio.Event()

        def action() -> None:
            seen.append(VARIABLE.get())
            VARIABLE.set("left behind")
            called.set()

        for _ in range(2):
            called.clear()
            in_thread(lambda: made.wake(action))
            await called.wait()
        assert seen == ["none", "none"]

    run(way, work)


@each_way
def test_a_thread_that_is_late_is_heard_after_the_close(way: Any) -> None:
    async def work(made: LoopWaker) -> None:
        called = asyncio.Event()
        made.close()
        in_thread(lambda: made.wake(called.set))
        await called.wait()

    run(way, work)


@each_way
def test_what_a_thread_asked_for_before_the_close_is_called(way: Any) -> None:
    async def work(made: LoopWaker) -> None:
        called = asyncio.Event()
        in_thread(lambda: made.wake(called.set))
        made.close()
        await called.wait()

    run(way, work)


@each_way
def test_a_loop_that_has_ended_is_an_error(way: Any) -> None:
    kept: list[LoopWaker] = []

    async def work(made: LoopWaker) -> None:
        kept.append(made)

    run(way, work)
    with pytest.raises(RuntimeError):
        kept[0].wake(lambda: None)


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="Linux only")
def test_the_descriptor_is_closed_once() -> None:
    async def work(made: LoopWaker) -> None:
        before = len(os.listdir("/proc/self/fd"))
        made.close()
        made.close()
        assert len(os.listdir("/proc/self/fd")) == before - 1

    run(EventfdWaker, work)


def test_other_loops_are_woken_in_their_own_way() -> None:
    uvloop = pytest.importorskip("uvloop")
    loop = uvloop.new_event_loop()
    try:
        assert isinstance(make_loop_waker(loop), CallSoonWaker)
    finally:
        loop.close()
