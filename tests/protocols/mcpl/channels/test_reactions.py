from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from defserve import Server, ToolError
from defserve.live import Channel, ChannelHistory, ReceivedMessage
from defserve.protocols.mcpl.channels.messages import MAX_HISTORY_MESSAGES
from tests.protocols.mcpl.hosts import MCPL, MCPL_05, Host, Json, hosting
from tests.raw import turns, until
from tests.rows import for_each_row

pytestmark = [pytest.mark.anyio, pytest.mark.req("MCPL-05")]

BOTH = pytest.mark.parametrize("mcpl", [MCPL, MCPL_05], ids=["0.4", "0.5"])
WHEN = "2026-01-23T10:30:00Z"


class Rooms:
    """Rooms with a history, typing and acknowledgements."""

    def __init__(self) -> None:
        self.server = Server("rooms", "1")
        self.chat = chat = self.server.channels("chat", feature_set=self.server.feature_set("chat.rooms", "Chat"))
        self.handle_event: list[Any] = []
        self.messages: Sequence[Any] = [
            ReceivedMessage("chat:lobby", f"m{n}", "u1", id=f"m{n}", timestamp=WHEN) for n in range(5)
        ]
        self.is_broken = self.truncated = False
        happened = self.handle_event
        chat.add(Channel("chat:lobby", "Lobby", address={"room": "lobby"}))

        @chat.open
        async def open(address: dict[str, str]) -> Channel:
            happened.append(f"open {address['room']}")
            return Channel(f"chat:{address['room']}", address=address)

        @chat.close
        async def close(channel: Channel) -> None:
            happened.append(f"close {channel.id}")

        @chat.history
        async def history(channel: Channel, limit: int, before: str | None) -> Any:
            happened.append((channel.id, limit, before))
            if self.is_broken:
                raise ToolError("the archive is closed")
            return ChannelHistory(self.messages, truncated=True) if self.truncated else self.messages

        @chat.acknowledge
        async def acknowledge(channel: Channel, message_id: str, intent: str, value: Any) -> str | bool:
            happened.append((message_id, intent, value))
            if intent == "broken":
                raise ToolError("cannot react")
            return ":eyes:" if intent == "seen" else intent != "no"

        @chat.typing
        async def typing(channel: Channel, active: bool, metadata: Any) -> None:
            happened.append((channel.id, active, metadata))


async def open(host: Host, **params: Any) -> Json:
    return await host.ask("channels/open", params)


async def granted(host: Host) -> None:
    if host.is_05:
        await host.grant()


ANSWERS: Json = {"channels/register": {}, "channels/changed": {}}
LOBBY: Json = {"room": "lobby"}
TEA: Json = {"room": "tea"}


# -- opening ---------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.req("MCPL-14.3o")
async def test_the_id_wins_over_type_and_address(mcpl: Any):
    rooms = Rooms()
    async with hosting(rooms.server, mcpl=mcpl, answers=ANSWERS) as host:
        await granted(host)
        for more in ({}, {"type": "chat"}, {"type": "chat", "address": TEA}, {"type": "nonsense"}):
            assert (await open(host, channelId="chat:lobby", **more))["result"]["channel"]["id"] == "chat:lobby"
        assert rooms.handle_event == []
        assert (await open(host, channelId="chat:unknown"))["error"]["code"] == -32023
        assert (await open(host, type="chat"))["error"]["code"] == -32024


@BOTH
async def test_an_id_of_an_earlier_session_is_opened_by_its_address(mcpl: Any):
    rooms = Rooms()
    async with hosting(rooms.server, mcpl=mcpl, answers=ANSWERS) as host:
        await granted(host)
        reply = await open(host, channelId="chat:tea", type="chat", address=TEA)
        assert reply["result"]["channel"]["id"] == "chat:tea"
        # An address that leads elsewhere is not what the host wants.
        reply = await open(host, channelId="chat:coffee", type="chat", address={"room": "beer"})
        assert reply["error"]["code"] == -32023
        assert rooms.handle_event == ["open tea", "open beer", "close chat:beer"]


@BOTH
async def test_opening_may_be_repeated(mcpl: Any):
    rooms = Rooms()
    async with hosting(rooms.server, mcpl=mcpl, answers=ANSWERS) as host:
        await granted(host)
        replies = await asyncio.gather(*[open(host, type="chat", address=TEA) for _ in range(3)])
        assert {reply["result"]["channel"]["id"] for reply in replies} == {"chat:tea"}
        assert rooms.handle_event == ["open tea"]


# -- history ---------------------------------------------------------------------------------------------


