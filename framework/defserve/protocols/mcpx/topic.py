"""What a participant learns from frames: its own name, who else is in the topic, what is proposed. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, TypeAlias

from pydantic_core import from_json

from defserve.auth.principals import MAX_PRINCIPAL_ID_LENGTH, PARTICIPANT_PREFIX, is_token_principal_id
from defserve.core.json_values import is_array, is_object
from defserve.protocols.mcpx.envelope import (
    CHAT_KIND,
    ERROR_KIND,
    PRESENCE_KIND,
    PROPOSAL_KIND,
    REJECT_KIND,
    REQUEST_KIND,
    RESPONSE_KIND,
    WELCOME_KIND,
    WITHDRAW_KIND,
    BrokenEnvelope,
    Envelope,
    MessageKind,
    TopicCapabilities,
    find_kind_mismatch,
    is_gateway_only_kind,
    make_message_kind,
    parse_envelope,
    parse_kind,
    qualify_kind,
)
from defserve.protocols.mcpx.proposals import Clock, Proposal, Proposals, is_about_proposal

MAX_COUNTED_PARTICIPANTS: Final = 1_000
UNKNOWN_PARTICIPANT: Final = "?"
AUTHENTICATED_FIELD: Final = "authenticated"
"""What our gateway adds to a participant that has shown a credential. Those of others say nothing."""


class Welcome:
    """The gateway says who we are and what we may do. Comes first, and `again` when capabilities have changed.

    `replaced` says that another connection with the same token had to go.
    """

    __slots__ = ("again", "replaced")

    def __init__(self, again: bool, replaced: bool = False) -> None:
        self.again, self.replaced = again, replaced


class Presence:
    """Somebody joined or left.

    `is_other`: whoever had this name before may be somebody else. Either it left, or a guest joined without that the
    guest before has left.
    """

    __slots__ = ("participant", "joined", "is_other")

    def __init__(self, participant: str, joined: bool, is_other: bool) -> None:
        self.participant, self.joined, self.is_other = participant, joined, is_other


class GatewayRefusal:
    """The gateway refused something; `about` is the id of the envelope it refused, if that can be told."""

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


class ProposalRejected:
    """Somebody rejected a proposal. `final` says whether that ended it."""

    __slots__ = ("envelope", "proposal", "reason", "final")

    def __init__(self, envelope: Envelope, proposal: Proposal, final: bool) -> None:
        self.envelope, self.proposal, self.final = envelope, proposal, final
        self.reason: str = envelope.body.get("reason", "")


class ProposalWithdrawn:
    """A proposer took its proposal back."""

    __slots__ = ("envelope", "proposal", "reason")

    def __init__(self, envelope: Envelope, proposal: Proposal) -> None:
        self.envelope, self.proposal = envelope, proposal
        self.reason: str = envelope.body.get("reason", "")


class SpoofedMessage:
    """A message whose kind does not match its payload, or that breaks a rule of its kind. It must not be acted on."""

    __slots__ = ("envelope", "kind", "reason")

    def __init__(self, envelope: Envelope, kind: MessageKind, reason: str) -> None:
        self.envelope, self.kind, self.reason = envelope, kind, reason


ProposalDecision: TypeAlias = ProposalRejected | ProposalWithdrawn
TopicEvent: TypeAlias = (
    Welcome
    | Presence
    | GatewayRefusal
    | Chat
    | Proposal
    | ProposalDecision
    | TopicRequest
    | TopicResponse
    | SpoofedMessage
)


class TopicView:
    """One participant's view. Before the welcome, only the gateway's messages count.

    `participants` are the others and what they may send. `authenticated` are those of whom the gateway says that they
    have shown a credential; a gateway that says nothing has authenticated nobody. `misbehaviour` counts, for each of
    the others, the messages that were not acted on. `misbehaved` is called for every such message.
    """

    def __init__(self, *, clock: Clock = time.time, misbehaved: Callable[[str, str], None] | None = None) -> None:
        self.me = ""
        self.place = ""
        """The gateway and the topic."""
        self.capabilities = TopicCapabilities(())
        self.participants: dict[str, TopicCapabilities] = {}
        self.authenticated: set[str] = set()
        self.proposals = Proposals(clock=clock)
        self.unconfirmed = UnconfirmedMessages()
        self.misbehaviour: dict[str, int] = {}
        self._misbehaved = misbehaved

    @property
    def is_welcomed(self) -> bool:
        return bool(self.me)

    def reset(self) -> None:
        """The connection is gone, and with it what the gateway said."""
        self.me, self.capabilities = "", TopicCapabilities(())
        self.participants.clear()
        self.authenticated.clear()
        self.unconfirmed.clear()

    def read_frame(self, frame: bytes) -> TopicEvent | None:
        """What a frame means; None if it does not concern us, or if it was counted and dropped."""
        envelope = parse_envelope(frame)
        if isinstance(envelope, BrokenEnvelope):
            if (refusal := _bare_refusal(frame)) is not None:
                return self._problem(refusal, refusal.get("correlation_id"))
            self.count_ignored_message(envelope.sender or UNKNOWN_PARTICIPANT, envelope.message)
            return None
        if is_gateway_only_kind(envelope.kind):
            return self._system(envelope)
        if envelope.sender == self.me:
            self.unconfirmed.discard(envelope.id)
        # Our own messages come back. They count only if addressed to us, since we may fulfil a proposal to ourselves.
        if not self.me or (envelope.sender == self.me and self.me not in envelope.to):
            return None
        kind = parse_kind(envelope.kind)
        assert kind is not None
        reason = find_kind_mismatch(kind, envelope.body) or _check_correlation(kind, envelope)
        return self._record_spoof(envelope, kind, reason) if reason is not None else self._understood(envelope, kind)

    def _record_spoof(self, envelope: Envelope, kind: MessageKind, reason: str) -> SpoofedMessage:
        self.count_ignored_message(envelope.sender, reason)
        return SpoofedMessage(envelope, kind, reason)

    def count_ignored_message(self, participant: str, reason: str) -> None:
        """A message of theirs was not acted on."""
        if participant in self.misbehaviour or len(self.misbehaviour) < MAX_COUNTED_PARTICIPANTS:
            self.misbehaviour[participant] = self.misbehaviour.get(participant, 0) + 1
        if self._misbehaved is not None:
            self._misbehaved(participant, reason)

    def _understood(self, envelope: Envelope, kind: MessageKind) -> TopicEvent | None:
        if kind.base == REQUEST_KIND:
            return TopicRequest(envelope, kind, self.proposals.record_fulfilment(envelope))
        if kind.base == RESPONSE_KIND:
            return TopicResponse(envelope, kind, self.proposals.record_outcome(envelope, self.me))
        if kind.base == PROPOSAL_KIND:
            return self.proposals.add(envelope, self.make_participant_principal_id(envelope.sender))
        if kind.base in (REJECT_KIND, WITHDRAW_KIND):
            return self._apply_decision(envelope, kind)
        return Chat(envelope) if kind.base == CHAT_KIND else None

    def _apply_decision(self, envelope: Envelope, kind: MessageKind) -> ProposalDecision | SpoofedMessage | None:
        """A proposal was rejected or withdrawn. None for one that we do not know, or that is over."""
        proposal = self.proposals.get(envelope.correlation_id)
        if proposal is None or proposal.status != "pending":
            return None
        if kind.method and not is_about_proposal(kind, proposal):
            return self._record_spoof(envelope, kind, "the kind names another operation than the proposal")
        reason = envelope.body.get("reason", "")
        if kind.base == REJECT_KIND:
            held = self.capabilities if envelope.sender == self.me else self.participants.get(envelope.sender)
            may_fulfil = held is not None and held.allows_kind(
                make_message_kind(REQUEST_KIND, proposal.method, proposal.params)
            )
            final = self.proposals.reject(proposal, envelope.sender, reason, is_approver=may_fulfil)
            return ProposalRejected(envelope, proposal, final)
        if envelope.sender != proposal.proposer:
            return self._record_spoof(envelope, kind, "only its proposer may withdraw a proposal")
        self.proposals.withdraw(proposal, reason)
        return ProposalWithdrawn(envelope, proposal)

    def make_participant_principal_id(self, participant: str) -> str:
        """The id of a participant's principal, with the gateway and the topic; empty if nobody vouches for its name."""
        is_known = participant in self.authenticated and is_token_principal_id(participant)
        return _participant_id(participant, self.place) if is_known else ""

    # -- the gateway -------------------------------------------------------------------------------------

    def _system(self, envelope: Envelope) -> TopicEvent | None:
        if envelope.sender.partition(":")[0] != "system":
            self.count_ignored_message(envelope.sender, f"only the gateway may send {envelope.kind}")
            return None
        payload = envelope.body
        kind = qualify_kind(envelope.kind, payload)
        if kind == WELCOME_KIND:
            return self._welcome(payload)
        if kind == PRESENCE_KIND:
            return self._presence(payload)
        return self._problem(payload, envelope.correlation_id) if kind == ERROR_KIND else None

    def _problem(self, payload: Mapping[str, Any], about: str | None) -> GatewayRefusal:
        return GatewayRefusal(payload, about or self.unconfirmed.pop_refused_id(payload))

    def _welcome(self, payload: Mapping[str, Any]) -> Welcome | None:
        if (you := _participant(payload.get("you"))) is None:
            self.count_ignored_message(UNKNOWN_PARTICIPANT, "a welcome that does not say who we are")
            return None
        again = self.me == you[0]
        self.me, self.capabilities, _ = you
        others = payload.get("participants")
        found = [_participant(other) for other in others] if is_array(others) else []
        named = [other for other in found if other is not None and other[0] != self.me]
        self.participants = {id: held for id, held, _ in named}
        self.authenticated = {id for id, _, is_authenticated in named if is_authenticated}
        return Welcome(again, payload.get("replaced") is True)

    def _presence(self, payload: Mapping[str, Any]) -> Presence | None:
        who, event = _participant(payload.get("participant")), payload.get("event")
        if who is None or event not in ("join", "leave"):
            self.count_ignored_message(UNKNOWN_PARTICIPANT, "a presence message without a participant or an event")
            return None
        id, held, is_authenticated = who
        if id == self.me:
            return None
        was_authenticated = id in self.authenticated
        self.authenticated.discard(id)
        if event == "leave":
            self.participants.pop(id, None)
            return Presence(id, joined=False, is_other=True)
        self.participants[id] = held
        if is_authenticated:
            self.authenticated.add(id)
        return Presence(id, joined=True, is_other=not (was_authenticated and is_authenticated))


