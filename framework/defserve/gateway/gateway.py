"""The rules of a gateway: who is admitted, which frames pass, who is told what. No event loop, no payloads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final, NamedTuple

from defserve.auth.buckets import Buckets, Rate
from defserve.auth.issuers.fetching import IssuerUnavailable
from defserve.gateway.limits import GatewayLimits
from defserve.gateway.metrics import GatewayMetrics
from defserve.gateway.notices import error, presence, welcome
from defserve.gateway.policy import ROUTINGS, Admission, AdmissionPolicy, is_topic
from defserve.gateway.topic import GatewayTopic, TopicMember, Wire
from defserve.protocols.mcpx.capabilities import Capabilities
from defserve.protocols.mcpx.envelope import BrokenEnvelope, Envelope, new_id, now, parse
from defserve.protocols.mcpx.kinds import CHAT, PROPOSAL, REQUEST, is_reserved
from defserve.wire.codec import encode

log = logging.getLogger("defserve.gateway")

NORMAL: Final = 1000
POLICY: Final = 1008
TRY_LATER: Final = 1013
NAMES: Final = 20
UNCHECKED: Final = "tokens cannot be checked at the moment"
REPLACED: Final = "another process joined with the same token and has this name now"


class AdmissionRefused(NamedTuple):
    """A connection is refused: the code and the reason for closing it."""

    code: int
    reason: str


class CapabilityChange(NamedTuple):
    """A change that an administrator made to the capabilities of a participant."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    at: str
    topics: tuple[str, ...]


