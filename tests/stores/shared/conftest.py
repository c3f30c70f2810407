"""A Redis of their own for the tests of what workers share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from tests.stores.redis_server import RedisServer


@pytest.fixture(scope="module")
def redis() -> Iterator[Any]:
    server = RedisServer().start()
    client = Redis(unix_socket_path=str(server.socket))
    yield client
    client.close()
    server.remove()
