"""Channels as the host keeps them: registered, opened, published to, heard from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Text
from defserve.client import ChannelMessage, Delivery, Mcpl, MessageAnswer
from defserve.errors import PeerError
from defserve.protocols.mcpl.channels.messages import Author, Channel
from defserve.protocols.mcpl.vocabulary import ChannelNotPermitted, FeatureDisabled, UnknownChannel
from tests.client.mcpl.scripted import Json, LiveServer, hosting, live_server
from tests.client.pretend import SILENCE, Fail
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

BLOCK: Json = {
    "version": "0.4",
    "channels": {"register": True, "publish": True, "observe": True, "lifecycle": True, "streaming": True},
    "featureSets": {
        "chat.post": {"description": "Post", "uses": ["channels.publish"], "scoped": True},
        "chat.watch": {"description": "Watch", "uses": ["channels.observe"], "scoped": True},
    },
}
GENERAL: Json = {
    "id": "discord:#general",
    "type": "discord",
    "label": "#general (Acme Discord)",
    "direction": "bidirectional",
    "address": {"guild": "acme", "channel": "#general"},
}
RANDOM: Json = {**GENERAL, "id": "discord:#random", "label": "#random"}


def chat(**replies: Any) -> LiveServer:
    return live_server(BLOCK, {name.replace("_", "/"): reply for name, reply in replies.items()}, name="discord")


async def registered(server: LiveServer, *channels: Json) -> Json:
    return await server.ask("channels/register", {"channels": list(channels)})


def message(id: str = "dmsg_1", channel: str = "discord:#general", **more: Any) -> Json:
    author = {"id": "u_777", "name": "Alice"}
    content = [{"type": "text", "text": "What's the status?"}]
    return {"channelId": channel, "messageId": id, "author": author, "content": content, **more}


async def test_channels_are_registered_changed_and_listed_back():
    server = chat()
    async with hosting(server) as mcpl:
        assert (await registered(server, GENERAL))["result"] == {
            "results": [{"id": "discord:#general", "accepted": True}],
            "registered": ["discord:#general"],
        }
        assert mcpl.channels["discord:#general"] == Channel(
            "discord:#general",
            "#general (Acme Discord)",
            address={"guild": "acme", "channel": "#general"},
            type="discord",
        )
        updated = {**GENERAL, "label": "#main"}
        change = {"added": [RANDOM], "updated": [updated], "removed": ["discord:#nowhere"]}
        server.say({"method": "channels/changed", "params": change})
        assert (await server.ask("channels/list", {}))["result"] == {"channels": [updated, RANDOM]}
        server.say({"method": "channels/changed", "params": {"removed": ["discord:#general", 3]}})
        assert (await server.ask("channels/list", {}))["result"] == {"channels": [RANDOM]}
        assert [channel.id for channel in mcpl.channels] == ["discord:#random"]
        with pytest.raises(UnknownChannel):
            mcpl.channels["discord:#general"]


async def test_a_broken_change_is_passed_over():
    server = chat()
    async with hosting(server) as mcpl:
        server.say({"method": "channels/changed", "params": {"added": [{"label": "no id"}]}})
        await registered(server, GENERAL)
        assert len(mcpl.channels) == 1


async def test_the_server_is_asked_for_its_channels():
    async with hosting(chat(channels_list={"channels": [GENERAL, RANDOM]})) as mcpl:
        assert [channel.id for channel in await mcpl.channels.refresh()] == ["discord:#general", "discord:#random"]
        assert len(mcpl.channels) == 2


@for_each_row("channels", [None, 5, [{"label": "no id"}]])
async def test_what_is_no_list_of_channels_is_an_error_of_the_server_and_changes_nothing(channels: Any):
    server = chat(channels_list={"channels": channels})
    async with hosting(server) as mcpl:
        await registered(server, GENERAL)
        with pytest.raises(PeerError, match="listed no channels"):
            await mcpl.channels.refresh()
        assert len(mcpl.channels) == 1


async def test_a_channel_is_opened_and_closed():
    server = chat(channels_open={"channel": GENERAL}, channels_close={"closed": True})
    async with hosting(server) as mcpl:
        channel = await mcpl.open("discord", {"guild": "acme", "channel": "#general"})
        assert (channel.id, channel.direction) == ("discord:#general", "bidirectional")
        assert "discord:#general" in mcpl.channels
        assert await mcpl.close("discord:#general") is True
        assert "discord:#general" not in mcpl.channels
    address = {"guild": "acme", "channel": "#general"}
    assert server.asked("channels/open") == [{"type": "discord", "address": address, "metadata": {}}]
    assert server.asked("channels/close") == [{"channelId": "discord:#general"}]


async def test_a_channel_that_cannot_be_opened_is_an_error():
    async with hosting(chat(channels_open=Fail(-32024, "Channel open failed"))) as mcpl:
        with pytest.raises(PeerError) as caught:
            await mcpl.open("discord", {})
        assert caught.value.code == -32024
    async with hosting(chat(channels_open={"channel": None})) as mcpl:
        with pytest.raises(PeerError, match="opened no channel"):
            await mcpl.open("discord", {})


@for_each_row("ack", [True, False])
async def test_content_is_published_as_request_or_notification(ack: bool):
    server = chat(channels_publish={"delivered": True, "messageId": "m_9"})
    async with hosting(server) as mcpl:
        sent = await mcpl.publish("discord:#general", "Hello team", ack=ack, conversation_id="conv_123")
    assert sent == (Delivery(True, "m_9") if ack else None)
    (found,) = [found for found in server.sent if found["method"] == "channels/publish"]
    assert ("id" in found) is ack
    assert found["params"] == {
        "conversationId": "conv_123",
        "channelId": "discord:#general",
        "stream": False,
        "content": [{"type": "text", "text": "Hello team"}],
    }


async def test_observers_see_chunks_and_then_the_whole():
    server = chat()
    async with hosting(server) as mcpl:
        async with mcpl.outgoing("discord:#general", inference_id="inf_abc", conversation_id="conv_123") as out:
            await out.chunk("Hello ")
            await out.chunk("team,")
        async with mcpl.outgoing("ui", inference_id="inf_d", conversation_id="conv_123") as out:
            await out.complete([Text("Moderated")])
        with pytest.raises(RuntimeError):
            async with mcpl.outgoing("ui", inference_id="inf_e", conversation_id="conv_123"):
                raise RuntimeError("the model broke")
    about = {"inferenceId": "inf_abc", "conversationId": "conv_123", "channelId": "discord:#general"}
    assert server.asked("channels/outgoing/chunk") == [
        {**about, "index": 0, "delta": "Hello "},
        {**about, "index": 1, "delta": "team,"},
    ]
    assert [one["content"][0]["text"] for one in server.asked("channels/outgoing/complete")] == [
        "Hello team,",
        "Moderated",
    ]


async def test_a_server_that_may_not_observe_is_told_nothing():
    server = chat()
    async with hosting(server, Mcpl(["chat.post"], audit=[])) as mcpl:
        async with mcpl.outgoing("discord:#general", inference_id="inf_1", conversation_id="c") as out:
            await out.chunk("Private")
    assert server.asked("channels/outgoing/chunk") == server.asked("channels/outgoing/complete") == []


@for_each_row(
    ("capability", "chunks", "wholes"),
    [(True, 1, 1), ({"observe": True, "streaming": False}, 0, 1), ({"publish": True}, 0, 0), (None, 0, 0)],
)
async def test_a_server_is_told_what_it_says_it_observes(capability: Any, chunks: int, wholes: int):
    server = live_server({**BLOCK, "channels": capability})
    async with hosting(server) as mcpl:
        async with mcpl.outgoing("ui", inference_id="inf_1", conversation_id="c") as out:
            await out.chunk("Hi")
    assert len(server.asked("channels/outgoing/chunk")) == chunks
    assert len(server.asked("channels/outgoing/complete")) == wholes


async def test_each_message_has_its_result():
    taken: list[ChannelMessage] = []

    def take(message: ChannelMessage) -> Any:
        taken.append(message)
        return {"dmsg_1": "conv_123", "dmsg_2": False, "dmsg_3": MessageAnswer(False, reason="spam"), "dmsg_4": None}[
            message.id
        ]

    server = chat()
    async with hosting(server, Mcpl(on_message=take, audit=[])):
        await registered(server, GENERAL)
        batch = [message(f"dmsg_{number}", threadId="t_42") for number in (1, 2, 3, 4)]
        strangers = [message("x", "discord:#unknown"), message("y", content=7), message("dmsg_1")]
        strangers += [message("z" * 2000), message("z", channelId=["a"])]
        reply = await server.ask("channels/incoming", {"messages": [*batch, *strangers]})
    first, *rest = reply["result"]["results"]
    assert first == {"messageId": "dmsg_1", "accepted": True, "conversationId": "conv_123"}
    assert rest[0] == {"messageId": "dmsg_2", "accepted": False, "reason": "declined"}
    assert rest[1] == {"messageId": "dmsg_3", "accepted": False, "reason": "spam"}
    assert rest[2] == {"messageId": "dmsg_4", "accepted": True}
    assert [one["accepted"] for one in rest[3:]] == [False, False, True, False, False]
    assert [one.id for one in taken] == ["dmsg_1", "dmsg_2", "dmsg_3", "dmsg_4"]
    assert (taken[0].author, taken[0].thread_id) == (Author("u_777", "Alice"), "t_42")
    assert taken[0].content == [Text("What's the status?")]


async def test_messages_wait_to_be_read():
    server = chat()
    async with hosting(server) as mcpl:
        await registered(server, GENERAL)
        await server.ask("channels/incoming", {"messages": [message("a"), message("b")]})
        assert [(await anext(mcpl.messages())).id for _ in range(2)] == ["a", "b"]


async def test_a_message_may_be_faster_than_the_reply_that_opens_its_channel():
    server = chat(channels_open=SILENCE)
    async with hosting(server) as mcpl:
        opening = asyncio.create_task(mcpl.open("discord", {}))
        request = await server.told(lambda sent: sent.get("method") == "channels/open")
        server.say({"id": request["id"], "result": {"channel": GENERAL}})
        reply = await server.ask("channels/incoming", {"messages": [message()]})
        assert reply["result"]["results"] == [{"messageId": "dmsg_1", "accepted": True}]
        await opening


SCOPES = {"chat.*": {"whitelist": ["discord:#g*"], "blacklist": ["discord:#admin-*"]}}


async def test_scopes_hold_for_channels():
    server = chat(channels_open={"channel": {**GENERAL, "id": "discord:#admin-1"}})
    async with hosting(server, Mcpl(scopes=SCOPES, audit=[])) as mcpl:
        admin = {**GENERAL, "id": "discord:#admin-1"}
        answer = (await registered(server, GENERAL, admin, RANDOM))["result"]
        assert answer["registered"] == ["discord:#general"]
        assert [one["accepted"] for one in answer["results"]] == [True, False, False]
        error = (await registered(server, admin))["error"]
        assert (error["code"], error["data"]) == (-32017, {"channelId": "discord:#admin-1"})
        for attempt in (mcpl.open("discord", {}), mcpl.publish("discord:#admin-1", "Hi")):
            with pytest.raises(ChannelNotPermitted):
                await attempt
        await mcpl.update(scopes={"chat.*": {"blacklist": ["**"]}})
        results = (await server.ask("channels/incoming", {"messages": [message()]}))["result"]["results"]
        assert results[0]["accepted"] is False
    assert server.asked("channels/publish") == []


async def test_where_its_sets_are_off_a_server_has_no_channels():
    server = chat()
    async with hosting(server, Mcpl([], audit=[])) as mcpl:
        assert (await registered(server, GENERAL))["error"]["code"] == -32001
        assert (await server.ask("channels/incoming", {"messages": []}))["error"]["code"] == -32001
        server.say({"method": "channels/changed", "params": {"added": [GENERAL]}})
        with pytest.raises(FeatureDisabled):
            await mcpl.publish("discord:#general", "Hi")
        assert len(mcpl.channels) == 0


async def test_a_server_may_keep_channels_without_a_set_for_them():
    server = live_server({**BLOCK, "featureSets": {}})
    async with hosting(server) as mcpl:
        await registered(server, GENERAL)
        assert "discord:#general" in mcpl.channels


@for_each_row("method", ["channels/register", "channels/incoming"])
@for_each_row("params", [{}, {"channels": 3, "messages": "Hi"}, {"channels": [{}], "messages": None}])
async def test_broken_channels_and_messages_are_invalid(method: str, params: Any):
    server = chat()
    async with hosting(server):
        assert (await server.ask(method, params))["error"]["code"] == -32602
