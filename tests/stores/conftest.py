"""The stores under test, and a loop to use them from tests that are not asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from defserve.stores.checkpoints import checkpoint_tree
from defserve.stores.identity import open_store
from defserve.stores.store import Store
from tests.stores.postgres_server import PostgresServer, start_shared_postgres
from tests.stores.redis_server import RedisServer, start_shared_redis

Run = Callable[[Awaitable[Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    async def awaited(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    with asyncio.Runner() as runner:
        yield lambda awaitable: runner.run(awaited(awaitable))


@pytest.fixture(scope="session")
def redis() -> RedisServer:
    return start_shared_redis()


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    return start_shared_postgres()


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, run: Run) -> Iterator[Store]:
    addresses: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory:",
        "sqlite": lambda: f"sqlite:///{tmp_path / 'store.db'}",
        "redis": lambda: f"{request.getfixturevalue('redis').address}?prefix={tmp_path.name}:",
        "postgres": lambda: request.getfixturevalue("postgres").make_address(),
    }
    made = open_store(addresses[request.param]())
    yield made
    run(made.close())


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small contents are kept as patches, too."""
    monkeypatch.setattr(checkpoint_tree, "WHOLE", 0)
