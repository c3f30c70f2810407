"""Several processes of one server, as apps in this one: each has its own link to one real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from tests.serve.http.shared.group import Group


@pytest.fixture(autouse=True)
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine ends no lease; tests do."""
    monkeypatch.setattr("defserve.stores.shared.worker_link.LEASE", 600.0)


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> str | None:
    """Where the processes share their sessions. None: there is one process, whatever name a test calls it by."""
    if getattr(request, "param", "redis") == "memory":
        return None
    return f"{request.getfixturevalue('redis').address}?prefix={uuid4().hex}:"


@pytest.fixture
async def pair(shared: str | None) -> AsyncIterator[Group]:
    """A group without processes: the test starts them as it needs them."""
    async with AsyncExitStack() as stack:
        yield Group(shared, stack)


@pytest.fixture
async def group(pair: Group) -> AsyncIterator[Group]:
    await pair.start("one")
    await pair.start("two")
    yield pair
    for worker in pair.workers.values():
        worker.go.set()
