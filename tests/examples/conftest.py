"""Each example is driven by the test of its name, over every transport and in both eras.

A new transport is one more line in `TRANSPORTS`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from defserve.client import Client, ClientLink, connect_url
from defserve.serve.lifespans import connect_in_memory
from tests.at_address import at_address, fresh
from tests.forking.spawning import spawn
from tests.protocols.mgp.callers import offer
from tests.stores.redis_server import RedisServer

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
VERSIONS = ("2025-11-25", "2026-07-28")

ConnectTo = Callable[..., AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def over_memory(example: str, key: str | None) -> AsyncGenerator[ClientLink]:
    async with connect_in_memory(fresh(example).composition) as link:
        yield link


@asynccontextmanager
async def over_stdio(example: str, key: str | None) -> AsyncGenerator[ClientLink]:
    yield await spawn(EXAMPLES / f"{example}.py")


@asynccontextmanager
async def over_http(example: str, key: str | None) -> AsyncGenerator[ClientLink]:
    async with at_address(fresh(example), "http", key) as url:
        yield await connect_url(url, token=key)


@asynccontextmanager
async def over_websocket(example: str, key: str | None) -> AsyncGenerator[ClientLink]:
    async with at_address(fresh(example), "ws", key) as url:
        yield await connect_url(url, token=key)


TRANSPORTS: dict[str, Callable[[str, str | None], AbstractAsyncContextManager[ClientLink]]] = {
    "memory": over_memory,
    "stdio": over_stdio,
    "http": over_http,
    "websocket": over_websocket,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """By default a test for all eras takes each transport in one of them, in turns; `make test-slow` has the others."""
    for item in items:
        given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if item.path.parent != HERE or "transport" not in given or "version" not in given:
            continue
        in_one_era = any("version" in mark.args[0] for mark in item.iter_markers("parametrize"))
        turn = crc32(item.name.partition("[")[0].encode()) + [*TRANSPORTS].index(given["transport"])
        if not in_one_era and given["version"] != VERSIONS[turn % len(VERSIONS)]:
            item.add_marker("slow")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["plain", "mgp"])
def speaking(request: pytest.FixtureRequest, version: str) -> dict[str, Any]:
    """The capabilities of a plain MCP client, and of one that speaks MGP."""
    return offer(version, "security", "code_safety") if request.param == "mgp" else {}


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    yield server
    server.remove()


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that nothing is in yet."""
    if request.param == "memory":
        return "memory:"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return f"{request.getfixturevalue('redis').address}?prefix={secrets.token_hex(4)}:"


@pytest.fixture
def connect_to(transport: str, version: str) -> ConnectTo:
    """`async with connect_to("hello", **options_of_Client) as client`. From the network only a `known` client's yes
    counts; in memory and over stdio every client is known."""

    @asynccontextmanager
    async def connect(example: str, known: bool = False, **options: Any) -> AsyncGenerator[Client]:
        key = secrets.token_urlsafe(32) if known else None
        async with TRANSPORTS[transport](example, key) as link, Client(link, version=version, **options) as client:
            assert client.version == version
            yield client

    return connect
