"""The desk: conversations for a network transport, and short ones that serve again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from defserve import Server
from defserve.auth.principals import anonymous
from defserve.runner.web import SPARE, WebDesk

pytestmark = pytest.mark.anyio

ALICE, BOB = anonymous("10.0.0.1"), anonymous("10.0.0.2")


def nowhere(message: Any) -> None: ...


@pytest.fixture
async def desk() -> AsyncIterator[WebDesk]:
    desk = WebDesk(Server("s", "1").composition)
    await desk.start(lambda: None)
    yield desk
    await desk.stop()


def short(desk: WebDesk, principal: Any = ALICE) -> Any:
    return desk.open(nowhere, principal=principal, counted=False)


async def test_a_short_conversation_that_nothing_is_left_in_serves_the_same_caller_again(desk: WebDesk):
    first = short(desk)
    assert desk.composition.short_sessions == {first}
    desk.end(first)
    assert desk.composition.short_sessions == set()
    assert short(desk) is first
    assert desk.composition.short_sessions == {first}


async def test_nobody_else_is_given_it(desk: WebDesk):
    first = short(desk)
    desk.end(first)
    other = short(desk, BOB)
    assert other is not first and other.principal == BOB.id
    assert desk.open(nowhere, principal=ALICE, counted=True) is not first


async def test_one_that_is_in_use_is_not_shared(desk: WebDesk):
    assert short(desk) is not short(desk)


async def test_one_that_something_was_kept_in_is_over(desk: WebDesk):
    used = short(desk)
    used.local(list).append("mine")
    desk.end(used)
    assert used.closed and short(desk).peek(list) is None


async def test_only_so_many_wait(desk: WebDesk):
    many = [short(desk) for _ in range(SPARE + 10)]
    for each in many:
        desk.end(each)
    assert sum(each.closed for each in many) == 10


async def test_none_outlives_the_desk(desk: WebDesk):
    first = short(desk)
    desk.end(first)
    await desk.stop()
    await desk.start(lambda: None)
    assert short(desk) is not first