class Gateway:
    """All topics of one process. `framed` makes a frame of an encoded envelope, once for all its receivers.

    `strict` compares kinds with capabilities as the reference gateway does. `history` is how many messages of a topic
    are kept while it lasts. A topic ends with its last participant, and nothing of it is kept then. An administrator's
    changes last as long as the gateway runs, so nobody gets a capability back by connecting again.
    """

    def __init__(
        self,
        policy: AdmissionPolicy,
        limits: GatewayLimits | None = None,
        *,
        framed: Callable[[bytes], bytes] = bytes,
        strict: bool = False,
        history: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy, self.limits = policy, limits or GatewayLimits()
        self.topics: dict[str, GatewayTopic] = {}
        self.metrics = GatewayMetrics()
        self._framed, self._strict, self._history = framed, strict, history
        self.clock = clock
        self._pace = Buckets(Rate(self.limits.rate, self.limits.burst), clock=clock)
        self._added: dict[str, frozenset[str]] = {}
        """What administrators gave, by holder."""
        self._removed: dict[str, frozenset[str]] = {}
        """What they took, by name."""
        self._slow: list[TopicMember] = []

    # -- coming and going --------------------------------------------------------------------------------

    async def admit(self, token: str | None, topic: str, routing: str | None = None) -> Admission | AdmissionRefused:
        """The admission of a connection. `routing` is what it asks for; None uses that of the policy."""
        if not is_topic(topic):
            return self._turn_away("topic", POLICY, "no such topic")
        if routing is not None and routing not in ROUTINGS:
            return self._turn_away("routing", POLICY, f"routing is one of {', '.join(ROUTINGS)}")
        try:
            admission = await self.policy.admit(token, topic)
        except IssuerUnavailable:
            return self._turn_away("unchecked", TRY_LATER, UNCHECKED)
        if admission is None:
            # The same answer for a bad token and a wrong topic: nobody learns which topics exist.
            return self._turn_away("token", POLICY, "invalid token or topic")
        chosen = next((mode for mode in ROUTINGS if mode == routing), None)
        return admission if chosen is None else replace(admission, routing=chosen)

    def join(
        self, name: str, admission: Admission, wire: Wire, *, replaces: bool = True
    ) -> TopicMember | AdmissionRefused:
        """Add a participant. Everyone is told, the participant included; then it is welcomed.

        An earlier connection of the same participant is told why and closed. The others are not told that it left.
        With `replaces=False` the new connection is refused instead.
        """
        topic = self.topics.get(name) or GatewayTopic(name, self._history)
        earlier = topic.members.get(admission.participant)
        if earlier is not None and not replaces:
            return self._turn_away("taken", TRY_LATER, "another connection has this name")
        if name not in self.topics and len(self.topics) >= self.limits.topics:
            return self._turn_away("full", TRY_LATER, "too many topics")
        if earlier is None and len(topic.members) >= self.limits.participants:
            return self._turn_away("full", TRY_LATER, "too many participants in this topic")
        held = Capabilities(admission.capabilities, strict=self._strict)
        member = TopicMember(topic, admission, held, wire, f"ws-{new_id()}")
        member.capabilities = held.changed(self._added.get(member.holder, ()), self._removed.get(member.id, ()))
        self.topics[name] = topic
        topic.add(member)
        if earlier is not None:
            self._count_leave(earlier, "replaced")
            self._send([earlier], error(earlier, "replaced", REPLACED))
            earlier.wire.end(NORMAL, "replaced by a newer connection")
        self.metrics.count("joined_total")
        _log_event("join", member, capabilities=member.capabilities.patterns, routing=member.routing)
        self._send(topic.receivers(), presence("join", member))
        self._send([member], welcome(member, topic.others(member), replaced=earlier is not None))
        self._drop_slow()
        return member

    def leave(self, member: TopicMember, reason: str = "closed") -> None:
        """The connection of a member has ended. May be called twice."""
        if member.is_in:
            self._leave(member, reason)
            self._drop_slow()

    # -- messages ----------------------------------------------------------------------------------------

    def receive(self, member: TopicMember, data: bytes) -> None:
        """Pass on a frame of a member unchanged, or refuse it. Never raises for its content."""
        if not member.is_in:
            return
        self.metrics.received += 1
        self.metrics.received_bytes += len(data)
        envelope = parse(data)
        member.begin_window(self.clock())
        member.messages += 1
        if isinstance(envelope, Envelope) and envelope.kind == CHAT:
            member.chat_messages += 1
        if wait := self._pace.take(member.key):
            self._refuse(member, "rate_limited", "slow down", envelope, {"retry_after": round(wait, 3)})
        elif isinstance(envelope, BrokenEnvelope):
            self._broken(member, envelope)
        else:
            member.malformed = 0
            self._judge(member, envelope, data)
        if self._slow:
            self._drop_slow()

    def _judge(self, member: TopicMember, envelope: Envelope, data: bytes) -> None:
        kind = envelope.kind
        if is_reserved(kind):
            self._refuse(member, "reserved_kind", f"only the gateway sends {kind!r}", envelope)
        elif envelope.sender != member.id:
            self._refuse(member, "forged_sender", f"you are {member.id!r}", envelope, {"your_id": member.id})
        elif not member.capabilities.allow(kind):
            more = {"attempted_kind": kind, "your_capabilities": member.capabilities.patterns}
            self._refuse(member, "capability_violation", f"You lack capability for {kind!r}", envelope, more)
        else:
            if envelope.correlation_id is not None or kind.startswith(PROPOSAL):
                _log_workflow(member, envelope)
            receivers = member.topic.receivers(envelope.to)
            self.metrics.delivered += len(receivers)
            self._send(receivers, data)
            member.topic.remember(data)
            if kind.startswith(REQUEST) and envelope.to and member.topic.members.keys().isdisjoint(envelope.to):
                self._say_who_is_here(member, envelope)

    def _say_who_is_here(self, member: TopicMember, envelope: Envelope) -> None:
        """A request was passed on, but nobody it names is here to answer it."""
        here = sorted(other.id for other in member.topic.others(member))
        named = ", ".join(map(repr, envelope.to[:3]))
        text = f"{named} is not in the topic; here are: {', '.join(here[:NAMES])}" if here else "nobody else is here"
        self._send([member], error(member, "not_present", text, envelope.id, {"participants": here[:NAMES]}))

    def _broken(self, member: TopicMember, broken: BrokenEnvelope) -> None:
        self._refuse(member, broken.reason, broken.message, broken)
        if broken.reason == "wrong_version":
            return
        member.malformed += 1
        if member.malformed >= self.limits.malformed_in_a_row:
            self._leave(member, "malformed")
            member.wire.end(POLICY, "too many malformed messages")

    def _refuse(
        self,
        member: TopicMember,
        name: str,
        message: str,
        cause: Envelope | BrokenEnvelope,
        more: dict[str, Any] | None = None,
    ) -> None:
        self._count_refusal(member, name, cause)
        self._send([member], error(member, name, message, cause.id, more))

    def _count_refusal(self, member: TopicMember, name: str, cause: Envelope | BrokenEnvelope) -> None:
        self.metrics.count("refused_total", name)
        _log_event("refused", member, error=name, id=cause.id, kind=cause.kind)

    # -- administration ----------------------------------------------------------------------------------

    def connections(self, participant: str) -> list[TopicMember]:
        """The members of this name, in all topics. Guests of one name may be several people."""
        return [topic.members[participant] for topic in self.topics.values() if participant in topic.members]

    def promote(self, one: TopicMember, add: Sequence[str], remove: Sequence[str], by: str) -> CapabilityChange:
        """Change what a participant may send, in all its topics. It is welcomed again, and the others are told."""
        id, holder, none = one.id, one.holder, frozenset[str]()
        members = [member for member in self.connections(id) if member.holder == holder]
        self._added[holder] = self._added.get(holder, none) - set(remove) | set(add)
        self._removed[id] = self._removed.get(id, none) - set(add) | set(remove)
        old = one.capabilities.patterns
        for member in members:
            member.capabilities = member.capabilities.changed(add, remove)
            self._send([member], welcome(member, member.topic.others(member)))
            self._send(member.topic.others(member), presence("join", member))
            _log_event("promote", member, old=old, new=member.capabilities.patterns, by=by)
        self.metrics.count("promotions_total")
        self._drop_slow()
        topics = tuple(member.topic.name for member in members)
        return CapabilityChange(old, one.capabilities.patterns, now(), topics)

    @property
    def participants(self) -> int:
        return sum(len(topic.members) for topic in self.topics.values())

    def metrics_text(self) -> str:
        return self.metrics.text(len(self.topics), self.participants)

    # -- sending -----------------------------------------------------------------------------------------

    def _send(self, members: Iterable[TopicMember], data: bytes) -> None:
        """Write to all members that keep up. The others are remembered, and dropped afterwards."""
        frame, limit = self._framed(data), self.limits.waiting
        for member in members:
            if not member.wire.offer(frame, limit):
                self._slow.append(member)

    def _drop_slow(self) -> None:
        # Telling the others may find more slow members, so this is a loop and not a recursion.
        while self._slow:
            member = self._slow.pop()
            if member.is_in:
                reason = f"more than {self.limits.waiting} bytes waited for you"
                member.wire.offer(self._framed(error(member, "slow_reader", reason)), inf)
                member.wire.end(TRY_LATER, "too slow")
                self._leave(member, "slow")

    def _leave(self, member: TopicMember, reason: str) -> None:
        topic = member.topic
        topic.remove(member)
        if not topic.members:
            del self.topics[topic.name]
        self._count_leave(member, reason)
        self._send(topic.receivers(), presence("leave", member))

    def _count_leave(self, member: TopicMember, reason: str) -> None:
        self.metrics.count("left_total", reason)
        _log_event("leave", member, reason=reason)

    def _turn_away(self, why: str, code: int, reason: str) -> AdmissionRefused:
        self.metrics.count("turned_away_total", why)
        log.info("%s", encode({"ts": now(), "event": "turned_away", "reason": reason}).decode())
        return AdmissionRefused(code, reason)


def _log_workflow(member: TopicMember, envelope: Envelope) -> None:
    # §7.1: proposals, replies to them and their fulfilment are logged, without their content.
    kind = envelope.kind
    event = "fulfilment" if kind.startswith(REQUEST) else "proposal" if kind.startswith(PROPOSAL) else "reply"
    _log_event(event, member, id=envelope.id, kind=envelope.kind, correlation_id=envelope.correlation_id)


def _log_event(event: str, member: TopicMember, **fields: object) -> None:
    """Log one line of JSON."""
    if log.isEnabledFor(logging.INFO):
        about = {"ts": now(), "event": event, "topic": member.topic.name, "participant": member.id}
        log.info("%s", encode({**about, "connection": member.connection, **fields}).decode())
