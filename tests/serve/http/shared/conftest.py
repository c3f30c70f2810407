"""Several processes of one server, as apps in this one: each has its own link to one real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from tests.serve.http.shared.group import Group
from tests.stores.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    yield server
    server.remove()


@pytest.fixture(autouse=True)
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine ends no lease; tests do."""
    monkeypatch.setattr("defserve.stores.shared.worker_link.LEASE", 600.0)


@pytest.fixture
async def group(redis: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        group = Group(f"{redis.address}?prefix={abs(hash(request.node.name))}:", stack)
        await group.start("one")
        await group.start("two")
        yield group
        for worker in group.workers.values():
            worker.go.set()


@pytest.fixture
async def pair(redis: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    """A group without processes: the test starts them as it needs them."""
    async with AsyncExitStack() as stack:
        yield Group(f"{redis.address}?prefix={abs(hash(request.node.name))}:", stack)
