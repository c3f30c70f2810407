"""Redis is away for a while: what does not need it goes on, the rest is told to come back, and all recovers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from defserve.auth import StaticTokens
from defserve.server import AccessPolicy, Entry
from defserve.stores.store import StoreUnavailable
from tests.asgi import Peer, last, text
from tests.raw import STATELESS
from tests.serve.http.shared.group import Client, Group
from tests.stores.redis_server import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def own_redis() -> AsyncIterator[RedisServer]:
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    yield server
    server.remove()


@pytest.fixture
async def pair(own_redis: RedisServer) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        group = Group(own_redis.address, stack)
        for name in ("one", "two"):
            await group.start(name)
        yield group


async def away(group: Group, redis: RedisServer) -> None:
    redis.kill()
    await until(lambda: not any(worker.link.is_up for worker in group.workers.values()))


async def back(group: Group, redis: RedisServer) -> None:
    redis.start()
    await until(lambda: all(worker.link.is_up for worker in group.workers.values()))


def waiting(client: Client, at: str) -> list[object]:
    peer = client.at(at)
    opening = {"protocolVersion": peer.version, "capabilities": {}, "clientInfo": {"name": "t"}}
    return [
        peer.begin_call("who"),
        peer.listen(),
        peer.delete(),
        Peer(peer.app).post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}),
    ]


async def test_what_does_not_need_it_goes_on_and_the_rest_is_told_to_come_back(pair: Group, own_redis: RedisServer):
    client = await pair.client("one")
    await away(pair, own_redis)
    assert [await client.at("one").call("who") for _ in range(3)] == ["one"] * 3
    assert await Peer(pair["two"].app, STATELESS).call("who") == "two"
    assert text(last(await client.at("one").begin_call("speaks").ended())) == "spoken"
    for exchange in waiting(client, "two"):
        refused = await exchange.ended()  # type: ignore[attr-defined]
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert (await client.at("one").begin_request("logging/setLevel", {"level": "debug"}).ended()).status == 503
    await back(pair, own_redis)
    assert await client.at("two").call("who") == "two"
    # What was asked for meanwhile is kept after all.
    await client.knows("two", lambda log: "debug" in str(log.known))


async def test_events_of_a_stream_wait_for_it_and_none_is_lost_or_doubled(pair: Group, own_redis: RedisServer):
    client = await pair.client("one")
    call = client.at("one").begin_call("count", {"total": 60})
    steps = pair["one"].steps
    for _ in range(3):
        steps.put_nowait(10)
        await until(lambda: steps.empty())
        await away(pair, own_redis)
        steps.put_nowait(10)
        await until(lambda: steps.empty())
        await back(pair, own_redis)
    await call.ended()
    numbers = [m["params"]["data"] for m in call.messages if "params" in m]
    assert numbers == [str(number) for number in range(60)]
    assert text(last(call)) == "60 counted"


async def test_a_session_that_ended_while_a_process_heard_nothing_is_over_for_it(pair: Group, own_redis: RedisServer):
    client = await pair.client("one")
    await client.at("two").call("who")
    await away(pair, own_redis)
    own_redis.start()
    # On a busy machine the process hears a moment later that its store is back.
    said = [503]
    async with asyncio.timeout(20):
        while said[-1] == 503:
            said.append((await client.at("one").delete().ended()).status)
            await asyncio.sleep(0.05)
    # One whose answer from the store got lost may have been carried out: then there is no session any more.
    assert said[-1] == 204 or (said[-1] == 404 and len(said) > 2)
    await until(lambda: not pair["two"].known)
    assert (await client.at("two").begin_call("who").ended()).status == 404


async def test_a_question_that_was_asked_meanwhile_takes_its_answer_at_any_process(pair: Group, own_redis: RedisServer):
    client = await pair.client("one", capabilities={"elicitation": {}})
    await client.at("two").call("who")
    await away(pair, own_redis)
    call = client.at("one").begin_call("asks")
    question = await call.next()
    await back(pair, own_redis)
    given = {"action": "accept", "content": {"value": "Ada"}}
    async with asyncio.timeout(20):
        while (await client.at("two").answer(question, given)).status == 503:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await call.ended()
    assert text(last(call)) == "one heard Ada"


async def test_a_process_that_starts_without_it_gives_nobody_access_until_it_knows_what_was_revoked(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("defserve.stores.shared.worker_link.START_TIMEOUT", 0.01)

    def access() -> dict[str, Any]:
        declared = [Entry("server_grant", "ada"), Entry("server_grant", "bob")]
        return {"access": AccessPolicy("opt-in", declared, admins=["root"])}

    def peer(name: str, token: str) -> Peer:
        made = Peer(group[name].app, STATELESS)
        made.token = token
        return made

    tokens = StaticTokens({"ada": "ada", "bob": "bob", "root": "root"})
    async with AsyncExitStack() as stack:
        group = Group(own_redis.address, stack)
        await group.start("one", auth=tokens, options=access())
        await until(lambda: group["one"].link.is_up)
        await asyncio.to_thread(group["one"].server.mgp.access.policy.revoke, "ada")
        await group.stop("one")
        own_redis.kill()
        await group.start("two", auth=tokens, options=access())
        for token in ("ada", "bob"):
            for method, params in (("tools/call", {"name": "who", "arguments": {}}), ("tools/list", {})):
                assert "The store cannot be reached" in str(await peer("two", token).ask(method, params))
        with pytest.raises(StoreUnavailable):
            group["two"].server.mgp.access.policy.require_current_entries()
        own_redis.start()
        await until(lambda: group["two"].link.is_up)
        assert "has no access" in str(await peer("two", "ada").ask("tools/call", {"name": "who", "arguments": {}}))
        assert await peer("two", "bob").call("who") == "two"
