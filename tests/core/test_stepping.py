"""Coroutines that are stepped by hand behave as those that a task steps."""

from __future__ import annotations

import asyncio

import pytest

from defserve.core.engine import await_started_coroutine


def test_what_is_thrown_in_does_not_become_the_context_of_what_was_raised_before() -> None:
    """anyio takes a cancellation for its own if one of its own is in the context, and swallows it."""

    async def work() -> None:
        first: BaseException | None = None
        for _ in range(2):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                first = first or error
        assert first is not None
        raise first

    stepped = work()
    left = await_started_coroutine(stepped, stepped.send(None))
    left.send(None)
    left.throw(asyncio.CancelledError("the first"))
    with pytest.raises(asyncio.CancelledError, match="the first") as raised:
        left.throw(asyncio.CancelledError("the second"))
    assert raised.value.__context__ is None


def test_a_rest_that_is_closed_closes_its_coroutine() -> None:
    closed: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    stepped = work()
    left = await_started_coroutine(stepped, stepped.send(None))
    left.send(None)
    left.close()
    assert closed == [True]
