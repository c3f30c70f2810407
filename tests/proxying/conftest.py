"""Fronts and backends: every pair of eras, over a pipe and over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from defserve import Command, Remote, Server
from defserve.host import Client
from tests.at_address import at_address
from tests.proxying.everything import everything
from tests.waiting import DEADLINE

ROOT = Path(__file__).parents[2]
ERAS = ("handshake", "stateless")
CARRIERS = ("pipe", "http")

Hears: TypeAlias = Callable[[str, dict[str, Any]], None]


class Join:
    """Opens a client of a server that mounts one with everything."""

    def __init__(self, front: str, back: str, carrier: str) -> None:
        self.front, self.back, self.carrier = front, back, carrier

    @asynccontextmanager
    async def __call__(self, prefix: str | None = "e", **options: Any) -> AsyncGenerator[Client]:
        server = Server("front", "1")
        if self.carrier == "pipe":
            server.mount(child(version=self.back), prefix=prefix)
            async with server.connect(self.front, **options) as client:
                yield client
            return
        async with at_address(everything()) as url:
            server.mount(Remote(url, version=self.back), prefix=prefix)
            async with server.connect(self.front, **options) as client:
                yield client


def hearing(heard: list[Any], member: str | None = None) -> Hears:
    """Keeps the method of each notification, or one member of its params."""
    return lambda method, params: heard.append(params.get(member) if member else method)


async def until_fact(client: Client, name: str) -> None:
    """Wait until something has happened in the backend of a client."""
    async with asyncio.timeout(DEADLINE):
        while not await client.call("e_fact", name=name):  # noqa: ASYNC110 (it happens in another process)
            await asyncio.sleep(0.01)


async def until_listed(client: Client, name: str) -> None:
    """Wait until a tool is offered."""
    async with asyncio.timeout(DEADLINE):
        while name not in [tool["name"] for tool in await client.tools()]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def child(*words: str, **options: Any) -> Command:
    """A Python program as a backend."""
    env = {"PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return Command(sys.executable, *(words or ("-m", "tests.proxying.everything")), env=env, **options)


@pytest.fixture(params=[f"{front}-{back}-{carrier}" for front in ERAS for back in ERAS for carrier in CARRIERS])
def join(request: pytest.FixtureRequest) -> Join:
    """Each pair of eras, over a pipe and over HTTP."""
    return Join(*request.param.split("-"))


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children find the tests' modules."""
    monkeypatch.chdir(ROOT)
    assert os.getcwd() == str(ROOT)
