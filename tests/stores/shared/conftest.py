"""A Redis of their own for the tests of what workers share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.stores.redis_server import client_of_own_redis


@pytest.fixture(scope="module")
def redis() -> Iterator[Any]:
    with client_of_own_redis() as client:
        yield client
