"""MCPL §14: the channels of a server, what the host sends there and what comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from defserve.errors import InvalidParams, PeerError
from defserve.host.caller import SendNotification, SendRequest
from defserve.host.fields import Json, object_of, text_of, texts_of
from defserve.host.mcpl.audit import McplAuditTrail
from defserve.host.mcpl.channels.messages import ChannelMessage, Delivery, MessageAnswer, OnMessage, Outgoing
from defserve.host.mcpl.feature_sets import Declared, FeatureSets
from defserve.host.mcpl.inbox import Inbox, take
from defserve.host.mcpl.once import Once, checked_id
from defserve.protocols.mcp.params import text
from defserve.protocols.mcpl.channels.values import Author, Channel
from defserve.protocols.mcpl.content import Sendable, blocks, read
from defserve.protocols.mcpl.errors import ChannelNotPermitted, FeatureDisabled, LiveRefusal, UnknownChannel
from defserve.protocols.mcpl.scopes.values import listed, normal
from defserve.wire.jsonvalue import is_array, is_object

REGISTER: Final = "channels/register"
CHANGED: Final = "channels/changed"
LIST: Final = "channels/list"
OPEN: Final = "channels/open"
CLOSE: Final = "channels/close"
PUBLISH: Final = "channels/publish"
INCOMING: Final = "channels/incoming"

MOST_CHANNELS: Final = 10_000
OPENING_SECONDS: Final = 1.0


class LiveChannels:
    """`client.mcpl.channels`: id to `Channel`, as the server registered and changed them."""

    def __init__(
        self,
        on_message: OnMessage | None,
        seen: Once,
        sets: FeatureSets,
        audit: McplAuditTrail,
        request: SendRequest,
        notify: SendNotification,
    ) -> None:
        self.inbox: Inbox[ChannelMessage] = Inbox()
        self._known: dict[str, Channel] = {}
        self._opening: set[asyncio.Future[None]] = set()
        self._on_message, self._seen, self._sets, self._audit = on_message, seen, sets, audit
        self._request, self._notify = request, notify
        self._capability: Json = {}

    def read(self, capability: Any) -> None:
        """Read the capability `channels`. A server that only says `true` may observe and stream."""
        self._capability = (
            dict.fromkeys(("observe", "streaming"), True) if capability is True else object_of(capability)
        )

    def __iter__(self) -> Iterator[Channel]:
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, id: object) -> bool:
        return id in self._known

    def __getitem__(self, id: str) -> Channel:
        """Raises UnknownChannel."""
        if (found := self._known.get(id)) is None:
            raise UnknownChannel(id)
        return found

    # -- messages of the server --------------------------------------------------------------------------

    async def register(self, params: Json) -> Json:
        """Raises InvalidParams, FeatureDisabled, or ChannelNotPermitted if none of the channels is permitted."""
        with self._audit.watching(REGISTER) as record:
            found = _channels(params.get("channels"))
            allowed = [channel for channel in found if self._permits(channel.id)]
            if found and not allowed:
                raise ChannelNotPermitted(found[0].id)
            self._add(allowed)
            record["channels"] = names = [channel.id for channel in allowed]
            return {"registered": names}

    def changed(self, params: Json) -> None:
        """Apply `channels/changed`. A channel that is not permitted is left out."""
        with self._audit.watching(CHANGED) as record:
            for id in texts_of(params.get("removed")):
                self._known.pop(id, None)
            news = [*_channels(params.get("added", [])), *_channels(params.get("updated", []))]
            allowed = [channel for channel in news if self._permits(channel.id)]
            self._add(allowed)
            record["channels"] = [channel.id for channel in allowed]

    async def listed(self, params: Json) -> Json:
        """Answer `channels/list` of the server: the channels that this host knows."""
        return {"channels": [channel.wire(channel.type or "unknown") for channel in self]}

    async def incoming(self, params: Json) -> Json:
        """Take messages in their order. Each has a result of its own."""
        messages = params.get("messages")
        if not is_array(messages):
            raise InvalidParams("Invalid params: messages must be a list")
        self._declared()
        results: list[Json] = []
        for message in messages:
            id = object_of(message).get("messageId")
            with self._audit.watching(INCOMING, message_id=id) as record:
                answer = await self._taken(message)
                if not answer["accepted"]:
                    record |= {"outcome": "refused", "reason": answer["reason"]}
            results.append({"messageId": id, **answer})
        return {"results": results}

    async def fetched(self, message: Json) -> None:
        """Take a message that was polled. If its channel is unknown, ask the server for its channels first."""
        id = message.get("channelId")
        if not isinstance(id, str) or id not in self._known:
            await self.refresh()
        await self.incoming({"messages": [message]})

    async def _taken(self, found: Any) -> Json:
        id = object_of(found).get("channelId")
        # The first message of a channel may come before we have read the reply that opened it.
        if isinstance(id, str) and id not in self._known and self._opening:
            await asyncio.wait(self._opening, timeout=OPENING_SECONDS)
        try:
            message = self._message(found)
        except (InvalidParams, LiveRefusal) as error:
            return MessageAnswer(False, reason=error.message).wire()
        key = (self._audit.server_id, message.channel_id, message.id)
        return await self._seen.answer(key, lambda: take(message, self._on_message, self.inbox, MessageAnswer))

    def _message(self, found: Any) -> ChannelMessage:
        if not is_object(found):
            raise InvalidParams("Invalid params: a message must be an object")
        channel = self[text(found, "channelId")]
        if not self._permits(channel.id):
            raise ChannelNotPermitted(channel.id)
        author = object_of(found.get("author"))
        return ChannelMessage(
            server_id=self._audit.server_id,
            channel_id=channel.id,
            id=checked_id(found, "messageId"),
            content=read(found.get("content")),
            author=Author(str(author["id"]), str(author.get("name", ""))) if "id" in author else None,
            timestamp=str(found.get("timestamp", "")),
            thread_id=text_of(found.get("threadId")),
            metadata=object_of(found.get("metadata")),
            raw=found,
        )

    # -- actions of the host -----------------------------------------------------------------------------

    async def refresh(self) -> list[Channel]:
        """Ask the server for its channels, and replace the known ones."""
        found = _channels((await self._request(LIST, {})).get("channels"))
        self._known.clear()
        self._add([channel for channel in found if self._permits(channel.id)])
        return list(self)

    async def open(self, type: str, address: Any = None, metadata: Mapping[str, Any] | None = None) -> Channel:
        """Have the server open a channel. Raises PeerError (-32024) if it cannot, or ChannelNotPermitted."""
        with self._audit.watching(OPEN, type=type) as record:
            self._declared()
            params: Json = {"type": type, "address": address, "metadata": dict(metadata or {})}
            opening = asyncio.get_running_loop().create_future()
            self._opening.add(opening)
            try:
                result = await self._request(OPEN, params)
                try:
                    channel = Channel.read(result.get("channel"))
                except InvalidParams as error:
                    raise PeerError(f"the server opened no channel: {error.message}") from None
                record["channel_id"] = channel.id
                if not self._permits(channel.id):
                    raise ChannelNotPermitted(channel.id)
                self._add([channel])
                return channel
            finally:
                self._opening.discard(opening)
                opening.set_result(None)

    async def close(self, id: str) -> bool:
        """Have the server close a channel. Whether it did."""
        with self._audit.watching(CLOSE, channel_id=id):
            closed = (await self._request(CLOSE, {"channelId": id})).get("closed") is True
            if closed:
                self._known.pop(id, None)
            return closed

    async def publish(
        self,
        id: str,
        content: Sendable,
        *,
        ack: bool = True,
        conversation_id: str | None = None,
        stream: bool = False,
    ) -> Delivery | None:
        """Publish content to a channel. Without `ack` there is no answer, and the result is None.

        Raises ChannelNotPermitted, FeatureDisabled, and PeerError for an error of the server.
        """
        with self._audit.watching(PUBLISH, channel_id=id):
            if not self._permits(id, "channels.publish"):
                raise ChannelNotPermitted(id)
            conversation = {"conversationId": conversation_id} if conversation_id is not None else {}
            params: Json = {**conversation, "channelId": id, "stream": stream, "content": blocks(content)}
            if not ack:
                await self._notify(PUBLISH, params)
                return None
            result = await self._request(PUBLISH, params)
            return Delivery(result.get("delivered") is True, text_of(result.get("messageId")))

    def outgoing(self, id: str, *, inference_id: str, conversation_id: str) -> Outgoing:
        """Show observers of a channel what is sent there: `async with …outgoing(…) as out: await out.chunk("Hi")`.

        A server that does not observe, or must not, is sent nothing.
        """
        about = {"inferenceId": inference_id, "conversationId": conversation_id, "channelId": id}
        try:
            observes = self._capability.get("observe") is True and self._permits(id, "channels.observe")
        except FeatureDisabled:
            observes = False
        streams = observes and self._capability.get("streaming") is True
        return Outgoing(about, self._notify, chunks=streams, whole=observes)

    # -- permissions -------------------------------------------------------------------------------------

    def _add(self, channels: list[Channel]) -> None:
        for channel in channels:
            if channel.id in self._known or len(self._known) < MOST_CHANNELS:
                self._known[channel.id] = channel

    def _declared(self) -> list[Declared]:
        """The server's feature sets for channels. Raises FeatureDisabled if there are some, and all are disabled."""
        declared = [one for one in self._sets if any(use.startswith("channels.") for use in one.uses)]
        if declared and not any(self._sets.enabled(one.name) for one in declared):
            raise FeatureDisabled(declared[0].name)
        return declared

    def _permits(self, id: str, use: str = "channels.") -> bool:
        """Whether the scopes of some feature set cover this channel (§14.5). Raises FeatureDisabled."""
        declared = self._declared()
        if sets := self._sets.using(use):
            return any(self._covers(one.name, id) for one in sets)
        # A server may have channels without a set for them. If it declares such sets, one must be for this use.
        return not declared

    def _covers(self, name: str, id: str) -> bool:
        lists = self._sets.scoping(name)
        allowed = listed(lists, normal(id))
        return not lists.whitelist if allowed is None else allowed


def _channels(found: Any) -> list[Channel]:
    if not is_array(found):
        raise InvalidParams("Invalid params: channels must be a list")
    return [Channel.read(one) for one in found]
