"""A future that several wait for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from typing import Any

import pytest

from defserve.base.concurrency import wait_for_shared

pytestmark = pytest.mark.anyio


async def test_each_gets_the_outcome_and_who_is_cancelled_cancels_nothing():
    shared = asyncio.get_running_loop().create_future()
    one, other = (asyncio.ensure_future(wait_for_shared(shared)) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.wait((one,))
    assert one.cancelled() and not shared.done()
    shared.set_result(1)
    assert await other == await wait_for_shared(shared) == 1


async def test_an_error_that_comes_after_all_have_left_is_not_logged():
    loop, logged = asyncio.get_running_loop(), list[Any]()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: logged.append(context))
    shared = loop.create_future()
    waiting = asyncio.ensure_future(wait_for_shared(shared))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    shared.set_exception(ValueError("too late"))
    await asyncio.sleep(0)
    del shared, waiting
    gc.collect()
    loop.set_exception_handler(before)
    assert logged == []


async def test_an_error_is_raised_for_each():
    shared = asyncio.get_running_loop().create_future()
    shared.set_exception(ValueError("a mistake"))
    for _ in range(2):
        with pytest.raises(ValueError, match="a mistake"):
            await wait_for_shared(shared)


async def test_what_an_error_has_seen_is_freed_with_it():
    class Argument:
        pass

    async def fail(argument: Argument) -> None:
        seen.append(weakref.ref(argument))
        raise ValueError

    seen = list[weakref.ref[Argument]]()
    gc.disable()
    try:
        with suppress(ValueError):
            await wait_for_shared(asyncio.ensure_future(fail(Argument())))
        await asyncio.sleep(0)
        assert seen[0]() is None
    finally:
        gc.enable()
