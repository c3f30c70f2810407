"""A request of ours that waits for its answer. The envelope decides what is the answer, not the JSON-RPC id in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from defserve.errors import PeerError
from defserve.protocols.mcpx.topic import Spoofed, TopicResponse
from defserve.wire.messages import Id

Payload: TypeAlias = Mapping[str, Any]
OnReply: TypeAlias = Callable[[Payload | PeerError], None]


class PendingTopicRequest:
    """Its target, its method, and `reply`, which is called with the answer or the failure."""

    __slots__ = ("to", "method", "id", "reply")

    def __init__(self, to: str, method: str, id: Id, reply: OnReply) -> None:
        self.to, self.method, self.id, self.reply = to, method, id, reply

    def misfit(self, answer: TopicResponse | Spoofed) -> str | None:
        """Why a message that refers to this request is not its answer; None if it is."""
        if answer.envelope.sender != self.to:
            return "a response to a request that went to somebody else"
        return "a response about another method" if answer.kind.method != self.method else None

    def read(self, answer: TopicResponse | Spoofed) -> Payload | PeerError:
        """The answer with the id of this request, or the failure if it cannot be read."""
        if isinstance(answer, Spoofed):
            return PeerError(f"{self.to} gave an answer that cannot be read: {answer.reason}")
        return {**answer.envelope.body, "id": self.id}
