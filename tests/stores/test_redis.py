"""The store in Redis, in trouble: killed, unreachable, full, shared. The tests start a redis-server of their own."""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from defserve.errors import UsageError
from defserve.stores.checkpoints.checkpoint_store import CheckpointStore
from defserve.stores.identity import open_store
from defserve.stores.redis import RedisAddress, RedisStore
from defserve.stores.store import Store, StoreChange, StoreFull, StoreReadOnly, StoreUnavailable
from tests.stores.committing import KEY, SECRET, assert_one_line, committing_to
from tests.stores.conftest import Run
from tests.stores.redis_server import RedisServer, balancing
from tests.waiting import until


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    yield server
    server.remove()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_processes_on_one_redis_never_fork_or_lose_a_serialised_tree(own_redis: RedisServer, run: Run):
    processes = [committing_to(own_redis.address, 60, name) for name in ("a", "b")]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]

    async def story() -> None:
        store = open_store(own_redis.address)
        await assert_one_line(CheckpointStore(store, secret=SECRET), outputs)
        await store.close()

    run(story())


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nothing_acknowledged_is_lost_when_redis_is_killed(own_redis: RedisServer, run: Run):
    acknowledged: list[str] = []
    for _ in range(int(os.environ.get("DEFSERVE_KILLS", "4"))):
        process = committing_to(own_redis.address, 100_000, "killed")
        assert process.stdout is not None
        acknowledged += [process.stdout.readline() for _ in range(random.randint(1, 60))]
        own_redis.kill()
        process.kill()
        acknowledged += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        own_redis.start()
    said = [line.split() for line in acknowledged if line.endswith("\n")]

    async def story() -> None:
        store = open_store(own_redis.address)
        trees = CheckpointStore(store, secret=SECRET)
        for id, mark in said:
            assert (await trees.load_content(KEY, id))["marks"][-1] == mark
        assert await trees.verify(KEY) == []
        await store.close()

    run(story())


def test_a_redis_that_is_away_is_told_and_found_again(own_redis: RedisServer, run: Run):
    async def story() -> None:
        store = open_store(own_redis.address)
        assert await store.change(StoreChange("s", put={"a": b"1"}))
        own_redis.kill()
        for asked in (
            store.get("s", ["a"]),
            store.change(StoreChange("s", put={"a": b"2"})),
            store.open(),
            store.check(),
        ):
            with pytest.raises(StoreUnavailable) as caught:
                await asked
            assert str(own_redis.folder) not in caught.value.message
        own_redis.start()
        assert await store.get("s", ["a"]) == {"a": b"1"}
        assert await store.change(StoreChange("s", put={"a": b"2"}, expect={"a": b"1"}))
        await store.close()

    run(story())


@pytest.mark.parametrize(
    ("setting", "value", "usual", "problem"),
    [("maxmemory", "1", "0", StoreFull), ("min-replicas-to-write", "1", "0", StoreUnavailable)],
)
def test_a_redis_that_takes_nothing_is_told_and_survived(
    own_redis: RedisServer, run: Run, setting: str, value: str, usual: str, problem: type[Exception]
):
    async def story() -> None:
        store: Any = open_store(own_redis.address)
        await store.change(StoreChange("s", put={"a": b"1"}))
        await store._client.config_set(setting, value)
        with pytest.raises(problem):
            await store.change(StoreChange("s", put={"a": b"2"}))
        assert await store.get("s", ["a"]) == {"a": b"1"}
        await store._client.config_set(setting, usual)
        assert await store.change(StoreChange("s", put={"a": b"2"}))
        await store.close()

    run(story())


def test_a_replica_is_read_only(own_redis: RedisServer, run: Run):
    async def story() -> None:
        store: Any = open_store(own_redis.address)
        await store.open()
        await store._client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreReadOnly):
            await store.change(StoreChange("s", put={"a": b"2"}))
        await store.close()

    run(story())


def test_a_store_follows_its_address_to_another_primary(own_redis: RedisServer, run: Run):
    async def story() -> None:
        primaries, change = [own_redis], StoreChange("s", put={"a": b"1"})
        async with balancing(primaries) as address:
            store: Any = open_store(address)
            await store.change(change)
            await store._client.execute_command("REPLICAOF", "127.0.0.1", "1")
            primaries.append(RedisServer().start())
            with pytest.raises(StoreReadOnly):
                await store.change(change)
            assert await store.change(change)
            await store.close()
        primaries[-1].remove()

    run(story())


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("appendonly", "yes", ""),
        ("appendonly", "no", "appendonly is no"),
        ("appendfsync", "everysec", "is everysec"),
        ("maxmemory-policy", "noeviction", ""),
        ("maxmemory-policy", "allkeys-lru", "is allkeys-lru"),
        ("maxmemory-policy", "volatile-ttl", "is volatile-ttl"),
    ],
)
def test_opening_warns_of_a_redis_that_may_forget(
    own_redis: RedisServer, run: Run, caplog: pytest.LogCaptureFixture, setting: str, value: str, said: str
):
    async def story() -> None:
        store: Any = open_store(own_redis.address)
        await (await store._redis()).config_set("maxmemory", "1gb")
        await (await store._redis()).config_set(setting, value)
        with caplog.at_level(logging.WARNING, "defserve"):
            await store.open()
        await store.close()

    run(story())
    assert said in caplog.text
    assert bool(caplog.text) is bool(said)


