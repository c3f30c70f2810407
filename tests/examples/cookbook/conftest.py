"""Each recipe is driven by the test of its name: the program is loaded anew, in an empty folder of its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from defserve import Server
from tests.at_address import fresh
from tests.stores.postgres_server import PostgresServer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one: what a program writes stays in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_loop() -> Iterator[None]:
    """The loop of this thread. Mangum takes it, and would make one that nobody closes if there were none."""
    with asyncio.Runner() as runner:
        runner.get_loop()
        yield


@pytest.fixture
def server(request: pytest.FixtureRequest, folder: Path) -> Server:
    return fresh(f"cookbook.{request.path.stem.removeprefix('test_')}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def database(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty database, also in the environment."""
    import psycopg

    name = f"test_{secrets.token_hex(4)}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"create database {name}")  # pyright: ignore
    url = postgres.url.replace("/postgres?", f"/{name}?")
    monkeypatch.setenv("DATABASE_URL", url)
    return url
