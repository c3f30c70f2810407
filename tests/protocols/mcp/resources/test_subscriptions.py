from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from defserve import Server
from defserve.protocols.mcp import subscriptions
from tests.effort import calls_of
from tests.raw import ERAS, HANDSHAKE, STATELESS, Json, Raw, raw, turns
from tests.rows import for_each_row
from tests.server.stocked import stocked

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("version", ERAS)


def hello() -> str:
    return "hello"


# -- subscriptions of both eras


def news() -> Server:
    server = stocked()

    @server.tool
    async def touch(uri: str) -> None:
        server.resource_updated(uri)

    return server


@pytest.mark.req("MCP-5.2s")
@for_each_row("version", HANDSHAKE)
async def test_a_session_hears_of_the_resources_it_subscribed_to_until_it_unsubscribes(version: str):
    server = news()
    async with raw(server, version) as peer, raw(server, version) as other:
        for uri in ("x://first", "x://t/a"):
            assert (await peer.ask("resources/subscribe", {"uri": uri}))["result"] == {}
        for uri in ("x://first", "x://t/a", "x://t/b"):
            await peer.call("touch", {"uri": uri})
        told = await peer.news()
        assert [message["params"] for message in told] == [{"uri": "x://first"}, {"uri": "x://t/a"}]
        assert {message["method"] for message in told} == {"notifications/resources/updated"}
        assert (await peer.ask("resources/unsubscribe", {"uri": "x://first"}))["result"] == {}
        server.resource_updated("x://first")
        assert await peer.news() == await other.news() == []


async def test_an_update_costs_nothing_for_a_session_that_did_not_ask_for_it():
    server = news()

    def effort() -> int:
        return calls_of(lambda: server.resource_updated("x://first"))

    async with raw(server, HANDSHAKE[0]) as peer:
        await peer.ask("resources/subscribe", {"uri": "x://first"})
        alone = effort()
        async with AsyncExitStack() as stack:
            for _ in range(10):
                await stack.enter_async_context(raw(server, HANDSHAKE[0]))
            assert effort() == alone


async def test_nothing_is_kept_of_the_subscriptions_of_a_session_that_ended():
    server = news()
    async with raw(server, HANDSHAKE[0]) as peer, raw(server, HANDSHAKE[0]) as other:
        for each in (peer, other):
            await each.ask("resources/subscribe", {"uri": "x://first"})
            await each.ask("resources/subscribe", {"uri": "x://t/a"})
        await other.ask("resources/unsubscribe", {"uri": "x://t/a"})
        subscribers = server.mcp.subscriptions._subscribers
        assert [len(subscribers.find_by_uri(uri)) for uri in ("x://first", "x://t/a")] == [2, 1]
    assert not subscribers._sessions


LONG = "\N{GRINNING FACE}" * 200


async def test_the_uris_of_a_session_are_counted_in_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subscriptions, "MAX_URI_BYTES", 1000)
    async with raw(news(), HANDSHAKE[0]) as peer:
        assert "result" in await peer.ask("resources/subscribe", {"uri": f"x://t/{LONG}"})
        refused = await peer.ask("resources/subscribe", {"uri": f"x://t/a{LONG}"})
        assert refused["error"]["data"]["limit"] == "subscriptions"


async def test_the_uris_of_a_listener_are_counted_in_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subscriptions, "MAX_URI_BYTES", 1000)
    async with raw(news(), STATELESS) as peer:
        wanted = {"resourceSubscriptions": [f"x://t/{LONG}", f"x://t/a{LONG}"]}
        refused = await peer.ask("subscriptions/listen", {"notifications": wanted})
        assert refused["error"]["data"]["limit"] == "subscriptions"


@for_each_row("version", HANDSHAKE)
@for_each_row(("uri", "code"), [("x://none", -32002), (7, -32602), (None, -32602)])
async def test_what_does_not_exist_cannot_be_subscribed_to(version: str, uri: Any, code: int):
    async with raw(news(), version) as peer:
        assert (await peer.ask("resources/subscribe", {"uri": uri}))["error"]["code"] == code


SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"

