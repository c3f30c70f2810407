"""MCPL §14.3 from the host's side: one message, as it comes in, is published, or is seen by observers going out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from defserve.protocols.mcpl.channels.values import Author
from defserve.protocols.mcpl.content import Content, Sendable, blocks

Json: TypeAlias = dict[str, Any]
Notify: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[None]]

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


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """What a host does with a message: takes it, into a conversation, or does not."""

    accepted: bool = True
    conversation_id: str | None = None
    reason: str | None = None

    def wire(self) -> Json:
        """As the server is told (§14)."""
        more = {"conversationId": self.conversation_id} if self.accepted else {"reason": self.reason or "declined"}
        return {"accepted": self.accepted, **{name: value for name, value in more.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of content that was published."""

    delivered: bool
    message_id: str | None = None


Said: TypeAlias = MessageAnswer | bool | str | None
"""None and True accept, False declines, a text is the id of the conversation that the message belongs to."""
OnMessage: TypeAlias = Callable[[ChannelMessage], Said | Awaitable[Said]]


def answer_of(said: Any) -> MessageAnswer:
    """What a handler said, in full."""
    if isinstance(said, MessageAnswer):
        return said
    if isinstance(said, str):
        return MessageAnswer(conversation_id=said)
    return MessageAnswer(accepted=said is not False)


class Outgoing:
    """One message on its way out of the host, as observers see it: moderated bits, then the whole."""

    def __init__(self, told: Json, notify: Notify, *, chunks: bool, whole: bool) -> None:
        self._told, self._notify, self._chunks, self._whole = told, notify, chunks, whole
        self._bits: list[str] = []
        self._completed = False

    async def __aenter__(self) -> Outgoing:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._completed:
            await self.complete()

    async def chunk(self, delta: str) -> None:
        """Show observers the next bit, if they want bits; the whole is made of all of them."""
        index = len(self._bits)
        self._bits.append(delta)
        if self._chunks:
            await self._notify(CHUNK, {**self._told, "index": index, "delta": delta})

    async def complete(self, content: Sendable | None = None) -> None:
        """The whole: what is given, or else all that was told in bits."""
        self._completed = True
        if self._whole:
            whole = "".join(self._bits) if content is None else content
            await self._notify(COMPLETE, {**self._told, "content": blocks(whole)})
