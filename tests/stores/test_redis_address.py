"""Addresses of a Redis, alone or watched by Sentinels."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from defserve import Server, UsageError
from defserve.stores.identity import open_store
from defserve.stores.redis import RedisAddress, RedisStore
from defserve.stores.store import StoreUnavailable
from tests.rows import for_each_row


def test_the_prefix_is_read_and_credentials_stay_out_of_logs():
    address = RedisAddress("redis://user:secret@db.example:6380/3?prefix=mine:")
    assert (address.prefix, address.where) == ("mine:", "redis://db.example:6380")
    assert RedisAddress("unix:///run/redis.sock").where == "unix:///run/redis.sock"
    client = address.client()
    assert client.connection_pool.connection_kwargs["db"] == 3


@for_each_row(
    ("address", "sentinels", "service", "db"),
    [
        ("redis+sentinel://a:1,b:2/main/4", [("a", 1), ("b", 2)], "main", 4),
        ("redis+sentinel://a/main", [("a", 26379)], "main", 0),
        ("redis+sentinel://me:pw@[::1]:5,b/main/0?prefix=x:", [("::1", 5), ("b", 26379)], "main", 0),
    ],
)
def test_a_redis_that_sentinels_watch_is_found_through_them(
    address: str, sentinels: list[tuple[str, int]], service: str, db: int
):
    pool = RedisAddress(address).client().connection_pool
    known = [tuple(each.connection_pool.connection_kwargs[name] for name in ("host", "port")) for each in _of(pool)]
    assert (known, pool.service_name, pool.connection_kwargs["db"]) == (sentinels, service, db)
    assert isinstance(open_store(address), RedisStore)
    assert Server("s", store=address).shared == address
    assert Server("s", shared=address).store is None


def _of(pool: object) -> list[object]:
    return pool.sentinel_manager.sentinels  # type: ignore[attr-defined]


@for_each_row("address", ["redis+sentinel://a:1", "redis+sentinel:///main", "redis+sentinel://a:x/main"])
def test_an_incomplete_address_is_refused(address: str):
    with pytest.raises(UsageError):
        RedisAddress(address).client()


@for_each_row("address", ["memory:", "sqlite:///a.db", "localhost:6379"])
def test_sessions_are_shared_through_a_redis_only(address: str):
    with pytest.raises(UsageError, match="is not the address of a Redis"):
        Server("s", shared=address)
    if ":" in address and not address.startswith("localhost"):
        assert Server("s", store=address).shared is None


def test_a_connection_that_uvloop_has_closed_is_a_store_that_cannot_be_reached():
    uvloop = pytest.importorskip("uvloop")

    async def write_to_what_is_closed(address: tuple[str, int]) -> None:
        _, writer = await asyncio.open_connection(*address)
        writer.transport.abort()
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable), RedisAddress("redis://h").translate_redis_errors():
            writer.write(b"PING")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        uvloop.run(write_to_what_is_closed(listening.getsockname()))


def test_a_mistake_of_our_own_is_no_error_of_the_store():
    async def fail(error: Exception) -> Any:
        with RedisAddress("redis://h").translate_redis_errors():
            raise error

    for error in (RuntimeError("dictionary changed size during iteration"), KeyError("x")):
        with pytest.raises(type(error)):
            asyncio.run(fail(error))
