"""Answers are matched by their envelope, refusals by what can be told of them, and the absent are named at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.client.topic_client import join_topic
from defserve.errors import PeerError, PeerGone
from defserve.protocols.mcpx.participant import NotPresent
from defserve.protocols.mcpx.topic import MAX_UNCONFIRMED, UnconfirmedMessages
from tests.protocols.mcpx.gateways import FULL, gateway, stranger
from tests.raw import until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

ADD: dict[str, Any] = {"name": "add", "arguments": {"a": 1, "b": 2}}


def is_request(envelope: dict[str, Any]) -> bool:
    return envelope["kind"].startswith("mcp/request")


@for_each_row("id", [0, 999, "1", None, "absent"])
@for_each_row("context", ["", ":add", ":x"])
async def test_the_envelope_says_what_is_answered_whatever_the_id(id: Any, context: str):
    async with gateway(ann=FULL, bob=FULL) as there, stranger(there, "bob") as bob:
        async with join_topic(there.url, token="ann") as ann:
            waiting = asyncio.create_task(ann.request("bob", "tools/call", ADD))
            asked = await bob.until(is_request)
            body = {"jsonrpc": "2.0", "result": 3} | ({"id": id} if id != "absent" else {})
            await bob.send(f"mcp/response:tools/call{context}", body, to=["ann"], correlation_id=asked["id"])
            assert await waiting == 3


@for_each_row("body", [{}, {"result": 1, "error": {}}, {"result": 1, "method": "x"}, {"jsonrpc": "1.0"}])
async def test_an_answer_that_cannot_be_read_ends_the_wait(body: dict[str, Any]):
    async with gateway(ann=FULL, bob=FULL) as there, stranger(there, "bob") as bob:
        async with join_topic(there.url, token="ann") as ann:
            waiting = asyncio.create_task(ann.request("bob", "tools/call", ADD))
            asked = await bob.until(is_request)
            answer = {"jsonrpc": "2.0", "id": 1} | body
            await bob.send("mcp/response:tools/call", answer, to=["ann"], correlation_id=asked["id"])
            async with asyncio.timeout(10):
                with pytest.raises(PeerError, match="cannot be read"):
                    await waiting


async def test_only_who_was_asked_can_answer():
    async with gateway(ann=FULL, bob=FULL, eve=FULL) as there, stranger(there, "bob") as bob:
        async with stranger(there, "eve") as eve, join_topic(there.url, token="ann") as ann:
            waiting = asyncio.create_task(ann.request("bob", "tools/call", ADD))
            asked = await bob.until(is_request)
            about = {"to": ["ann"], "correlation_id": asked["id"]}
            await eve.send("mcp/response:tools/call", {"jsonrpc": "2.0", "id": 1, "result": "eve"}, **about)
            await eve.send("mcp/response:tools/call", {"jsonrpc": "2.0", "id": 1}, **about)
            await until(lambda: ann.topic.misbehaviour.get("eve") == 3)
            await bob.send("mcp/response:tools/call", {"jsonrpc": "2.0", "id": 1, "result": "bob"}, **about)
            assert await waiting == "bob"


# -- refusals that do not say what they are about


async def test_a_refusal_without_a_correlation_id_ends_the_request_that_did_not_come_back():
    async with gateway(ann=FULL, bob=FULL) as there, stranger(there, "bob") as bob:
        there.vague = True
        async with join_topic(there.url, token="ann") as ann:
            passed = asyncio.create_task(ann.request("bob", "tools/list"))
            asked = await bob.until(is_request)
            there.capabilities["ann"] = ("chat",)
            async with asyncio.timeout(10):
                with pytest.raises(PeerError, match="lack capability") as caught:
                    await ann.request("bob", "tools/list")
            assert caught.value.data["attempted_kind"] == "mcp/request:tools/list"
            body = {"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}
            await bob.send("mcp/response:tools/list", body, to=["ann"], correlation_id=asked["id"])
            assert await passed == {"tools": []}


@for_each_row("vague", [True, False])
async def test_a_refused_proposal_ends_the_wait_for_its_outcome(vague: bool):
    async with gateway(ann=("mcp/proposal:*",), bob=FULL) as there, stranger(there, "bob"):
        there.vague = vague
        async with join_topic(there.url, token="ann") as ann:
            there.capabilities["ann"] = ("chat",)
            async with asyncio.timeout(10):
                with pytest.raises(PeerError, match="lack capability"):
                    await ann.perform("bob", "tools/call", ADD)


async def test_a_refused_fulfilment_leaves_the_proposal_to_others():
    async with gateway(agent=FULL, human=FULL, bob=FULL) as there, stranger(there, "bob"):
        async with join_topic(there.url, token="agent") as agent, join_topic(there.url, token="human") as human:
            agent.propose("bob", "tools/call", ADD)
            await until(lambda: bool(human.proposals))
            there.capabilities["human"] = ("chat",)
            with pytest.raises(PeerError, match="lack capability"):
                await human.fulfil(human.proposals[0])
            assert [proposal.status for proposal in human.proposals] == ["pending"]


async def test_a_bare_error_ends_the_only_request_it_can_be_about():
    async with gateway(ann=FULL, bob=FULL) as there, stranger(there, "bob"):
        async with join_topic(there.url, token="ann") as ann:
            socket = there.members.pop("ann")  # what it sends does not come back to it
            waiting = asyncio.create_task(ann.request("bob", "tools/list"))
            await until(lambda: len(there.heard) == 1)
            await socket.send('{"error": "Invalid message format", "details": "ts: required"}')
            async with asyncio.timeout(10):
                with pytest.raises(PeerError, match="ts: required"):
                    await waiting


def test_a_refusal_is_about_the_oldest_of_its_kind_that_did_not_come_back():
    sent = UnconfirmedMessages()
    for id, kind in (("1", "chat"), ("2", "a"), ("3", "a"), ("4", "b")):
        sent.add(id, kind)
    sent.discard("2")
    assert sent.pop_refused_id({"error": "x"}) is None
    assert sent.pop_refused_id({"attempted_kind": "a"}) == "3"
    assert sent.pop_refused_id({"attempted_kind": "a"}) is None
    sent.discard("1")
    assert sent.pop_refused_id({"error": "x"}) == "4" and sent.pop_refused_id({}) is None
    for number in range(2 * MAX_UNCONFIRMED):
        sent.add(f"n{number}", "c")
    assert sent.pop_refused_id({"attempted_kind": "c"}) == f"n{MAX_UNCONFIRMED}"


# -- who is not there


async def test_the_absent_are_named_at_once_and_so_is_who_is_there():
    async with gateway(ann=FULL, bob=FULL, eve=("mcp/proposal:*",)) as there, stranger(there, "bob"):
        async with join_topic(there.url, token="ann") as ann, join_topic(there.url, token="eve") as eve:
            await until(lambda: "eve" in ann.participants)
            with pytest.raises(NotPresent, match="'worker' is not in the topic; here are: bob, eve") as caught:
                await ann.call("worker", "add")
            assert isinstance(caught.value, PeerGone) and caught.value.data == {"participants": ["bob", "eve"]}
            with pytest.raises(NotPresent):
                await eve.perform("worker", "tools/call", ADD)
    assert there.heard == []
