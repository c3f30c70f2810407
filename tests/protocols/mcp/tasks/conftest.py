from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.redis_server import RedisServer


@pytest.fixture(params=["sqlite", "redis"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a store that several servers share."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'tasks.db'}"
        return
    redis = RedisServer("--appendonly", "yes").start()
    yield redis.address
    redis.remove()