def test_a_space_is_forgotten_by_redis_itself(own_redis: RedisServer, run: Run):
    async def story() -> None:
        store: Any = open_store(own_redis.address)
        await store.change(StoreChange("n", put={"a": b"1"}, ttl=60))
        assert 59_000 < await store._client.pttl("defserve:n") <= 60_000
        await store.close()

    run(story())


def test_one_store_may_be_used_in_one_loop_after_the_other(own_redis: RedisServer):
    import asyncio

    store = open_store(own_redis.address)

    async def use(value: bytes) -> dict[str, bytes]:
        await store.change(StoreChange("s", put={"a": value}))
        found = await store.get("s", ["a"])
        await store.close()
        return found

    assert [asyncio.run(use(value)) for value in (b"1", b"2")] == [{"a": b"1"}, {"a": b"2"}]


def test_without_the_extra_the_install_line_is_in_the_error(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("redis"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"pip install 'defserve\[redis\]'"):
        open_store("redis://localhost")


@pytest.mark.slow
def test_a_cancelled_task_is_never_answered_as_if_it_were_not(redis: RedisServer, run: Run):
    async def cancelled_at(turn: int, store: Store) -> bool:
        asking = asyncio.ensure_future(store.get("space", ["name"]))
        for _ in range(turn):
            await asyncio.sleep(0)
        told = asking.cancel()
        await asyncio.wait([asking])
        return asking.cancelled() or not told

    async def story() -> None:
        store = open_store(redis.address)
        assert all([await cancelled_at(turn % 12, store) for turn in range(600)])
        await store.close()

    run(story())


def test_who_follows_a_space_goes_on_whatever_redis_py_raises(
    run: Run, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("defserve.stores.redis.AGAIN", 0.001)
    failures = [AttributeError("'NoneType' object has no attribute 'write'"), RuntimeError("the handler is closed")]
    client = RedisAddress.client

    def failing(*given: Any, **more: Any) -> Any:
        made = client(*given, **more)
        if failures:
            made.pubsub = lambda: FailingPubSub(failures.pop())
        return made

    class FailingPubSub:
        def __init__(self, error: Exception) -> None:
            self._error = error

        async def subscribe(self, name: str) -> None:
            raise self._error

        async def aclose(self) -> None: ...

    async def story() -> None:
        store = RedisStore(f"unix://{redis.socket}")
        monkeypatch.setattr(RedisAddress, "client", failing)
        following = store.follow("keys")
        async with asyncio.timeout(30):
            assert await anext(following) == ""
        await following.aclose()

    run(story())
    assert not failures


def test_who_may_not_follow_a_space_is_told_of_nothing_and_the_log_says_so_once(
    own_redis: RedisServer, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("defserve.stores.redis.AGAIN", 0.001)
    monkeypatch.setattr("defserve.stores.redis.MAX_PAUSE_SECONDS", 0.05, raising=False)
    caplog.set_level(logging.ERROR, "defserve")

    async def story() -> None:
        store, told, tries = RedisStore(f"unix://{own_redis.socket}"), list[str](), list[Any]()
        redis: Any = store.address.client()
        client = RedisAddress.client
        monkeypatch.setattr(RedisAddress, "client", lambda *given, **more: tries.append(more) or client(*given, **more))
        await redis.execute_command("ACL", "SETUSER", "default", "resetchannels")

        async def follow() -> None:
            async for about in store.follow("keys"):
                told.append(about)

        following = asyncio.create_task(follow())
        await until(lambda: len(tries) > 4)
        assert told == []
        assert len([text for text in caplog.messages if "in trouble" in text]) == 1
        await redis.execute_command("ACL", "SETUSER", "default", "allchannels")
        await until(lambda: told == [""])
        await store.announce("keys", "one")
        await until(lambda: told == ["", "one"])
        await redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await until(lambda: told[2:3] == [""])
        await store.announce("keys", "two")
        await until(lambda: "two" in told)
        following.cancel()
        await asyncio.wait((following,))
        for each in (store.close, redis.aclose):
            await each()

    run(story())
