"""Fronts and backends: every pair of eras, over a pipe and over HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from defserve import Command, Remote, Server
from defserve.host import Client
from tests.at_address import at_address
from tests.proxying.everything import everything

ROOT = Path(__file__).parents[2]
ERAS = ("handshake", "stateless")
CARRIERS = ("pipe", "http")

Join: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]


def child(*words: str, **options: Any) -> Command:
    """A Python program as a backend."""
    env = {"PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return Command(sys.executable, *(words or ("-m", "tests.proxying.everything")), env=env, **options)


@pytest.fixture(params=[f"{front}-{back}-{carrier}" for front in ERAS for back in ERAS for carrier in CARRIERS])
def join(request: pytest.FixtureRequest) -> Join:
    """Opens a client of a server that mounts one with everything. Each pair of eras, over a pipe and over HTTP."""
    front, back, carrier = request.param.split("-")

    @asynccontextmanager
    async def joined(prefix: str | None = "e", **options: Any) -> AsyncGenerator[Client]:
        server = Server("front", "1")
        if carrier == "pipe":
            server.mount(child(version=back), prefix=prefix)
            async with server.connect(front, **options) as client:
                yield client
            return
        async with at_address(everything()) as url:
            server.mount(Remote(url, version=back), prefix=prefix)
            async with server.connect(front, **options) as client:
                yield client

    joined.front, joined.back, joined.carrier = front, back, carrier  # pyright: ignore
    return joined


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children find the tests' modules."""
    monkeypatch.chdir(ROOT)
    assert os.getcwd() == str(ROOT)
