"""The messages of the gateway itself: `system/welcome`, `system/presence`, `system/error`, and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from defserve.gateway.topic import TopicMember
from defserve.protocols.mcpx.envelope import GATEWAY, BrokenEnvelope, Envelope
from defserve.protocols.mcpx.kinds import ERROR, PRESENCE, WELCOME
from defserve.wire.codec import encode


def welcome(member: TopicMember, others: Iterable[TopicMember]) -> bytes:
    """§3.5.1: who the member is, what it may send, and who else is in the topic."""
    payload = {"you": _shown(member), "participants": [_shown(other) for other in others]}
    return Envelope(WELCOME, GATEWAY, payload, to=[member.id]).encode()


def presence(event: Literal["join", "leave"], member: TopicMember) -> bytes:
    """§3.4: for everyone. A second `join` of a member announces new capabilities: there is no kind for that."""
    participant = _shown(member) if event == "join" else {"id": member.id}
    return Envelope(PRESENCE, GATEWAY, {"event": event, "participant": participant}).encode()


def error(
    member: TopicMember, name: str, message: str, correlation: str | None = None, more: Mapping[str, Any] | None = None
) -> bytes:
    """§3.5.2 and similar errors; `correlation` is the id of the envelope that caused it."""
    payload = {"error": name, "message": message, **(more or {})}
    return Envelope(ERROR, GATEWAY, payload, to=[member.id], correlation_id=correlation).encode()


def bare_error(broken: BrokenEnvelope) -> bytes:
    """For a frame that is not an envelope. It has a `correlation_id` only if the id could be read."""
    known = {"correlation_id": broken.id} if broken.id is not None else {}
    return encode({"error": broken.reason, "details": broken.message, **known})


def _shown(member: TopicMember) -> dict[str, Any]:
    return {"id": member.id, "capabilities": member.capabilities.patterns}
