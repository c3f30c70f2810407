"""The messages of the gateway itself: `system/welcome`, `system/presence`, `system/error`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from defserve.gateway.topic import TopicMember
from defserve.protocols.mcpx.envelope import GATEWAY, Envelope
from defserve.protocols.mcpx.kinds import ERROR, PRESENCE, WELCOME
from defserve.protocols.mcpx.topic import AUTHENTICATED


def welcome(member: TopicMember, others: Iterable[TopicMember], *, replaced: bool = False) -> bytes:
    """§3.5.1: who the member is, what it may send, and who else is in the topic.

    `replaced` adds that another connection of the same participant had to go.
    """
    payload: dict[str, Any] = {"you": _shown(member), "participants": [_shown(other) for other in others]}
    if replaced:
        payload["replaced"] = True
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


def _shown(member: TopicMember) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": member.id, "capabilities": member.capabilities.patterns}
    return shown if member.is_guest else {**shown, AUTHENTICATED: True}