@BOTH
@for_each_row(
    ("wanted", "ids", "truncated"),
    [
        ({"limit": 2}, ["m3", "m4"], True),
        ({"limit": 0}, [], True),
        ({"limit": 5, "beforeMessageId": "m9"}, ["m0", "m1", "m2", "m3", "m4"], None),
        ({}, ["m0", "m1", "m2", "m3", "m4"], None),
        ({"limit": "many", "beforeMessageId": 3}, ["m0", "m1", "m2", "m3", "m4"], None),
        ({"limit": 10**9}, ["m0", "m1", "m2", "m3", "m4"], None),
    ],
    ids=str,
)
async def test_a_channel_is_opened_with_its_history(mcpl: Any, wanted: Json, ids: list[str], truncated: bool | None):
    rooms = Rooms()
    async with hosting(rooms.server, mcpl=mcpl, answers=ANSWERS) as host:
        await granted(host)
        result = (await open(host, channelId="chat:lobby", history=wanted))["result"]
        assert [one["messageId"] for one in result["history"]] == ids
        assert result.get("historyTruncated") is truncated
        (asked,) = rooms.handle_event
        assert asked[1] <= MAX_HISTORY_MESSAGES and asked[2] in (None, "m9")
        assert result["channel"]["capabilities"]["history"] == {
            "maxMessages": MAX_HISTORY_MESSAGES,
            "supportsBeforeMessage": True,
            "supportsSinceLastSeen": False,
        }


async def test_a_history_is_in_the_shape_of_incoming_messages():
    rooms = Rooms()
    rooms.messages, rooms.truncated = (
        [ReceivedMessage("chat:lobby", "hi", "u1", id="m", timestamp=WHEN, tags=["chat:dm"])],
        True,
    )
    for mcpl, tags in ((MCPL, {}), (MCPL_05, {"tags": ["chat:dm", "chat:addressed", "chat:private"]})):
        async with hosting(rooms.server, mcpl=mcpl, answers=ANSWERS) as host:
            await granted(host)
            result = (await open(host, channelId="chat:lobby", history={}))["result"]
            assert result["historyTruncated"] is True
            assert result["history"] == [
                {
                    "channelId": "chat:lobby",
                    "messageId": "m",
                    "author": {"id": "u1", "name": "u1"},
                    "timestamp": WHEN,
                    "content": [{"type": "text", "text": "hi"}],
                    "metadata": {},
                    **tags,
                }
            ]


@for_each_row("wrong", ["error", "no message"])
async def test_without_its_history_nothing_is_opened(wrong: str):
    rooms = Rooms()
    rooms.is_broken = wrong == "error"
    rooms.messages = ["just text"]
    async with hosting(rooms.server, mcpl=MCPL_05, answers=ANSWERS) as host:
        await host.grant()
        reply = await open(host, type="chat", address=TEA, history={"limit": 3})
        assert reply["error"]["code"] == -32024
        assert "archive" in reply["error"]["message"] or wrong != "error"
        listed = (await host.ask("channels/list"))["result"]["channels"]
        assert [one["id"] for one in listed] == ["chat:lobby"]
        assert rooms.handle_event[-1] == "close chat:tea"


# -- reacting --------------------------------------------------------------------------------------------


@BOTH
@for_each_row(
    ("params", "result"),
    [
        ({"intent": "seen"}, {"acknowledged": True, "representation": ":eyes:"}),
        ({"intent": "react", "value": "👍"}, {"acknowledged": True}),
        ({"intent": "no"}, {"acknowledged": False}),
        ({"intent": "broken"}, {"acknowledged": False, "reason": "cannot react"}),
    ],
    ids=str,
)
async def test_a_message_is_acknowledged(mcpl: Any, params: Json, result: Json):
    rooms = Rooms()
    async with hosting(rooms.server, mcpl=mcpl, answers=ANSWERS) as host:
        await granted(host)
        asked = {"channelId": "chat:lobby", "messageId": "m1", **params}
        assert (await host.ask("channels/acknowledge", asked))["result"] == result
        assert rooms.handle_event == [("m1", params["intent"], params.get("value"))]
        assert (await host.ask("channels/acknowledge", asked | {"channelId": "chat:x"}))["error"]["code"] == -32023
        assert (await host.ask("channels/acknowledge", asked | {"intent": 5}))["error"]["code"] == -32602


@BOTH
@pytest.mark.parametrize("method", ["channels/typing", "notifications/typing"])
async def test_typing_is_shown(mcpl: Any, method: str):
    rooms = Rooms()
    async with hosting(rooms.server, mcpl=mcpl, answers=ANSWERS) as host:
        await granted(host)
        await host.tell(method, {"channelId": "chat:lobby", "metadata": {"topic": "tea"}})
        await host.tell(method, {"channelId": "chat:lobby", "op": "stop"})
        await host.tell(method, {"channelId": "chat:lobby", "op": "dance"})
        await host.tell(method, {"channelId": "chat:unknown"})
        await until(lambda: len(rooms.handle_event) == 2)
        await turns()
        assert rooms.handle_event == [("chat:lobby", True, {"topic": "tea"}), ("chat:lobby", False, {})]


async def test_uses_follow_from_the_verbs():
    async with hosting(Rooms().server, mcpl=MCPL_05, answers=ANSWERS) as host:
        assert host.advertised["featureSets"]["chat.rooms"]["uses"] == [
            "channels.register",
            "channels.lifecycle",
            "channels.incoming",
            "channels.acknowledge",
            "channels.typing",
        ]
    async with hosting(Rooms().server, answers=ANSWERS) as old:
        assert old.advertised["featureSets"]["chat.rooms"]["uses"] == ["channels.observe"]
