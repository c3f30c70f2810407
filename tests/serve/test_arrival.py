"""A future that is set from outside: the task that waits for it goes on at once, where that is possible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import pytest

from defserve.serve.threads import ImmediateFuture
from tests.rows import for_each_row


async def set_in_callback(action: Callable[[], Any]) -> None:
    """Call it in a callback of the loop, as a transport is called."""
    asyncio.get_running_loop().call_soon(action)
    await asyncio.sleep(0)


async def waiting(told: list[str], bring: Callable[[Any], Any]) -> None:
    arrival = ImmediateFuture[int](loop=asyncio.get_running_loop())

    async def wait() -> None:
        try:
            told.append(f"got {await arrival}")
        except ZeroDivisionError:
            told.append("failed")
        except asyncio.CancelledError:
            told.append("cancelled")

    def brought() -> None:
        bring(arrival)
        told.append("brought")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    await set_in_callback(brought)
    await task


@for_each_row(
    ("verb", "values", "wanted"),
    [
        ("set_result", (1,), ["got 1", "brought"]),
        ("set_exception", (ZeroDivisionError(),), ["failed", "brought"]),
        ("cancel", (), ["brought", "cancelled"]),
    ],
)
def test_a_task_goes_on_in_the_callback_that_brings_it(verb: str, values: tuple[Any, ...], wanted: list[str]) -> None:
    told = list[str]()
    asyncio.run(waiting(told, methodcaller(verb, *values)))
    assert told == wanted


def test_what_another_task_sets_is_told_later() -> None:
    async def main() -> None:
        arrival, told = ImmediateFuture[int](loop=asyncio.get_running_loop()), list[str]()

        async def wait() -> None:
            told.append(f"got {await arrival} in {asyncio.current_task() is task}")

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        arrival.set_result(1)
        told.append("set")
        await task
        assert told == ["set", "got 1 in True"]

    asyncio.run(main())


def test_all_who_wait_get_it_and_callbacks_come_later() -> None:
    async def main() -> None:
        arrival, told = ImmediateFuture[int](loop=asyncio.get_running_loop()), list[str]()

        async def wait(name: str) -> None:
            await arrival
            told.append(name)

        def removed(_: object) -> None:
            told.append("removed")

        def called(_: object) -> None:
            told.append("callback")

        tasks = [asyncio.create_task(wait(name)) for name in ("one", "two")]
        await asyncio.sleep(0)
        arrival.add_done_callback(called)
        arrival.add_done_callback(removed)
        assert arrival.remove_done_callback(removed) == 1
        await set_in_callback(lambda: arrival.set_result(1))
        await asyncio.gather(*tasks)
        assert await arrival == await asyncio.shield(arrival) == 1
        assert sorted(told) == ["callback", "one", "two"]

    asyncio.run(main())


def test_a_timeout_ends_the_wait() -> None:
    async def main() -> None:
        arrival = ImmediateFuture[int](loop=asyncio.get_running_loop())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await arrival
        assert arrival.cancelled()

    asyncio.run(main())
