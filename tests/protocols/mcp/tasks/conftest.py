from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.postgres_server import PostgresServer
from tests.stores.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    server = RedisServer("--appendonly", "yes").start()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a store that several servers share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tasks.db'}"
    if request.param == "postgres":
        return request.getfixturevalue("postgres").make_address()
    return f"{request.getfixturevalue('redis').address}?prefix={tmp_path.name}:"
