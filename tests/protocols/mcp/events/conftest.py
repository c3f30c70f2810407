from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.postgres_server import PostgresServer, start_shared_postgres
from tests.stores.redis_server import RedisServer, start_shared_redis


@pytest.fixture(scope="session")
def redis() -> RedisServer:
    return start_shared_redis()


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    return start_shared_postgres()


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a store that several processes share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'events.db'}"
    if request.param == "postgres":
        return request.getfixturevalue("postgres").make_address()
    return f"{request.getfixturevalue('redis').address}?prefix={tmp_path.name}:"