def remove_token_from_address(url: str) -> str:
    """The gateway and the topic of an address, without its token."""
    from urllib.parse import parse_qs, quote, urlsplit

    parts = urlsplit(url)
    host, topic = parts.netloc.rpartition("@")[2], parse_qs(parts.query).get("topic", [""])[0]
    return f"{quote(host.lower(), safe=':[]')}{quote(parts.path, safe='/')}#{quote(topic, safe='')}"


def _participant_id(name: str, place: str) -> str:
    """The id of a participant's principal. A place has no `@`, so that no name can be read as another one elsewhere."""
    if not place:
        return f"{PARTICIPANT_PREFIX}{name}"
    id = f"{PARTICIPANT_PREFIX}{name}@{place}"
    return (
        id
        if len(id) <= MAX_PRINCIPAL_ID_LENGTH
        else f"{PARTICIPANT_PREFIX}{name}@{sha256(place.encode()).hexdigest()[:32]}"
    )


def _check_correlation(kind: MessageKind, envelope: Envelope) -> str | None:
    if kind.base == PROPOSAL_KIND and envelope.correlation_id is not None:
        return "a proposal must not have a correlation_id"
    if kind.base == RESPONSE_KIND and envelope.correlation_id is None:
        return "a response needs the correlation_id of its request"
    if kind.base in (REJECT_KIND, WITHDRAW_KIND) and envelope.correlation_id is None:
        return "to reject or withdraw needs the correlation_id of the proposal"
    return None


