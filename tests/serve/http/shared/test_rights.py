"""Who may do what with a session is the same in every process: it is bound to its principal, and its rights count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from defserve.auth import StaticTokens
from defserve.auth.principals import ApiKeyPrincipal, Principal, decode_principal, encode_principal
from tests.asgi import Peer, last
from tests.protocols.mcpl.hosts import MCPL
from tests.serve.http.shared.group import Client, Group, becomes
from tests.stores.redis_server import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.anyio

TOKENS = StaticTokens(
    {
        "ada-1": {"principal": "ada", "scopes": ["read", "write"]},
        "ada-2": {"principal": "ada", "scopes": ["read", "write"]},
        "ada-few": {"principal": "ada", "scopes": ["read"]},
        "bob": "bob",
    }
)


@pytest.fixture
async def guarded(redis: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        group = Group(f"{redis.address}?prefix={abs(hash(request.node.name))}:", stack)
        for name in ("one", "two"):
            await group.start(name, auth=TOKENS, sessions_per_principal=3)
        yield group


def as_(client: Client, at: str, token: str) -> Peer:
    """The same session in the hands of another credential."""
    peer = Peer(client.at(at).app, capabilities={"elicitation": {}})
    peer.session, peer.token, peer._last_id = client.session, token, 9000
    return peer


async def status(exchange: Any) -> int:
    return (await exchange.ended()).status


async def test_a_session_is_its_principal_s_in_every_process(guarded: Group):
    client = await guarded.client(token="ada-1")
    assert await status(as_(client, "two", "bob").begin_call("who")) == 404
    assert guarded["two"].known == set()  # it takes no room for who may not see it
    assert await status(as_(client, "two", "nonsense").begin_call("who")) == 401
    assert await as_(client, "two", "ada-2").call("who") == "two"
    assert await status(as_(client, "two", "bob").delete()) == 404
    assert await status(as_(client, "two", "ada-few").delete()) == 403
    assert await status(as_(client, "two", "ada-2").delete()) == 204


async def test_who_has_fewer_rights_cannot_answer_cancel_or_resume_for_another(guarded: Group):
    client = await guarded.client(token="ada-1", capabilities={"elicitation": {}})
    call = client.at("one").begin_call("asks", id="q")
    question = await call.next()
    few = as_(client, "two", "ada-few")
    given = {"action": "accept", "content": {"value": "Eve"}}
    assert (await few.answer(question, given)).status == 403
    await few.tell("notifications/cancelled", {"requestId": "q"})
    assert await status(few.listen(call.events[-1].id)) == 404
    ada = as_(client, "two", "ada-2")
    assert (await ada.answer(question, {"action": "accept", "content": {"value": "Ada"}})).status == 202
    assert last(await call.ended())["result"]["content"][0]["text"] == "one heard Ada"


async def test_who_has_fewer_rights_reads_only_what_is_for_it(guarded: Group):
    client = await guarded.client(token="ada-1")
    await client.at("two").call("who")
    session = next(iter(guarded["one"].app.streamable.sessions)).conversation
    session.notify("notifications/message", {"data": "for the opener", "level": "info"})
    session.notify("notifications/message", {"data": "for all", "level": "info"}, audience=())
    few = await as_(client, "two", "ada-few").listen().started()
    await few.until(lambda: bool(few.messages))
    assert [message["params"]["data"] for message in few.messages] == ["for all"]
    link = guarded["two"].link
    await becomes(lambda: link._redis.hget(f"{link._prefix}stream:{client.session}:s", "read"), b"2")
    full = as_(client, "one", "ada-2").listen()
    await full.until(lambda: bool(full.messages))
    assert [message["params"]["data"] for message in full.messages] == ["for the opener"]
    await few.ended()  # who may see more takes its place
    full.leave()
    await full.ended()


async def test_sessions_of_a_principal_are_counted_over_all_processes(guarded: Group):
    clients = [await guarded.client(at, token="ada-1") for at in ("one", "two", "one")]
    opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}
    peers = [as_(clients[0], at, "ada-2") for at in ("one", "two")]
    assert [await status(peer.post(request)) for peer in peers] == [503, 503]
    assert await status(clients[0].at("one").delete()) == 204
    assert await status(peers[1].post(request)) == 200


async def test_a_credential_that_ends_ends_its_stream_and_the_session_if_it_was_the_last(guarded: Group):
    client = await guarded.client(token="ada-1")
    await as_(client, "two", "ada-2").call("who")
    stream = await client.at("one").listen().started()
    session = next(iter(guarded["one"].app.streamable.sessions))
    await client.knows("one", lambda log: len(log.credentials) == 2)
    session.credential_ended(session.opener.credential)
    await stream.ended()
    assert await as_(client, "two", "ada-2").call("who") == "two"
    other = next(iter(guarded["two"].app.streamable.sessions))
    async with asyncio.timeout(20):
        while len(other.log.credentials) != 1:
            await as_(client, "two", "ada-2").call("who")
    other.credential_ended(other.list_credentials()[0].key)
    await until(lambda: not guarded["one"].known and not guarded["two"].known)
    assert await status(as_(client, "two", "ada-2").begin_call("who")) == 404


async def test_a_policy_of_the_host_holds_in_every_process(group: Group):
    client = await group.client(capabilities={"experimental": {"mcpl": dict(MCPL)}})
    assert await client.at("two").call("extra") == "more"
    await client.at("one").tell("featureSets/update", {"enabled": [], "disabled": ["extras"]})
    await client.knows("two", lambda log: "extras" in str(log.known))
    for at in ("one", "two"):
        refused = last(await client.at(at).begin_call("extra").ended())
        assert "error" in refused or refused["result"]["isError"]


def test_a_principal_is_remembered_with_its_rights_and_without_its_claims():
    ada = Principal("ada", frozenset({"a", "b"}), {"email": "x"}, credential="k1")
    again = decode_principal(encode_principal(ada))
    assert again == Principal("ada", frozenset({"a", "b"}), credential="k1")
    assert "email" not in str(encode_principal(ada))
    assert Principal("ada", frozenset({"a", "b", "c"}), credential="k2").covers(again)
    assert not Principal("ada", frozenset({"a"}), credential="k2").covers(again)

    class Special(Principal):
        __slots__ = ()

    special = decode_principal(encode_principal(Special("ada", frozenset({"a"}), credential="k3")))
    assert not ada.covers(special)
    assert Special("ada", credential="k3").covers(special)
    assert not special.may_read("add") and not special.may_invoke("add")


def test_a_holder_of_a_key_is_remembered_so_that_the_next_key_covers_it():
    first = ApiKeyPrincipal("ada", frozenset({"tool:invoke:add"}), {"kid": "1"}, key="1", credential="k1")
    again = decode_principal(encode_principal(first))
    for scope, covers in (("tool:invoke:*", True), ("tool:invoke:add", True), ("tool:invoke:sub", False)):
        assert ApiKeyPrincipal("ada", frozenset({scope}), key="2", credential="k2").covers(again) is covers
    assert not Principal("ada", first.scopes, credential="k2").covers(again)
    assert again.may_invoke("add") and not again.may_invoke("sub")
