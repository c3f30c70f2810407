"""Tables of all processes: what takes access away always has room, and what says nothing any more makes room."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from defserve import Server
from defserve.errors import LimitExceeded
from defserve.server import AccessPolicy, Entry
from defserve.server.sharing import SharedAccessEntries
from defserve.stores.identity import ServerIdentity
from defserve.stores.shared import shared_tables
from defserve.stores.shared.worker_link import SharedStoreLink
from tests.stores.redis_server import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.anyio

ROOM = 1000
KEY = "p:server:name=notes:shared:table:access"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.remove()


@pytest.fixture
def redis(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(shared_tables, "MAX_TABLE_BYTES", ROOM)
    with Redis(unix_socket_path=str(server.socket)) as client:
        client.flushall()
        yield client


class Process:
    """A policy that is shared through a link of its own."""

    def __init__(self, address: str, *declared: Entry) -> None:
        self.link = SharedStoreLink(address, ServerIdentity("name", "notes"))
        self.policy = AccessPolicy("opt-in", declared)
        self.entries = SharedAccessEntries(self.link, self.policy, Server("web", "1").mcp.subscriptions)


@pytest.fixture
async def processes(redis: Any, server: RedisServer) -> AsyncIterator[list[Process]]:
    made = [Process(f"{server.address}?prefix=p:", Entry("server_grant", "declared")) for _ in range(2)]
    for each in made:
        await each.link.start()
        await until(lambda each=each: each.link.is_up)
    yield made
    for each in made:
        await each.link.stop()


def allowed(process: Process, agent: str) -> bool:
    return process.policy.decide(agent, None, datetime.now(UTC)).permission == "allow"


async def fill(process: Process) -> list[str]:
    names: list[str] = []
    with pytest.raises(LimitExceeded):
        while True:
            await asyncio.to_thread(process.policy.grant, Entry("server_grant", f"agent-{len(names)}"))
            names.append(f"agent-{len(names)}")
    return names


async def test_a_full_table_takes_what_takes_access_away_and_has_room_again_then(redis: Any, processes: list[Process]):
    one, two = processes
    names = await fill(one)
    await asyncio.to_thread(one.policy.grant, Entry("server_grant", names[0], permission="deny"))
    await asyncio.to_thread(one.policy.revoke, "declared")
    await until(lambda: not allowed(two, names[0]) and not allowed(two, "declared"))
    for name in names:
        await asyncio.to_thread(one.policy.revoke, name)
    # Only what the code would bring back is kept.
    assert redis.hgetall(KEY) == {b'["declared", null]': b"null"}
    await until(lambda: not any(allowed(two, name) for name in names))
    await asyncio.to_thread(one.policy.grant, Entry("server_grant", "late"))
    await until(lambda: allowed(two, "late"))


async def test_what_has_expired_makes_room_and_what_the_code_declares_does_not_come_back(
    redis: Any, processes: list[Process]
):
    one, _ = processes
    past = datetime.now(UTC) - timedelta(days=1)
    for number in range(20):
        entry = Entry("server_grant", f"agent-{number}", expires_at=past)
        await asyncio.to_thread(one.policy.grant, entry)
    await asyncio.to_thread(one.policy.grant, Entry("server_grant", "declared", expires_at=past))
    await asyncio.to_thread(one.policy.grant, Entry("server_grant", "last"))
    assert {json.loads(name)[0] for name in redis.hkeys(KEY)} == {"declared", "last"}
    assert not allowed(one, "declared")


async def test_what_the_loop_decides_and_the_store_has_no_room_for_is_logged_and_the_restrictive_one_holds(
    redis: Any, processes: list[Process], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    one, _ = processes
    await fill(one)
    monkeypatch.setattr(shared_tables, "MAX_TABLE_BYTES", 1)
    caplog.set_level(logging.ERROR, "defserve")
    one.policy.grant(Entry("server_grant", "new"))
    one.policy.revoke("declared")
    await until(lambda: len(caplog.messages) == 2 and one.link.is_written)
    assert "is full" in caplog.messages[0]
    await until(lambda: not allowed(one, "new"))
    monkeypatch.setattr(shared_tables, "MAX_TABLE_BYTES", 10 * ROOM)
    await asyncio.to_thread(one.policy.grant, Entry("server_grant", "next"))
    await one.entries._table._load()
    assert allowed(one, "next") and not allowed(one, "declared")


async def test_what_another_process_revokes_while_an_entry_is_put_stays_revoked(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
):
    one, two = processes
    run, seen = one.link.run_script, list[str]()

    async def interrupted(script: str, *args: Any) -> Any:
        reply = await run(script, *args)
        if script is shared_tables.PUT_ENTRY and not seen:
            seen.append("put")
            await until(lambda: allowed(two, "ada"))
            await asyncio.to_thread(two.policy.revoke, "ada")
            await one.entries._table._load()
        return reply

    monkeypatch.setattr(one.link, "run_script", interrupted)
    await asyncio.to_thread(one.policy.grant, Entry("server_grant", "ada"))
    assert seen and not allowed(one, "ada") and not allowed(two, "ada")
    await asyncio.to_thread(one.policy.grant, Entry("server_grant", "ada"))
    assert allowed(one, "ada")
    assert await asyncio.to_thread(one.policy.revoke, "ada") is not None
    assert await asyncio.to_thread(one.policy.revoke, "ada") is None


async def test_the_later_of_two_decisions_on_the_loop_holds_while_it_is_on_its_way(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
):
    one, _ = processes
    written: list[Any] = []
    monkeypatch.setattr(one.link, "queue_script", lambda *args, done: written.append(done))
    one.policy.grant(Entry("server_grant", "declared", granted_by="root"))
    one.policy.revoke("declared")
    written[0](1)
    await one.entries._table._load()
    assert not allowed(one, "declared")
