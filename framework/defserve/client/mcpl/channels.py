"""Channels (MCPL §14): those of a server, and the messages that come in and go out.

A message counts once, even if it is repeated. A channel that the policy does not permit is neither kept nor written to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from defserve.base.peer_bounds import FirstComeTable
from defserve.client.answers import SendNotification, SendRequest
from defserve.client.audit import McplAuditTrail
from defserve.client.mcpl.feature_sets import DeclaredFeatureSet, FeatureSets, declares_use
from defserve.client.mcpl.push import AnswerWindow, Inbox, answer_delivered_item, encode_delivery_answer
from defserve.client.replies import Json, filter_strings, object_or_empty
from defserve.core.json_values import is_array, is_object
from defserve.core.shapes import wire_shape
from defserve.errors import InvalidParams, PeerError
from defserve.protocols.mcp.errors import read_text_param
from defserve.protocols.mcpl.channels.messages import Acknowledgement, Channel, ChannelMessage, Delivery, read_channel
from defserve.protocols.mcpl.content import ContentInput, encode_mcpl_content
from defserve.protocols.mcpl.scopes import find_label_permission, normalize_label
from defserve.protocols.mcpl.vocabulary import ChannelNotPermitted, FeatureDisabled, McplRefusal, UnknownChannel

CHANNELS_REGISTER: Final = "channels/register"
CHANNELS_CHANGED: Final = "channels/changed"
CHANNELS_LIST: Final = "channels/list"
CHANNELS_OPEN: Final = "channels/open"
CHANNELS_CLOSE: Final = "channels/close"
CHANNELS_PUBLISH: Final = "channels/publish"
CHANNELS_INCOMING: Final = "channels/incoming"
CHANNELS_ACKNOWLEDGE: Final = "channels/acknowledge"

OLD_USES: Final = ("channels.publish", "channels.observe")

MAX_CHANNELS: Final = 10_000
OPENING_SECONDS: Final = 1.0


class LiveChannels:
    """`client.mcpl.channels`: id to `Channel`, as the server registered and changed them."""

    def __init__(
        self,
        on_message: OnMessage | None,
        seen: AnswerWindow,
        sets: FeatureSets,
        audit: McplAuditTrail,
        request: SendRequest,
        notify: SendNotification,
    ) -> None:
        self.inbox: Inbox[ChannelMessage] = Inbox()
        self._known: FirstComeTable[Channel] = FirstComeTable(MAX_CHANNELS)
        self._opening: set[asyncio.Future[None]] = set()
        self._on_message, self._seen, self._sets, self._audit = on_message, seen, sets, audit
        self._request, self._notify = request, notify
        self._capability: Json = {}

    def read_capability(self, capability: Any) -> None:
        """Read the capability `channels`. A server that only says `true` may observe and stream."""
        self._capability = (
            dict.fromkeys(("observe", "streaming"), True) if capability is True else object_or_empty(capability)
        )

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._known.values())

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
        """Judge every channel. Raises InvalidParams, FeatureDisabled or CapabilityDenied.

        A server below 0.5 is refused with ChannelNotPermitted if none of its channels is permitted.
        """
        with self._audit.record_outcome(CHANNELS_REGISTER) as record:
            found = _channels(params.get("channels"))
            results = self._admit_channels(found)
            record["channels"] = names = [one["id"] for one in results if one["accepted"]]
            if found and not names and not self._sets.grants.by_grant:
                raise ChannelNotPermitted(found[0].id)
            return {"results": results, "registered": names}

    async def apply_changes(self, params: Json) -> Json:
        """Apply `channels/changed`. A channel that is not permitted is left out."""
        with self._audit.record_outcome(CHANNELS_CHANGED) as record:
            self._sets.grants.require("channels.register")
            for id in filter_strings(params.get("removed")):
                self._known.drop(id)
            results = self._admit_channels([*_channels(params.get("added", [])), *_channels(params.get("updated", []))])
            record["channels"] = [one["id"] for one in results if one["accepted"]]
            return {"results": results}

    def _admit_channels(self, found: list[Channel]) -> list[Json]:
        """Keep the channels that are permitted. Returns a verdict about each."""
        results: list[Json] = []
        for channel in found:
            permitted = self._permits(channel.id, "channels.register")
            accepted = permitted and self._known.store_value(channel.id, channel)
            if not accepted:
                self._known.drop(channel.id)
            reason = {} if accepted else {"reason": "too many channels" if permitted else "capability_denied"}
            results.append({"id": channel.id, "accepted": accepted, **reason})
        return results

    async def list_channels(self, params: Json) -> Json:
        """Answer `channels/list` of the server: the channels that this host knows."""
        return {"channels": [channel.describe("unknown") for channel in self]}

    async def incoming(self, params: Json) -> Json:
        """Take messages in their order. Each has a result of its own."""
        messages = params.get("messages")
        if not is_array(messages):
            raise InvalidParams("Invalid params: messages must be a list")
        self._require_sets("channels.incoming")
        results: list[Json] = []
        for message in messages:
            id = object_or_empty(message).get("messageId")
            with self._audit.record_outcome(CHANNELS_INCOMING, message_id=id) as record:
                answer = await self._accept_message(message)
                if not answer["accepted"]:
                    record |= {"outcome": "refused", "reason": answer["reason"]}
            results.append({"messageId": id, **answer})
        return {"results": results}

    def is_in_known_channel(self, message: Json) -> bool:
        """Whether the channel that a message names is known."""
        id = message.get("channelId")
        return isinstance(id, str) and id in self._known

    async def receive_polled_message(self, message: Json) -> Json:
        """Answer a message that was polled."""
        return (await self.incoming({"messages": [message]}))["results"][0]

    async def _accept_message(self, found: Any) -> Json:
        id = object_or_empty(found).get("channelId")
        # The first message of a channel may come before we have read the reply that opened it.
        if isinstance(id, str) and id not in self._known and self._opening:
            await asyncio.wait(self._opening, timeout=OPENING_SECONDS)
        try:
            message = self._message(found)
        except (InvalidParams, McplRefusal) as error:
            return MessageAnswer(False, reason=error.message).to_wire()
        key = (self._audit.server_id, message.channel_id, message.id)
        return await self._seen.answer(
            key, lambda: answer_delivered_item(message, self._on_message, self.inbox, MessageAnswer)
        )

    def _message(self, found: Any) -> ChannelMessage:
        if not is_object(found):
            raise InvalidParams("Invalid params: a message must be an object")
        channel = self[read_text_param(found, "channelId")]
        if not self._permits(channel.id):
            raise ChannelNotPermitted(channel.id)
        return ChannelMessage.from_wire(found, server_id=self._audit.server_id)

    # -- actions of the host -----------------------------------------------------------------------------

    async def refresh(self) -> list[Channel]:
        """Ask the server for its channels, and replace the known ones. Raises PeerError for what is no list of them."""
        self._sets.grants.require("channels.register")
        try:
            found = _channels((await self._request(CHANNELS_LIST, {})).get("channels"))
        except InvalidParams as error:
            raise PeerError(f"the server listed no channels: {error.message}") from None
        self._known.clear()
        self._add([channel for channel in found if self._permits(channel.id)])
        return list(self)

    async def open(
        self,
        type: str | None,
        address: Any = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        history: Mapping[str, Any] | None = None,
    ) -> Channel:
        """Have the server open a channel, by its `id` or by type and address.

        `history` asks for its latest messages, such as `{"limit": 20}`; then an OpenedChannel is returned. Raises
        PeerError (-32024) if the server cannot, or ChannelNotPermitted.
        """
        with self._audit.record_outcome(CHANNELS_OPEN, type=type) as record:
            self._require_sets("channels.lifecycle")
            params: Json = {} if type is None else {"type": type, "address": address, "metadata": dict(metadata or {})}
            if id is not None:
                params["channelId"] = id
            if history is not None:
                params["history"] = dict(history)
            opening = asyncio.get_running_loop().create_future()
            self._opening.add(opening)
            try:
                result = await self._request(CHANNELS_OPEN, params)
                try:
                    channel = read_channel(result.get("channel"))
                except InvalidParams as error:
                    raise PeerError(f"the server opened no channel: {error.message}") from None
                record["channel_id"] = channel.id
                if not self._permits(channel.id):
                    raise ChannelNotPermitted(channel.id)
                self._add([channel])
                return channel if history is None else self._with_history(channel, result)
            finally:
                self._opening.discard(opening)
                opening.set_result(None)

    def _with_history(self, channel: Channel, result: Json) -> OpenedChannel:
        found, messages, refused = result.get("history"), list[ChannelMessage](), list[Json]()
        for one in found if is_array(found) else ():
            try:
                messages.append(self._message({**object_or_empty(one), "channelId": channel.id}))
            except (InvalidParams, McplRefusal) as error:
                refused.append({"reason": str(error)})
        self._audit.report_refused_items(CHANNELS_OPEN, refused, channel_id=channel.id)
        return OpenedChannel.extend(
            channel, history=tuple(messages), history_truncated=result.get("historyTruncated") is True
        )

    async def close(self, id: str) -> bool:
        """Have the server close a channel. Whether it did."""
        with self._audit.record_outcome(CHANNELS_CLOSE, channel_id=id):
            self._sets.grants.require("channels.lifecycle")
            closed = (await self._request(CHANNELS_CLOSE, {"channelId": id})).get("closed") is True
            if closed:
                self._known.drop(id)
            return closed

    async def publish(
        self,
        id: str,
        content: ContentInput,
        *,
        ack: bool = True,
        conversation_id: str | None = None,
        stream: bool = False,
    ) -> Delivery | None:
        """Publish content to a channel. Without `ack` there is no answer, and the result is None.

        Raises ChannelNotPermitted, FeatureDisabled, and PeerError for an error of the server.
        """
        with self._audit.record_outcome(CHANNELS_PUBLISH, channel_id=id):
            if not self._permits(id, "channels.publish"):
                raise ChannelNotPermitted(id)
            conversation = {"conversationId": conversation_id} if conversation_id is not None else {}
            params: Json = {**conversation, "channelId": id, "stream": stream, "content": encode_mcpl_content(content)}
            if not ack:
                await self._notify(CHANNELS_PUBLISH, params)
                return None
            return Delivery.from_wire(await self._request(CHANNELS_PUBLISH, params))

    async def acknowledge(self, id: str, message_id: str, intent: str, value: Any = None) -> Acknowledgement:
        """Mark a message of a channel, such as with a reaction. Raises ChannelNotPermitted, and PeerError."""
        with self._audit.record_outcome(CHANNELS_ACKNOWLEDGE, channel_id=id):
            if not self._permits(id, "channels.acknowledge"):
                raise ChannelNotPermitted(id)
            about: Json = {"channelId": id, "messageId": message_id, "intent": intent}
            return Acknowledgement.from_wire(
                await self._request(CHANNELS_ACKNOWLEDGE, about if value is None else {**about, "value": value})
            )

    async def typing(self, id: str, *, active: bool = True, metadata: Mapping[str, Any] | None = None) -> None:
        """Show in a channel that the model writes, or has stopped. A server that may not know is sent nothing."""
        try:
            permitted = self._permits(id, "channels.typing")
        except FeatureDisabled:
            permitted = False
        if permitted:
            more = {"metadata": dict(metadata)} if metadata is not None else {}
            await self._notify("channels/typing", {"channelId": id, "op": "start" if active else "stop", **more})

    def outgoing(self, id: str, *, inference_id: str, conversation_id: str) -> OutgoingChannelMessage:
        """Show observers of a channel what is sent there: `async with …outgoing(…) as out: await out.chunk("Hi")`.

        A server that does not observe, or must not, is sent nothing.
        """
        about = {"inferenceId": inference_id, "conversationId": conversation_id, "channelId": id}
        by_grant = self._sets.grants.by_grant
        observing = "channels.streaming" if by_grant else "channels.observe"
        try:
            observes = (by_grant or self._capability.get("observe") is True) and self._permits(id, observing)
        except FeatureDisabled:
            observes = False
        streams = observes and (by_grant or self._capability.get("streaming") is True)
        return OutgoingChannelMessage(about, self._notify, chunks=streams, whole=observes)

    # -- permissions -------------------------------------------------------------------------------------

    def _add(self, channels: list[Channel]) -> None:
        for channel in channels:
            self._known.store_value(channel.id, channel)

    def _require_sets(self, path: str) -> list[DeclaredFeatureSet]:
        """The server's feature sets for channels.

        Raises CapabilityDenied if a path is not granted, and FeatureDisabled if there are sets, and all are disabled.
        """
        self._sets.grants.require(path)
        declared = [one for one in self._sets if declares_use(one, "channels")]
        if declared and not any(self._sets.is_enabled(one.name) for one in declared):
            raise FeatureDisabled(declared[0].name)
        return declared

    def _permits(self, id: str, path: str = "channels") -> bool:
        """Whether the scopes of some feature set cover this channel (§14.5). Raises FeatureDisabled.

        `path` is what the server is to do there; the sets of a server below 0.5 know only two of them.
        """
        by_grant = self._sets.grants.by_grant
        declared = self._require_sets(path if path != "channels" or not by_grant else "channels.register")
        if sets := self._sets.find_enabled_using(path if by_grant or path in OLD_USES else "channels"):
            return any(self._covers(one.name, id) for one in sets)
        # A server may have channels without a set for them. If it declares such sets, one must be for this use.
        return not declared

    def _covers(self, name: str, id: str) -> bool:
        lists = self._sets.get_scope_lists(name)
        allowed = find_label_permission(lists, normalize_label(id))
        return not lists.whitelist if allowed is None else allowed


def _channels(found: Any) -> list[Channel]:
    if not is_array(found):
        raise InvalidParams("Invalid params: channels must be a list")
    return [read_channel(one) for one in found]


# -- MCPL §14.3: the messages of channels: incoming ones, published ones, and outgoing ones that observers see.


CHUNK: Final = "channels/outgoing/chunk"
COMPLETE: Final = "channels/outgoing/complete"


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """What a host does with a message: accepts it, perhaps into a conversation, or declines it."""

    accepted: bool = True
    conversation_id: str | None = None
    reason: str | None = None

    def to_wire(self) -> Json:
        """The answer as JSON for the server (§14)."""
        return encode_delivery_answer(self.accepted, "conversationId", self.conversation_id, self.reason)


@wire_shape
class OpenedChannel(Channel):
    """A channel that was opened with its latest messages, the oldest first."""

    history: tuple[ChannelMessage, ...] = ()
    history_truncated: bool = False


MessageReply: TypeAlias = MessageAnswer | bool | str | None
"""None and True accept, False declines, a text is the id of the conversation that the message belongs to."""
OnMessage: TypeAlias = Callable[[ChannelMessage], MessageReply | Awaitable[MessageReply]]


class OutgoingChannelMessage:
    """One message that leaves the host, as observers see it: moderated chunks, then the whole."""

    def __init__(self, told: Json, notify: SendNotification, *, chunks: bool, whole: bool) -> None:
        self._told, self._notify, self._chunks, self._whole = told, notify, chunks, whole
        self._deltas: list[str] = []
        self._completed = False

    async def __aenter__(self) -> OutgoingChannelMessage:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._completed:
            await self.complete()

    async def chunk(self, delta: str) -> None:
        """Send observers the next chunk, if they want chunks. Together the chunks are the whole."""
        index = len(self._deltas)
        self._deltas.append(delta)
        if self._chunks:
            await self._notify(CHUNK, {**self._told, "index": index, "delta": delta})

    async def complete(self, content: ContentInput | None = None) -> None:
        """Send observers the whole: `content`, or else all chunks so far."""
        self._completed = True
        if self._whole:
            whole = "".join(self._deltas) if content is None else content
            await self._notify(COMPLETE, {**self._told, "content": encode_mcpl_content(whole)})
