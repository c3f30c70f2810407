"""A host in a topic, with servers and other hosts, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from defserve.client import join_topic, topic_client
from defserve.client.topic_client import TopicClient, make_topic_address
from defserve.errors import PeerError, PeerGone, ToolError, UsageError
from defserve.protocols.mcpx.participant import NotWelcome
from defserve.protocols.mcpx.proposals import Proposal
from defserve.protocols.mcpx.topic import (
    Chat,
    GatewayRefusal,
    Presence,
    SpoofedMessage,
    TopicEvent,
    TopicRequest,
    TopicResponse,
)
from tests.protocols.mcpx.gateways import FULL, gateway, stranger
from tests.protocols.mcpx.servers import calculator, joined
from tests.raw import until
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio


@pytest.mark.req("MCPX-3.5.1", "MCPX-6.2w")
async def test_a_host_learns_who_it_is_who_is_there_and_what_it_may_do():
    async with gateway(worker=FULL, ann=("chat",)) as there, joined(calculator(), there):
        async with join_topic(f"mcpx+{there.url}", token="ann") as ann:
            assert ann.id == "ann" and ann.capabilities.patterns == ("chat",) and ann.may("chat")
            assert {name: held.patterns for name, held in ann.participants.items()} == {"worker": FULL}
            assert not ann.may("mcp/request:ping")


async def test_a_tool_of_another_participant_is_called_for_its_value():
    async with gateway(worker=FULL, ann=FULL) as there, joined(calculator(), there):
        async with join_topic(there.url, token="ann") as ann:
            assert await ann.call_tool("worker", "add", a=1, b=2) == 3
            assert {tool["name"] for tool in await ann.tools("worker")} == {"add", "announce"}
            assert await ann.tool("worker", "missing") is None
            with pytest.raises(ToolError, match="integer"):
                await ann.call_tool("worker", "add", a="x", b=2)
            with pytest.raises(PeerError, match="missing"):
                await ann.call_tool("worker", "missing")
            assert (await ann.request("worker", "resources/read", {"uri": "note://one"}))["contents"]


async def test_one_who_leaves_answers_no_more_and_others_go_on():
    async with gateway(slow=FULL, worker=FULL, ann=FULL) as there, joined(calculator(), there):
        async with join_topic(there.url, token="ann") as ann:
            async with stranger(there, "slow"):
                await until(lambda: "slow" in ann.participants)
                asking = asyncio.create_task(ann.request("slow", "tools/list"))
                await until(lambda: any(heard["to"] == ["slow"] for heard in there.heard))
            with pytest.raises(PeerGone, match="slow has left"):
                await asking
            assert await ann.request("worker", "ping") == {}


@pytest.mark.req("MCPX-3.5.2")
async def test_a_refusal_of_the_gateway_reaches_whoever_asked():
    async with (
        gateway(worker=FULL, ann=FULL) as there,
        stranger(there, "worker"),
        join_topic(there.url, token="ann") as ann,
    ):
        there.capabilities["ann"] = ("chat",)  # the gateway has changed its mind and not said so
        with pytest.raises(PeerError, match="lack capability") as caught:
            await ann.request("worker", "tools/list")
        assert caught.value.data["error"] == "capability_violation"


@pytest.mark.req("MCPX-3.3")
async def test_hosts_chat_with_one_another():
    async with gateway(ann=FULL, bob=FULL, eve=FULL) as there:
        async with join_topic(there.url, token="ann") as ann, join_topic(there.url, token="bob") as bob:
            heard = bob.heard()
            ann.chat("psst", to="eve")
            ann.chat("**hi**", format="markdown")
            said = [await anext(heard), await anext(heard)]
            assert all(isinstance(one, Chat) for one in said)
            assert [(one.text, one.format, one.to) for one in said if isinstance(one, Chat)] == [
                ("psst", "plain", ("eve",)),
                ("**hi**", "markdown", ()),
            ]


async def test_what_is_said_to_others_is_not_said_to_us():
    async with gateway(ann=FULL, bob=FULL, eve=FULL) as there:
        async with join_topic(there.url, token="ann") as ann, join_topic(there.url, token="bob") as bob:
            said = bob.iter_chat()
            ann.chat("psst", to="eve")
            ann.chat("bob?", to="bob")
            assert (await anext(said)).text == "bob?"


async def watched(events: AsyncIterator[TopicEvent]) -> list[type]:
    kinds: list[type] = []
    async for heard in events:
        kinds.append(type(heard))
        if isinstance(heard, Presence) and not heard.joined:
            return kinds
    return kinds


async def test_a_watcher_sees_everything_of_the_topic():
    async with gateway(worker=FULL, ann=FULL, eve=("chat",)) as there, joined(calculator(), there):
        async with join_topic(there.url, token="eve") as eve:
            watching = asyncio.create_task(watched(eve.heard()))
            async with stranger(there, "ann") as ann:
                await ann.send("mcp/proposal:ping", {"method": "ping"}, to=["worker"])
                await ann.ask("worker", "ping", kind="mcp/request:tools/list")
                await ann.answer(await ann.ask("worker", "ping"))
                await there.tell("system/error", {"error": "x"}, to="eve")
            seen = await watching
            assert {Presence, Proposal, SpoofedMessage, TopicRequest, TopicResponse, GatewayRefusal} <= set(seen)


async def test_a_standard_request_to_a_host_is_answered_as_by_a_server_that_offers_nothing():
    async with gateway(ann=FULL, bob=FULL) as there:
        async with join_topic(there.url, token="bob"), stranger(there, "ann") as ann:
            for method, key in {"tools/list": "tools", "ping": None, "initialize": "serverInfo"}.items():
                result = (await ann.answer(await ann.ask("bob", method)))["payload"]["result"]
                assert key is None or key in result
            answer = await ann.answer(await ann.ask("bob", "tools/call", {"name": "x"}))
            assert answer["payload"]["error"]["code"] == -32601


async def test_a_bad_token_is_refused_and_no_gateway_is_gone():
    async with gateway(ann=FULL) as there:
        with pytest.raises(PeerError, match="bad token"):
            async with join_topic(there.url, token="wrong"):
                pass
    with pytest.raises(PeerGone):
        async with join_topic(there.url, token="ann"):
            pass


async def test_who_gives_up_waiting_for_a_welcome_leaves_nothing_behind():
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(topic_client._await_welcome(TopicClient(), cast(Any, None)))  # pyright: ignore[reportPrivateUsage]
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait((waiting,))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_when_the_gateway_goes_nobody_waits_for_answers():
    async with gateway(ann=FULL, bob=FULL) as there, join_topic(there.url, token="ann") as ann:
        async with stranger(there, "bob"):
            asking = asyncio.create_task(ann.request("bob", "ping"))
            await until(lambda: any(heard["to"] == ["bob"] for heard in there.heard))
            await there.stop()
            with pytest.raises(PeerGone):
                await asking
            await ann.over.wait()
            with pytest.raises(NotWelcome):
                ann.chat("anyone?")
        await there.start()


@for_each_row("url", ["http://127.0.0.1/ws", "ws://", "file:///etc/passwd", "ws://[", ""])
def test_only_the_address_of_a_gateway_is_joined(url: str):
    with pytest.raises(UsageError, match="not the address of a gateway"):
        make_topic_address(url, "demo", "")


def test_the_topic_is_named_in_the_address_or_beside_it():
    assert make_topic_address("ws://h:1/ws?topic=a", "", "") == "ws://h:1/ws?topic=a"
    assert make_topic_address("ws://h:1/ws?topic=a", "a", "") == "ws://h:1/ws?topic=a"
    assert make_topic_address("ws://h:1/ws?x=1&topic=a", "b", "") == "ws://h:1/ws?x=1&topic=b"
    assert make_topic_address("ws://h:1/ws", "a b", "") == "ws://h:1/ws?topic=a+b"
    with pytest.raises(UsageError, match="no topic is given"):
        make_topic_address("ws://h:1/ws?subtopic=a", "", "")
