"""An app under test. Tests of sessions run twice: with the logs of sessions in memory, and in Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from tests.asgi import living
from tests.raw import turns
from tests.serve.web_tools import Tools
from tests.stores.redis_server import RedisServer, start_shared_redis

# Other tests of HTTP have their sessions in memory; those of several processes in Redis.
OF_SESSIONS = {
    *("test_resumption", "test_streamable", "test_streams"),
    *("shared.test_changes", "shared.test_questions", "shared.test_sessions", "shared.test_streams"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module.__name__.removeprefix("tests.serve.http.")
    chosen = {mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")}
    if "shared" in metafunc.fixturenames and module in OF_SESSIONS and "shared" not in chosen:
        metafunc.parametrize("shared", ["memory", "redis"], indirect=True)


@pytest.fixture(scope="session")
def redis() -> RedisServer:
    return start_shared_redis()


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> str | None:
    """Where the processes of a server share their sessions; None: they are in the memory of one."""
    if getattr(request, "param", "memory") == "memory":
        return None
    return f"{request.getfixturevalue('redis').address}?prefix={uuid4().hex}:"


@pytest.fixture
def tools(shared: str | None) -> Tools:
    return Tools(shared=shared)


@pytest.fixture
async def app(tools: Tools) -> AsyncIterator[Any]:
    async with living(tools.server.asgi()) as app:
        yield app
        tools.go.set()
        await turns()
