"""A server with Discord's channels, one that watches, and what §14 says of what they send."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator
from pydantic import BaseModel

from defserve import Server, ToolError
from defserve.protocols.mcpl.channels.directory import ChannelType
from defserve.protocols.mcpl.channels.messages import Channel
from defserve.protocols.mcpl.vocabulary import ChannelOpenFailed
from tests.protocols.mcpl.appendix_b import CONTENT_BLOCK
from tests.protocols.mcpl.hosts import Host, Json

ROADS = ("memory", "ws", "http")
SET = "chat.discord"

DESCRIPTOR = {
    "type": "object",
    "required": ["id", "type", "label", "direction"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "type": {"type": "string"},
        "label": {"type": "string", "minLength": 1},
        "direction": {"enum": ["outbound", "inbound", "bidirectional"]},
        "address": {"type": "object"},
        "metadata": {"type": "object"},
    },
}
MESSAGE = {
    "type": "object",
    "required": ["channelId", "messageId", "author", "timestamp", "content"],
    "additionalProperties": False,
    "properties": {
        "channelId": {"type": "string"},
        "messageId": {"type": "string", "minLength": 1},
        "threadId": {"type": "string"},
        "author": {
            "type": "object",
            "required": ["id", "name"],
            "properties": {"id": {"type": "string"}, "name": {"type": "string"}},
        },
        "timestamp": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z$"},
        "content": {"type": "array", "items": CONTENT_BLOCK},
        "metadata": {"type": "object"},
    },
}


def check(schema: Json, value: Any) -> None:
    Draft202012Validator(schema).validate(value)


class DiscordAddress(BaseModel):
    guild: str
    channel: str


GENERAL = {"guild": "acme", "channel": "#general"}
OPEN_GENERAL = {"type": "discord", "address": GENERAL, "metadata": {}}
GENERAL_WIRE = {
    "id": "discord:#general",
    "type": "discord",
    "label": "#general (Acme Discord)",
    "direction": "bidirectional",
    "address": GENERAL,
}
HELLO = {
    "conversationId": "conv_123",
    "channelId": "discord:#general",
    "stream": False,
    "content": [{"type": "text", "text": "Hello team"}],
}
SHARED = Channel("discord:#news", "News", "bidirectional")
NEWS = {"id": "discord:#news", "type": "discord", "label": "News", "direction": "bidirectional"}


class Discord:
    """A server with channels, and what was asked of them."""

    def __init__(self, server: Server | None = None, **options: Any) -> None:
        self.server = server or Server("discord", "1")
        self.posting = self.server.feature_set(SET, "Discord", **options)
        self.chat: ChannelType = self.server.channels("discord", feature_set=self.posting)
        self.closed: list[str] = []
        self.published: list[tuple[str, str]] = []
        chat = self.chat

        @chat.open
        async def join(address: DiscordAddress) -> Channel:
            if address.channel == "#secret":
                raise ChannelOpenFailed("it is by invitation only")
            if address.channel == "#broken":
                raise RuntimeError("password=hunter2")
            if address.channel == "#full":
                raise ToolError("the room is full")
            return Channel(f"discord:{address.channel}", f"{address.channel} (Acme Discord)", address=address)

        @chat.close
        async def leave(channel: Channel) -> None:
            self.closed.append(channel.id)

        @chat.publish
        async def send(channel: Channel, text: str) -> str:
            self.published.append((channel.id, text))
            return f"dmsg_{len(self.published)}"


async def opened(host: Host, channel: str = "#general") -> Json:
    reply = await host.ask("channels/open", {"type": "discord", "address": {"guild": "acme", "channel": channel}})
    return reply["result"]["channel"]


async def code_of(host: Host, method: str, params: Json) -> int:
    return (await host.ask(method, params))["error"]["code"]


async def ids(host: Host) -> list[str]:
    return [one["id"] for one in (await host.ask("channels/list"))["result"]["channels"]]


def join_x(address: dict[str, Any]) -> Channel:
    return Channel("x:1")


class Watcher:
    """A server that watches channels of a type, and what it has seen."""

    def __init__(self, type: str, name: str = "channels.observe") -> None:
        self.server = Server("watcher", "1")
        self.seen: list[Any] = []
        watched = self.server.channels(type, feature_set=self.server.feature_set(name, "Watch", scoped=True))

        @watched.observe
        async def complete(channel: Channel, text: str, inference_id: str, conversation_id: str) -> None:
            self.seen.append((channel.id, text, inference_id, conversation_id))

        @watched.observe_chunks
        def chunk(channel: Channel, delta: str, index: int) -> None:
            self.seen.append((channel.id, index, delta))


def complete(channel: str) -> Json:
    about = {"inferenceId": "inf_abc", "conversationId": "conv_123", "channelId": channel}
    return about | {"content": [{"type": "text", "text": "Hello team"}]}


def chunk(channel: str, index: int, delta: str) -> Json:
    about = {"inferenceId": "inf_abc", "conversationId": "conv_123", "channelId": channel}
    return about | {"index": index, "delta": delta}
