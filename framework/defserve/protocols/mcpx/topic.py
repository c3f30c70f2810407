"""What a participant learns from frames: its own name, who else is in the topic, what is proposed. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from defserve.protocols.mcpx.capabilities import Capabilities
from defserve.protocols.mcpx.checking import mismatch
from defserve.protocols.mcpx.envelope import BrokenEnvelope, Envelope, parse
from defserve.protocols.mcpx.kinds import (
    CHAT,
    ERROR,
    PRESENCE,
    PROPOSAL,
    REQUEST,
    RESPONSE,
    WELCOME,
    MessageKind,
    is_reserved,
    namespaced,
    parse_kind,
)
from defserve.protocols.mcpx.proposals import Clock, Proposal, Proposals
from defserve.wire.jsonvalue import is_array, is_object

MOST_COUNTED: Final = 1_000
NOBODY: Final = "?"


class Welcome:
    """The gateway says who we are and what we may do. Comes first, and `again` when capabilities have changed."""

    __slots__ = ("again",)

    def __init__(self, again: bool) -> None:
        self.again = again


class Presence:
    """Somebody joined or left."""

    __slots__ = ("participant", "joined")

    def __init__(self, participant: str, joined: bool) -> None:
        self.participant, self.joined = participant, joined


class GatewayProblem:
    """The gateway refused something; `about` is the id of the envelope it refused, if it says so."""

    __slots__ = ("error", "message", "about", "payload")

    def __init__(self, payload: Mapping[str, Any], about: str | None) -> None:
        self.error, self.message = str(payload.get("error", "error")), str(payload.get("message", ""))
        self.payload, self.about = payload, about


class Chat:
    """Somebody said something. `about` is the id of the envelope it refers to."""

    __slots__ = ("id", "sender", "to", "text", "format", "about")

    def __init__(self, envelope: Envelope) -> None:
        body = envelope.body
        self.id, self.sender, self.to, self.about = envelope.id, envelope.sender, envelope.to, envelope.correlation_id
        self.text: str = body["text"]
        self.format: str = body.get("format", "plain")


class TopicRequest:
    """A request or notification, to any participant; `fulfils` is the proposal it fulfils."""

    __slots__ = ("envelope", "kind", "fulfils")

    def __init__(self, envelope: Envelope, kind: MessageKind, fulfils: Proposal | None) -> None:
        self.envelope, self.kind, self.fulfils = envelope, kind, fulfils


class TopicResponse:
    """A response, to any participant; `outcome` is the proposal it is the outcome of."""

    __slots__ = ("envelope", "kind", "outcome")

    def __init__(self, envelope: Envelope, kind: MessageKind, outcome: Proposal | None) -> None:
        self.envelope, self.kind, self.outcome = envelope, kind, outcome


class Spoofed:
    """A message whose kind does not match its payload, or that breaks a rule of its kind. It must not be acted on."""

    __slots__ = ("envelope", "kind", "reason")

    def __init__(self, envelope: Envelope, kind: MessageKind, reason: str) -> None:
        self.envelope, self.kind, self.reason = envelope, kind, reason


Heard: TypeAlias = Welcome | Presence | GatewayProblem | Chat | Proposal | TopicRequest | TopicResponse | Spoofed


class TopicView:
    """One participant's view. Before the welcome, only the gateway's messages count.

    `participants` are the others and what they may send. `misbehaviour` counts, for each of them, the messages that
    were not acted on. `misbehaved` is called for every such message.
    """

    def __init__(self, *, clock: Clock = time.time, misbehaved: Callable[[str, str], None] | None = None) -> None:
        self.me = ""
        self.capabilities = Capabilities(())
        self.participants: dict[str, Capabilities] = {}
        self.proposals = Proposals(clock=clock)
        self.misbehaviour: dict[str, int] = {}
        self._misbehaved = misbehaved

    @property
    def welcomed(self) -> bool:
        return bool(self.me)

    def reset(self) -> None:
        """The connection is gone, and with it what the gateway said."""
        self.me, self.capabilities = "", Capabilities(())
        self.participants.clear()

    def read(self, frame: bytes) -> Heard | None:
        """What a frame means; None if it does not concern us, or if it was counted and dropped."""
        envelope = parse(frame)
        if isinstance(envelope, BrokenEnvelope):
            self.count(envelope.sender or NOBODY, envelope.message)
            return None
        if is_reserved(envelope.kind):
            return self._system(envelope)
        # Our own messages come back. They count only if addressed to us, since we may fulfil a proposal to ourselves.
        if not self.me or (envelope.sender == self.me and self.me not in envelope.to):
            return None
        kind = parse_kind(envelope.kind)
        assert kind is not None
        reason = mismatch(kind, envelope.body) or _misplaced(kind, envelope)
        if reason is not None:
            self.count(envelope.sender, reason)
            return Spoofed(envelope, kind, reason)
        return self._understood(envelope, kind)

    def count(self, participant: str, reason: str) -> None:
        """A message of theirs was not acted on."""
        if participant in self.misbehaviour or len(self.misbehaviour) < MOST_COUNTED:
            self.misbehaviour[participant] = self.misbehaviour.get(participant, 0) + 1
        if self._misbehaved is not None:
            self._misbehaved(participant, reason)

    def _understood(self, envelope: Envelope, kind: MessageKind) -> Heard | None:
        if kind.base == REQUEST:
            return TopicRequest(envelope, kind, self.proposals.fulfilled_by(envelope))
        if kind.base == RESPONSE:
            return TopicResponse(envelope, kind, self.proposals.answered_by(envelope, self.me))
        if kind.base == PROPOSAL:
            return self.proposals.add(envelope)
        return Chat(envelope) if kind.base == CHAT else None

    # -- the gateway -------------------------------------------------------------------------------------

    def _system(self, envelope: Envelope) -> Heard | None:
        if envelope.sender.partition(":")[0] != "system":
            self.count(envelope.sender, f"only the gateway may send {envelope.kind}")
            return None
        payload = envelope.body
        kind = namespaced(envelope.kind, payload)
        if kind == WELCOME:
            return self._welcome(payload)
        if kind == PRESENCE:
            return self._presence(payload)
        return GatewayProblem(payload, envelope.correlation_id) if kind == ERROR else None

    def _welcome(self, payload: Mapping[str, Any]) -> Welcome | None:
        if (you := _participant(payload.get("you"))) is None:
            self.count(NOBODY, "a welcome that does not say who we are")
            return None
        again = self.me == you[0]
        self.me, self.capabilities = you
        others = payload.get("participants")
        found = [_participant(other) for other in others] if is_array(others) else []
        self.participants = {other[0]: other[1] for other in found if other is not None and other[0] != self.me}
        return Welcome(again)

    def _presence(self, payload: Mapping[str, Any]) -> Presence | None:
        who, event = _participant(payload.get("participant")), payload.get("event")
        if who is None or event not in ("join", "leave"):
            self.count(NOBODY, "a presence message without a participant or an event")
            return None
        if who[0] == self.me:
            return None
        if event == "leave":
            self.participants.pop(who[0], None)
        else:
            self.participants[who[0]] = who[1]
        return Presence(who[0], event == "join")


def _misplaced(kind: MessageKind, envelope: Envelope) -> str | None:
    if kind.base == PROPOSAL and envelope.correlation_id is not None:
        return "a proposal must not have a correlation_id"
    if kind.base == RESPONSE and envelope.correlation_id is None:
        return "a response needs the correlation_id of its request"
    return None


def _participant(value: Any) -> tuple[str, Capabilities] | None:
    id = value.get("id") if is_object(value) else None
    if not isinstance(id, str) or not id:
        return None
    patterns = value.get("capabilities")
    held = [pattern for pattern in patterns if isinstance(pattern, str) and pattern] if is_array(patterns) else []
    return id, Capabilities(held)
