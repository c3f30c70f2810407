"""`examples/chat_channel.py` connects a host with people in a chat: real lines over TCP, over every transport."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from defserve.client import Client
from defserve.errors import PeerError

from .live import Answering, Json, body

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio

HOST: Json = {"experimental": {"mcpl": {"version": "0.4", "channels": True, "featureSets": True}}}
LOBBY = {"id": "chat:lobby", "type": "chat", "label": "Lobby", "direction": "bidirectional"}
TEA = {
    "id": "chat:tea",
    "type": "chat",
    "label": "Room tea",
    "direction": "bidirectional",
    "address": {"room": "tea"},
}


def hosting(incoming: Answering) -> Json:
    registered = Answering({})
    return {"capabilities": HOST, "methods": {"channels/incoming": incoming, "channels/register": registered}}


def accepting(params: Json) -> Json:
    return {"results": [{"messageId": one["messageId"], "accepted": True} for one in params["messages"]]}


class Person:
    """Somebody in the chat."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, text: str) -> None:
        self.writer.write(f"{text}\n".encode())

    async def hear(self) -> str:
        async with asyncio.timeout(10):
            return (await self.reader.readline()).decode().rstrip("\n")


@asynccontextmanager
async def person(client: Client, room: str, name: str = "Alice") -> AsyncGenerator[Person]:
    host, port = (await client.call("chat_address")).split(":")
    someone = Person(*await asyncio.open_connection(host, int(port)))
    someone.say(f"JOIN {room} {name}")
    assert await someone.hear() == f"JOINED {room}"
    try:
        yield someone
    finally:
        someone.writer.close()
        await someone.writer.wait_closed()


def publication(channel: str, text: str) -> Json:
    return {"channelId": channel, "conversationId": "conv_1", "content": [{"type": "text", "text": text}]}


async def open_tea(client: Client) -> Json:
    return await client.request("channels/open", {"type": "chat", "address": {"room": "tea"}})


@pytest.mark.req("MCPL-14.3o", "MCPL-14.3p", "MCPL-14.3i", "MCPL-14.3x")
async def test_a_host_talks_with_the_people_in_a_room(connect_to: ConnectTo):
    incoming = Answering(accepting)
    async with connect_to("chat_channel", **hosting(incoming)) as client, person(client, "tea") as alice:
        if client.stateless:
            with pytest.raises(PeerError, match="without a session"):
                await open_tea(client)
            return
        assert await open_tea(client) == {"channel": TEA}
        alice.say("Is anybody there?")
        (message,) = (await incoming.first())["messages"]
        assert (message["channelId"], message["author"]) == ("chat:tea", {"id": "Alice", "name": "Alice"})
        assert message["content"] == [{"type": "text", "text": "Is anybody there?"}]
        receipt = await client.request("channels/publish", publication("chat:tea", "Yes,\nI am."))
        assert receipt == {"delivered": True, "messageId": "chat:tea/1"}
        assert await alice.hear() == "agent: Yes, I am."
        await client.notify("channels/publish", publication("chat:tea", "And you?"))
        assert await alice.hear() == "agent: And you?"
        assert await open_tea(client) == {"channel": TEA}  # it is open already
        assert await client.request("channels/close", {"channelId": "chat:tea"}) == {"closed": True}
        with pytest.raises(PeerError, match="Unknown channel"):
            await client.request("channels/publish", publication("chat:tea", "Still here"))
        alice.say("Gone already?")
        assert await open_tea(client) == {"channel": TEA}
        assert len(incoming.asked) == 1


async def test_everybody_has_the_lobby_even_without_a_session(connect_to: ConnectTo):
    incoming = Answering(accepting)
    async with connect_to("chat_channel", **hosting(incoming)) as client, person(client, "lobby") as alice:
        assert body(await client.request("channels/list", {})) == {"channels": [LOBBY]}
        result = body(await client.request("channels/publish", publication("chat:lobby", "Welcome")))
        assert result == {"delivered": True, "messageId": "chat:lobby/1"}
        assert await alice.hear() == "agent: Welcome"
        alice.say("Thank you")
        message = await from_inbox(client) if client.stateless else (await incoming.first())["messages"][0]
        assert (message["channelId"], message["content"][0]["text"]) == ("chat:lobby", "Thank you")


async def from_inbox(client: Client) -> Any:
    """Where nobody can be called, what comes in waits to be read."""
    async with asyncio.timeout(10):
        while True:
            result = await client.request("resources/read", {"uri": "inbox://chat.rooms"})
            events = json.loads(result["contents"][0]["text"])["events"]
            if events:
                return events[0]


@pytest.mark.req("MCPL-14.5", "MCPL-14.6")
async def test_a_room_that_the_host_forbids_is_never_entered(connect_to: ConnectTo):
    async with connect_to("chat_channel", **hosting(Answering({}))) as client:
        if client.stateless:
            return
        policy = {"enabled": ["chat.rooms"], "scopes": {"chat.rooms": {"whitelist": ["chat:lobby"]}}}
        await client.notify("featureSets/update", policy)
        with pytest.raises(PeerError, match="Channel not permitted: chat:tea") as refused:
            await open_tea(client)
        assert refused.value.code == -32017
        with pytest.raises(PeerError, match="address.room") as odd:
            await client.request("channels/open", {"type": "chat", "address": {"room": "no such room"}})
        assert odd.value.code == -32024


@pytest.mark.req("MCPL-3.2")
async def test_a_plain_client_sees_a_tool_and_nothing_else(connect_to: ConnectTo):
    notifications: list[str] = []
    async with connect_to("chat_channel", on_notification=lambda method, _: notifications.append(method)) as client:
        assert [tool["name"] for tool in await client.tools()] == ["chat_address"]
        async with person(client, "lobby") as alice, person(client, "lobby", "Bob") as bob:
            alice.say("Hello")
            assert await bob.hear() == "Alice: Hello"
        with pytest.raises(PeerError, match="Method not found"):
            await client.request("channels/list", {})
    assert notifications == []
