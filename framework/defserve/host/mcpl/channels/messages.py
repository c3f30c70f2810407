"""MCPL §14.3: the messages of channels: incoming ones, published ones, and outgoing ones that observers see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from defserve.host.caller import SendNotification
from defserve.host.fields import Json
from defserve.host.mcpl.inbox import answer_wire
from defserve.protocols.mcpl.channels.values import Author, Channel
from defserve.protocols.mcpl.content import Content, Sendable, blocks

CHUNK: Final = "channels/outgoing/chunk"
COMPLETE: Final = "channels/outgoing/complete"


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """A message that came in on a channel."""

    server_id: str
    channel_id: str
    id: str
    content: list[Content]
    author: Author | None
    timestamp: str
    thread_id: str | None
    metadata: Mapping[str, Any]
    raw: Mapping[str, Any]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """What a host does with a message: accepts it, perhaps into a conversation, or declines it."""

    accepted: bool = True
    conversation_id: str | None = None
    reason: str | None = None

    def wire(self) -> Json:
        """The answer as JSON for the server (§14)."""
        return answer_wire(self.accepted, "conversationId", self.conversation_id, self.reason)


@dataclass(frozen=True, slots=True)
class OpenedChannel(Channel):
    """A channel that was opened with its latest messages, the oldest first."""

    history: tuple[ChannelMessage, ...] = ()
    history_truncated: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Whether a message was marked, how the service shows that, or why not."""

    acknowledged: bool
    representation: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """Whether published content was delivered, and its message id."""

    delivered: bool
    message_id: str | None = None


MessageReply: TypeAlias = MessageAnswer | bool | str | None
"""None and True accept, False declines, a text is the id of the conversation that the message belongs to."""
OnMessage: TypeAlias = Callable[[ChannelMessage], MessageReply | Awaitable[MessageReply]]


class Outgoing:
    """One message that leaves the host, as observers see it: moderated chunks, then the whole."""

    def __init__(self, told: Json, notify: SendNotification, *, chunks: bool, whole: bool) -> None:
        self._told, self._notify, self._chunks, self._whole = told, notify, chunks, whole
        self._deltas: list[str] = []
        self._completed = False

    async def __aenter__(self) -> Outgoing:
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

    async def complete(self, content: Sendable | None = None) -> None:
        """Send observers the whole: `content`, or else all chunks so far."""
        self._completed = True
        if self._whole:
            whole = "".join(self._deltas) if content is None else content
            await self._notify(COMPLETE, {**self._told, "content": blocks(whole)})
