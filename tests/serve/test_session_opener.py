"""The desk: conversations for a network transport, and short ones that serve again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from defserve import Server
from defserve.auth.principals import make_anonymous_principal
from defserve.serve.session_opener import SPARE, SessionOpener

pytestmark = pytest.mark.anyio

ALICE, BOB = make_anonymous_principal("10.0.0.1"), make_anonymous_principal("10.0.0.2")


def nowhere(message: Any) -> None: ...


@pytest.fixture
async def provider() -> AsyncIterator[SessionOpener]:
    provider = SessionOpener(Server("s", "1").composition)
    await provider.start(lambda: None)
    yield provider
    await provider.stop()


def short(provider: SessionOpener, principal: Any = ALICE) -> Any:
    return provider.open(nowhere, principal=principal, counted=False)


async def test_a_short_conversation_that_nothing_is_left_in_serves_the_same_caller_again(provider: SessionOpener):
    first = short(provider)
    assert provider.composition.short_sessions == {first}
    provider.release_session(first)
    assert provider.composition.short_sessions == set()
    assert short(provider) is first
    assert provider.composition.short_sessions == {first}


async def test_nobody_else_is_given_it(provider: SessionOpener):
    first = short(provider)
    provider.release_session(first)
    other = short(provider, BOB)
    assert other is not first and other.principal == BOB.id
    assert provider.open(nowhere, principal=ALICE, counted=True) is not first


async def test_one_that_is_in_use_is_not_shared(provider: SessionOpener):
    assert short(provider) is not short(provider)


async def test_one_that_something_was_kept_in_is_over(provider: SessionOpener):
    used = short(provider)
    used.local(list).append("mine")
    provider.release_session(used)
    assert used.closed and short(provider).peek(list) is None


async def test_only_so_many_wait(provider: SessionOpener):
    many = [short(provider) for _ in range(SPARE + 10)]
    for each in many:
        provider.release_session(each)
    assert sum(each.closed for each in many) == 10


async def test_none_outlives_the_desk(provider: SessionOpener):
    first = short(provider)
    provider.release_session(first)
    await provider.stop()
    await provider.start(lambda: None)
    assert short(provider) is not first