def _participant(value: Any) -> tuple[str, TopicCapabilities, bool] | None:
    """The name, what it may send, and whether the gateway has authenticated it."""
    id = value.get("id") if is_object(value) else None
    if not isinstance(id, str) or not id:
        return None
    patterns = value.get("capabilities")
    held = [pattern for pattern in patterns if isinstance(pattern, str) and pattern] if is_array(patterns) else []
    return id, TopicCapabilities(held), value.get(AUTHENTICATED_FIELD) is True


def _bare_refusal(frame: bytes) -> dict[str, Any] | None:
    """The refusal in a frame without an envelope, `{"error", "details"}`. The reference gateway sends such frames."""
    try:
        found = from_json(frame)
    except ValueError:
        return None
    if not is_object(found) or "protocol" in found or not isinstance(found.get("error"), str):
        return None
    about = found.get("correlation_id")
    return {
        "error": found["error"],
        "message": str(found.get("details") or found["error"]),
        "correlation_id": about if isinstance(about, str) else None,
    }


# -- Messages of ours that did not come back yet. Some gateways refuse a message without saying which one.


MAX_UNCONFIRMED: Final = 1_000


class UnconfirmedMessages:
    """The id and the kind of each message since it was sent, until the gateway sends it to us as well.

    A gateway handles the messages of one connection in order. So a refusal is about the oldest message of its kind
    that did not come back.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}

    def add(self, id: str, kind: str) -> None:
        """A message was sent. Beyond a limit, the oldest are forgotten."""
        if len(self._kinds) >= MAX_UNCONFIRMED:
            self._kinds.pop(next(iter(self._kinds)), None)
        self._kinds[id] = kind

    def discard(self, id: str) -> None:
        """The message came back, or was answered."""
        self._kinds.pop(id, None)

    def clear(self) -> None:
        self._kinds.clear()

    def pop_refused_id(self, payload: Mapping[str, Any]) -> str | None:
        """The id of the message that a refusal is about; None if that cannot be told."""
        kind, waiting = payload.get("attempted_kind"), list(self._kinds.items())
        if isinstance(kind, str):
            found = next((id for id, sent in waiting if sent == kind), None)
        else:
            found = waiting[0][0] if len(waiting) == 1 else None
        if found is not None:
            self.discard(found)
        return found
