"""Each example is driven by the test of its name, over every transport and in both eras.

A new transport is one more line in `TRANSPORTS`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module, reload
from pathlib import Path
from typing import Any

import pytest

from defserve.host import Client, Link, ProcessLink
from defserve.runner.memory import serving

EXAMPLES = Path(__file__).parents[2] / "examples"
VERSIONS = ("2025-11-25", "2026-07-28")

ConnectTo = Callable[..., AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def over_memory(example: str) -> AsyncGenerator[Link]:
    # Loaded afresh, as a process would: an example may keep something while it runs.
    module = reload(import_module(f"examples.{example}"))
    async with serving(module.server.composition) as link:
        yield link


@asynccontextmanager
async def over_stdio(example: str) -> AsyncGenerator[Link]:
    yield await ProcessLink.spawn(sys.executable, [str(EXAMPLES / f"{example}.py")])


TRANSPORTS: dict[str, Callable[[str], AbstractAsyncContextManager[Link]]] = {
    "memory": over_memory,
    "stdio": over_stdio,
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def connect_to(transport: str, version: str) -> ConnectTo:
    """`async with connect_to("hello", **options_of_Client) as client`."""

    @asynccontextmanager
    async def connect(example: str, **options: Any) -> AsyncGenerator[Client]:
        async with TRANSPORTS[transport](example) as link, Client(link, version=version, **options) as client:
            assert client.version == version
            yield client

    return connect