FILTERS: list[tuple[Json, Json, set[str]]] = [
    ({}, {}, set()),
    ({"toolsListChanged": True}, {"toolsListChanged": True}, {"tools"}),
    ({"promptsListChanged": True, "toolsListChanged": False}, {"promptsListChanged": True}, {"prompts"}),
    (
        {"resourcesListChanged": True, "resourceSubscriptions": ["x://first", "x://none"], "future": True},
        {"resourcesListChanged": True, "resourceSubscriptions": ["x://first"]},
        {"resources", "updated"},
    ),
]


@for_each_row(("wanted", "honoured", "heard"), FILTERS)
async def test_listening_acknowledges_first_then_tells_only_what_was_wanted(
    wanted: Json, honoured: Json, heard: set[str]
):
    server = news()
    async with raw(server) as peer:
        id = await peer.begin("subscriptions/listen", {"notifications": wanted})
        await turns()
        server.resource_updated("x://first")
        server.resource_updated("x://t/a")
        server.add_tool(hello)
        server.add_prompt(hello)
        server.add_resource(hello, "x://hello")
        first, *told = await peer.news()
        assert (first["method"], first["params"]["notifications"]) == (ACKNOWLEDGED, honoured)
        assert all(message["params"]["_meta"][SUBSCRIPTION] == id for message in (first, *told))
        assert {message["method"].split("/")[-1 if "updated" in message["method"] else 1] for message in told} == heard


async def test_two_listeners_on_one_pipe_are_told_apart():
    server = news()
    async with raw(server) as peer:
        one = await peer.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        other = await peer.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await peer.news()
        server.add_tool(hello)
        told = await peer.news()
        assert {message["params"]["_meta"][SUBSCRIPTION] for message in told} == {one, other}


@pytest.mark.req("MCP-4.4x")
async def test_a_cancelled_listener_hears_nothing_more_not_even_a_reply():
    server = news()
    async with raw(server) as peer:
        id = await peer.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await peer.news()
        await peer.tell("notifications/cancelled", {"requestId": id})
        await turns()
        server.add_tool(hello)
        assert await peer.news() == []
        assert server.composition.running == 0


async def test_draining_ends_listening_gracefully_with_a_result():
    from defserve.serve.connection import Connection
    from defserve.serve.lifespans import MemoryTransport, drain_connection, enter_lifespans

    server = news()
    async with enter_lifespans(server.composition) as engine:
        transport = MemoryTransport(1 << 20)
        connection = Connection(server.composition, transport)
        connection.attach(engine)
        transport.start(asyncio.get_running_loop(), connection.feed_frames, connection.close)
        peer = Raw(transport.peer, STATELESS, {})
        id = await peer.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await turns()
        server.composition.draining = True
        await drain_connection(connection, 5)
        result = (await peer.reply_to(id))["result"]
        assert (result["resultType"], result["_meta"][SUBSCRIPTION]) == ("complete", id)
        refused = (await peer.ask("tools/call", {"name": "first"}))["result"]
        assert (refused["isError"], refused["_meta"]["dev.defserve/error"]["error_type"]) == (True, "draining")
        connection.close()


@for_each_row("wanted", [None, [], {"resourceSubscriptions": "x://first"}, {"resourceSubscriptions": [1]}])
async def test_a_filter_that_is_none_is_refused(wanted: Any):
    async with raw(news()) as peer:
        assert (await peer.ask("subscriptions/listen", {"notifications": wanted}))["error"]["code"] == -32602


ONLY_IN_ONE_ERA = {
    "subscriptions/listen": ("2025-11-25", {"notifications": {}}),
    "server/discover": ("2025-11-25", {}),
    "resources/subscribe": (STATELESS, {"uri": "x://first"}),
    "resources/unsubscribe": (STATELESS, {"uri": "x://first"}),
    "logging/setLevel": (STATELESS, {"level": "info"}),
    "ping": (STATELESS, {}),
    "initialize": (STATELESS, {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}),
}


@for_each_row("method", ONLY_IN_ONE_ERA)
async def test_a_method_of_the_other_era_does_not_exist(method: str):
    version, params = ONLY_IN_ONE_ERA[method]
    async with raw(news(), version) as peer:
        assert (await peer.ask(method, params))["error"]["code"] == -32601
