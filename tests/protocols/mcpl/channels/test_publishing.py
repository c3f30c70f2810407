"""MCPL §14.3, §14.5: what is published and observed, in order, as far as a host's scopes go."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest

from defserve import Context, Depends, Image, Server, Text, ToolError, UsageError
from defserve.protocols.mcpl.channels.messages import Channel, ReceivedMessage
from defserve.protocols.mcpl.channels.section import MAX_WAITING
from defserve.protocols.mcpl.vocabulary import ChannelNotPermitted, FeatureDisabled
from tests.protocols.mcpl.channels.connectors import (
    GENERAL,
    HELLO,
    OPEN_GENERAL,
    ROADS,
    SET,
    SHARED,
    Discord,
    Watcher,
    chunk,
    code_of,
    complete,
    ids,
    join_x,
    opened,
)
from tests.protocols.mcpl.hosts import Json, hosting, session_of
from tests.raw import turns, until

pytestmark = pytest.mark.anyio


# -- publishing ------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-14.3p", "MCPL-4.1")
@pytest.mark.parametrize("road", ROADS)
async def test_content_is_published_as_request_and_as_notification(discord: Discord, road: str):
    async with hosting(discord.server, road=road) as host:
        await opened(host)
        await host.tell("channels/publish", HELLO)
        reply = await host.ask("channels/publish", HELLO | {"content": [{"type": "text", "text": "Again"}]})
        assert reply["result"] == {"delivered": True, "messageId": "dmsg_2"}
        assert discord.published == [("discord:#general", "Hello team"), ("discord:#general", "Again")]


async def test_a_slow_delivery_is_not_overtaken_on_its_channel(discord: Discord):
    server = Server("slow", "1")
    chat = server.channels("x", feature_set=server.feature_set("x", "X"))
    first, order = asyncio.Event(), list[str]()
    chat.add(Channel("x:1"))
    chat.add(Channel("x:2"))

    @chat.publish
    async def send(channel: Channel, text: str) -> None:
        if text == "first":
            await first.wait()
        order.append(text)

    def words(text: str, channel: str = "x:1") -> Json:
        return {"channelId": channel, "content": text}

    async with hosting(server, answers={"channels/register": {}}) as host:
        await host.tell("channels/publish", words("first"))
        await host.tell("channels/publish", words("second"))
        assert (await host.ask("channels/publish", words("elsewhere", "x:2")))["result"] == {"delivered": True}
        first.set()
        assert (await host.ask("channels/publish", words("third")))["result"] == {"delivered": True}
    assert order == ["elsewhere", "first", "second", "third"]


async def test_functions_are_given_what_they_take(discord: Discord):
    server = Server("rich", "1")
    chat = server.channels("x", feature_set=server.feature_set("x", "X"))
    seen: list[Any] = []
    chat.add(Channel("x:1"))

    def greeting() -> str:
        return "injected"

    @chat.publish
    def send(
        content: list[Any],
        conversation_id: str | None,
        stream: bool,
        ctx: Context,
        greeting: Annotated[str, Depends(greeting)],
    ) -> bool:
        seen.extend([content, conversation_id, stream, ctx.principal, greeting])
        return False

    async with hosting(server, answers={"channels/register": {}}) as host:
        blocks = [{"type": "text", "text": "a"}, {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}]
        params = {"channelId": "x:1", "content": blocks, "conversationId": "c1", "stream": True}
        assert (await host.ask("channels/publish", params))["result"] == {"delivered": False}
    assert seen == [[Text("a"), Image(b"\x89PNG", mime_type="image/png")], "c1", True, "local", "injected"]


async def test_the_id_of_a_message_may_be_a_number_and_anything_else_is_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
):
    server = Server("numbered", "1")
    chat = server.channels("x", feature_set=server.feature_set("x", "X"))
    chat.add(Channel("x:1"))

    @chat.publish
    def send(text: str) -> Any:
        return 7 if text == "number" else {"id": 7}

    async with hosting(server, answers={"channels/register": {}}) as host:
        reply = await host.ask("channels/publish", {"channelId": "x:1", "content": "number"})
        assert reply["result"] == {"delivered": True, "messageId": "7"}
        assert "which is no id" not in caplog.text
        reply = await host.ask("channels/publish", {"channelId": "x:1", "content": "other"})
        assert reply["result"] == {"delivered": True}
        assert "send gave {'id': 7}, which is no id" in caplog.text


async def test_a_publication_that_fails_is_an_error_or_a_line_in_the_log(
    discord: Discord, caplog: pytest.LogCaptureFixture
):
    server = Server("failing", "1")
    chat = server.channels("x", feature_set=server.feature_set("x", "X"))
    chat.add(Channel("x:1"))

    @chat.publish(timeout=0.2)
    async def send(text: str) -> None:
        if text == "slow":
            await asyncio.sleep(10)
        raise ToolError("the service is down")

    async with hosting(server, answers={"channels/register": {}}) as host:
        reply = await host.ask("channels/publish", {"channelId": "x:1", "content": "hello"})
        assert reply["error"]["message"] == "the service is down"
        assert await code_of(host, "channels/publish", {"channelId": "x:1", "content": 5}) == -32602
        await host.tell("channels/publish", {"channelId": "x:1", "content": "hello"})
        await host.tell("channels/publish", {"channelId": "x:1", "content": "slow"})
        await host.tell("channels/publish", {"channelId": "x:9", "content": "hello"})
        await host.tell("channels/publish", {})
        await until(lambda: caplog.text.count("WARNING") == 4)
        assert (await host.ask("ping"))["result"] == {}


async def test_a_channel_that_only_listens_is_not_published_to(discord: Discord):
    discord.chat.add(Channel("discord:#in", direction="inbound"))
    async with hosting(discord.server, answers={"channels/register": {}}) as host:
        assert await code_of(host, "channels/publish", HELLO | {"channelId": "discord:#in"}) == -32017


async def test_a_host_cannot_pile_up_notifications_without_end(discord: Discord, caplog: pytest.LogCaptureFixture):
    server = Server("slow", "1")
    chat = server.channels("x", feature_set=server.feature_set("x", "X"))
    chat.add(Channel("x:1"))
    gate, count = asyncio.Event(), list[str]()

    @chat.publish
    async def send(text: str) -> None:
        await gate.wait()
        count.append(text)

    async with hosting(server, answers={"channels/register": {}}) as host:
        for number in range(MAX_WAITING + 5):
            await host.send(
                {"jsonrpc": "2.0", "method": "channels/publish", "params": {"channelId": "x:1", "content": str(number)}}
            )
        await host.ask("ping")
        await until(lambda: caplog.text.count("too many wait") == 5)
        gate.set()
        await until(lambda: len(count) == MAX_WAITING)
    assert count == [str(number) for number in range(MAX_WAITING)]


# -- observing -------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-14.3g")
@pytest.mark.parametrize("road", ROADS)
async def test_what_goes_out_is_observed_in_order(road: str):
    watcher = Watcher("discord")
    async with hosting(watcher.server, road=road) as host:
        for index, delta in enumerate(["Hello", " ", "team"]):
            await host.tell("channels/outgoing/chunk", chunk("discord:#general", index, delta))
        await host.tell("channels/outgoing/complete", complete("discord:#general"))
        await host.tell("channels/outgoing/complete", complete("ui"))
        await until(lambda: len(watcher.seen) == 4)
        assert (await host.ask("ping"))["result"] == {}
    assert watcher.seen == [
        ("discord:#general", 0, "Hello"),
        ("discord:#general", 1, " "),
        ("discord:#general", 2, "team"),
        ("discord:#general", "Hello team", "inf_abc", "conv_123"),
    ]


async def test_one_type_may_watch_all_channels():
    watcher = Watcher("*")
    async with hosting(watcher.server) as host:
        await host.tell("channels/outgoing/complete", complete("ui"))
        await host.tell("channels/outgoing/complete", complete("discord:#general"))
        await turns()
    assert [seen[0] for seen in watcher.seen] == ["ui", "discord:#general"]


async def test_broken_and_unobserved_notifications_are_ignored():
    watcher = Watcher("discord")
    async with hosting(watcher.server) as host:
        await host.tell("channels/outgoing/chunk", {"channelId": "discord:#general", "index": "0", "delta": "x"})
        await host.tell("channels/outgoing/complete", {"content": []})
        await host.tell("channels/outgoing/complete", {"channelId": "discord:#general"})
        await host.update(disabled=["channels.*"])
        await host.tell("channels/outgoing/complete", complete("discord:#general"))
        assert (await host.ask("ping"))["result"] == {}
    assert watcher.seen == []


@pytest.mark.req("MCPL-14.5")
async def test_the_thinking_channel_can_be_watched_and_nothing_else():
    watcher = Watcher("thinking", "channels.thinking")
    thoughts = watcher.server.mcpl.channels.directory.types.get("thinking")
    assert thoughts is not None
    with pytest.raises(UsageError, match="can only be observed"):
        thoughts.publish(join_x)
    with pytest.raises(UsageError, match="can only be observed"):
        thoughts.add(Channel("thinking"))
    async with hosting(watcher.server) as host:
        await host.tell("channels/outgoing/complete", complete("thinking"))
        await turns()
        assert [seen[0] for seen in watcher.seen] == ["thinking"]
        for id in ("thinking", "thinking:conv_1"):
            assert await code_of(host, "channels/publish", HELLO | {"channelId": id}) == -32017


# -- scopes ----------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-14.5", "MCPL-14.6")
async def test_scopes_say_which_channels_may_be_used():
    discord = Discord(scoped=True)
    discord.chat.add(SHARED)
    async with hosting(discord.server, answers={"channels/register": {}}) as host:
        await opened(host)
        await host.update(scopes={SET: {"whitelist": ["discord:#gen*"], "blacklist": ["discord:#secret*"]}})
        assert (await host.ask("channels/publish", HELLO))["result"]["delivered"] is True
        error = (await host.ask("channels/publish", HELLO | {"channelId": SHARED.id}))["error"]
        assert (error["code"], error["data"]["channelId"]) == (-32017, SHARED.id)
        # Opened, and closed again: only then it had an id.
        assert (
            await code_of(host, "channels/open", {"type": "discord", "address": GENERAL | {"channel": "#x"}}) == -32017
        )
        assert discord.closed == ["discord:#x"]
        assert await ids(host) == [SHARED.id, "discord:#general"]
        with pytest.raises(ChannelNotPermitted):
            await discord.chat.incoming(ReceivedMessage(SHARED, "hi", "u1"), to=session_of(discord.server))
        await host.ask("channels/close", {"channelId": SHARED.id})
        assert await code_of(host, "channels/open", {"channelId": SHARED.id}) == -32017
        assert await ids(host) == ["discord:#general"]
        await host.update(scopes={SET: {"blacklist": ["discord:#general"]}})
        assert "result" in await host.ask("channels/open", {"channelId": SHARED.id})
        assert await code_of(host, "channels/publish", HELLO) == -32017
        assert (await host.ask("channels/publish", HELLO | {"channelId": SHARED.id}))["result"]["delivered"] is True


async def test_a_scope_of_the_address_is_asked_before_anything_is_opened():
    server = Server("irc", "1")
    chat = server.channels("irc", feature_set=server.feature_set("irc", "IRC", scoped=True))
    joined: list[str] = []

    @chat.open(scope=lambda address: f"irc:{address['net']}/{address['room']}")
    def join(address: dict[str, str]) -> Channel:
        joined.append(address["room"])
        return Channel(f"irc:{address['net']}/{address['room']}")

    async with hosting(server) as host:
        await host.update(scopes={"irc": {"whitelist": ["irc:acme/*"]}})
        there, elsewhere = {"net": "acme", "room": "tea"}, {"net": "evil", "room": "tea"}
        assert "result" in await host.ask("channels/open", {"type": "irc", "address": there})
        assert await code_of(host, "channels/open", {"type": "irc", "address": elsewhere}) == -32017
    assert joined == ["tea"]


@pytest.mark.req("MCPL-14.5")
async def test_scopes_say_what_may_be_observed():
    watcher = Watcher("*")
    async with hosting(watcher.server) as host:
        await host.update(scopes={"channels.observe": {"whitelist": ["discord:*"]}})
        await host.tell("channels/outgoing/complete", complete("ui"))
        await host.tell("channels/outgoing/complete", complete("discord:#general"))
        await turns()
    assert [seen[0] for seen in watcher.seen] == ["discord:#general"]


@pytest.mark.req("MCPL-6.7u")
async def test_a_disabled_set_opens_closes_publishes_and_delivers_nothing(discord: Discord):
    async with hosting(discord.server) as host:
        await opened(host)
        await host.update(disabled=[SET])
        for method in ("channels/open", "channels/close", "channels/publish"):
            assert await code_of(host, method, {**OPEN_GENERAL, **HELLO}) == -32001
        with pytest.raises(FeatureDisabled):
            await discord.chat.incoming(ReceivedMessage("discord:#general", "hi", "u1"), to=session_of(discord.server))
        assert discord.published == [] and host.asked == []
