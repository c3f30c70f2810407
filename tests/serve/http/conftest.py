from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.asgi import living
from tests.raw import turns
from tests.serve.web_tools import Tools


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture
async def app(tools: Tools) -> AsyncIterator[Any]:
    async with living(tools.server.asgi()) as app:
        yield app
        tools.go.set()
        await turns()
