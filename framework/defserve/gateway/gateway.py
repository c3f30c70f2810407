"""The rules of a gateway: who is admitted, which frames pass, who is told what. No event loop, no payloads."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from defserve.auth.issuers import IssuerUnavailable
from defserve.auth.rates import Rate, RateBuckets
from defserve.base.redaction import get_logger
from defserve.core.messages import encode
from defserve.gateway.policy import ROUTING_MODES, Admission, AdmissionPolicy, GatewayLimits, is_topic_name
from defserve.protocols.mcpx.envelope import (
    CHAT_KIND,
    ERROR_KIND,
    GATEWAY_SENDER,
    PRESENCE_KIND,
    PROPOSAL_KIND,
    REQUEST_KIND,
    WELCOME_KIND,
    BrokenEnvelope,
    Envelope,
    TopicCapabilities,
    format_current_time,
    is_gateway_only_kind,
    new_envelope_id,
    parse_envelope,
)
from defserve.protocols.mcpx.topic import AUTHENTICATED_FIELD

if TYPE_CHECKING:
    from defserve.gateway.listener import GatewayConnection

log = get_logger("gateway")

NORMAL: Final = 1000
CLOSE_POLICY_VIOLATION: Final = 1008
CLOSE_TRY_AGAIN_LATER: Final = 1013
NAMES: Final = 20
MAX_READ_REFUSED: Final = 4 * 1024
"""A longer frame that comes too fast is refused unread, so nobody learns its id: reading it is what costs time."""
MODEST_SHARE: Final = 16
"""Who sends no more than this part of `waiting` at once, and a quarter of it per second, waits for no slow reader."""
LOOK_AGAIN_SECONDS: Final = 0.05
FORGET_SECONDS: Final = 1.0
"""A reader for which nobody has waited so long begins anew with its patience."""
UNCHECKED_TOKEN_REASON: Final = "tokens cannot be checked at the moment"


class AdmissionRefusal(NamedTuple):
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
        self._pace = RateBuckets(Rate(self.limits.rate, self.limits.burst), clock=clock)
        self._volume = RateBuckets(Rate(self.limits.byte_rate, self.limits.byte_burst), clock=clock)
        share = max(4, self.limits.waiting // MODEST_SHARE)
        self._modest = RateBuckets(Rate(share / 4, share), clock=clock)
        self._added: dict[str, frozenset[str]] = {}
        """What administrators gave, by holder."""
        self._removed: dict[str, frozenset[str]] = {}
        """What they took, by name."""
        self._slow: list[TopicMember] = []

    # -- coming and going --------------------------------------------------------------------------------

    async def admit(self, token: str | None, topic: str, routing: str | None = None) -> Admission | AdmissionRefusal:
        """The admission of a connection. `routing` is what it asks for; None uses that of the policy."""
        if not is_topic_name(topic):
            return self._turn_away("topic", CLOSE_POLICY_VIOLATION, "no such topic")
        if routing is not None and routing not in ROUTING_MODES:
            return self._turn_away("routing", CLOSE_POLICY_VIOLATION, f"routing is one of {', '.join(ROUTING_MODES)}")
        try:
            admission = await self.policy.admit(token, topic)
        except IssuerUnavailable:
            return self._turn_away("unchecked", CLOSE_TRY_AGAIN_LATER, UNCHECKED_TOKEN_REASON)
        if admission is None:
            # The same answer for a bad token and a wrong topic: nobody learns which topics exist.
            return self._turn_away("token", CLOSE_POLICY_VIOLATION, "invalid token or topic")
        if token is None:
            admission = replace(admission, is_guest=True)
        chosen = next((mode for mode in ROUTING_MODES if mode == routing), None)
        return admission if chosen is None else replace(admission, routing=chosen)

    def join_topic(
        self, name: str, admission: Admission, wire: GatewayConnection, *, replaces: bool = True
    ) -> TopicMember | AdmissionRefusal:
        """Add a participant. Everyone is told, the participant included; then it is welcomed.

        An earlier connection of the same participant is told why and closed. The others are not told that it left.
        With `replaces=False` the new connection is refused instead.
        """
        topic = self.topics.get(name) or GatewayTopic(name, self._history)
        earlier = topic.members.get(admission.participant)
        if earlier is not None and not replaces:
            return self._turn_away("taken", CLOSE_TRY_AGAIN_LATER, "another connection has this name")
        if name not in self.topics and len(self.topics) >= self.limits.topics:
            return self._turn_away("full", CLOSE_TRY_AGAIN_LATER, "too many topics")
        if earlier is None and len(topic.members) >= self.limits.participants:
            return self._turn_away("full", CLOSE_TRY_AGAIN_LATER, "too many participants in this topic")
        held = TopicCapabilities(admission.capabilities, strict=self._strict)
        member = TopicMember(topic, admission, held, wire, f"ws-{new_envelope_id()}")
        member.capabilities = held.with_changes(self._added.get(member.holder, ()), self._removed.get(member.id, ()))
        self.topics[name] = topic
        topic.add(member)
        if earlier is not None:
            self._count_leave(earlier, "replaced")
            reason = "another process joined with the same token and has this name now"
            self._send([earlier], error_notice(earlier, "replaced", reason))
            earlier.wire.close_in_background(NORMAL, "replaced by a newer connection")
        self.metrics.count("joined_total")
        _log_event("join", member, capabilities=member.capabilities.patterns, routing=member.routing)
        self._send(topic.receivers(), presence_notice("join", member))
        self._send([member], welcome_notice(member, topic.others(member), replaced=earlier is not None))
        self._drop_slow()
        return member

    def leave_topic(self, member: TopicMember, reason: str = "closed") -> None:
        """The connection of a member has ended. May be called twice."""
        if member.is_in:
            self._leave(member, reason)
            self._drop_slow()

    # -- messages ----------------------------------------------------------------------------------------

    def relay_frame(self, member: TopicMember, data: bytes) -> float:
        """Pass on a frame of a member unchanged, or refuse it. Never raises for its content.

        Returns 0. Otherwise nothing was done: the frame has to be given again after so many seconds, and nothing may be
        read from the member until then.
        """
        if not member.is_in:
            return 0.0
        if wait := self._find_delay(member, len(data)):
            return wait
        self.metrics.received += 1
        self.metrics.received_bytes += len(data)
        wait = self._pace.take_token(member.key)
        envelope = parse_envelope(data) if not wait or len(data) <= MAX_READ_REFUSED else _UNREAD
        member.reset_expired_window(self.clock())
        member.messages += 1
        if isinstance(envelope, Envelope) and envelope.kind == CHAT_KIND:
            member.chat_messages += 1
        if wait:
            self._refuse(member, "rate_limited", "slow down", envelope, {"retry_after": round(wait, 3)})
        elif isinstance(envelope, BrokenEnvelope):
            self._broken(member, envelope)
        else:
            member.malformed = 0
            self._judge(member, envelope, data)
        if self._slow:
            self._drop_slow()
        return 0.0

    def _find_delay(self, member: TopicMember, size: int) -> float:
        """How long a frame of this size has to wait: for the member's share of bytes, or for a reader that is behind.

        Takes the bytes if it is 0.
        """
        key = member.key
        if wait := self._volume.get_wait_seconds(key, amount=size):
            return wait
        is_modest = size <= self._modest.rate.burst and not self._modest.take_token(key, amount=size)
        if not is_modest and self._is_any_behind(member.topic):
            return LOOK_AGAIN_SECONDS
        return self._volume.take_token(key, amount=size)

    def _is_any_behind(self, topic: GatewayTopic) -> bool:
        """Whether a reader has to be waited for. Those that were waited for long enough are dropped."""
        now, half = self.clock(), self.limits.waiting / 2
        behind = [member for member in topic.receivers() if member.wire.count_waiting_bytes() > half]
        late = [member for member in behind if member.is_late(now, self.limits.patience)]
        if late:
            self._slow += late
            self._drop_slow()
        return len(late) < len(behind)

    def _judge(self, member: TopicMember, envelope: Envelope, data: bytes) -> None:
        kind = envelope.kind
        if is_gateway_only_kind(kind):
            self._refuse(member, "reserved_kind", f"only the gateway sends {kind!r}", envelope)
        elif envelope.sender != member.id:
            self._refuse(member, "forged_sender", f"you are {member.id!r}", envelope, {"your_id": member.id})
        elif not member.capabilities.allows_kind(kind):
            more = {"attempted_kind": kind, "your_capabilities": member.capabilities.patterns}
            self._refuse(member, "capability_violation", f"You lack capability for {kind!r}", envelope, more)
        else:
            if envelope.correlation_id is not None or kind.startswith(PROPOSAL_KIND):
                _log_workflow(member, envelope)
            receivers = member.topic.receivers(envelope.to)
            self.metrics.delivered += len(receivers)
            self._send(receivers, data)
            member.topic.remember(data)
            if kind.startswith(REQUEST_KIND) and envelope.to and member.topic.members.keys().isdisjoint(envelope.to):
                self._say_who_is_here(member, envelope)

    def _say_who_is_here(self, member: TopicMember, envelope: Envelope) -> None:
        """A request was passed on, but nobody it names is here to answer it."""
        here = sorted(other.id for other in member.topic.others(member))
        named = ", ".join(map(repr, envelope.to[:3]))
        text = f"{named} is not in the topic; here are: {', '.join(here[:NAMES])}" if here else "nobody else is here"
        self._send([member], error_notice(member, "not_present", text, envelope.id, {"participants": here[:NAMES]}))

    def _broken(self, member: TopicMember, broken: BrokenEnvelope) -> None:
        self._refuse(member, broken.reason, broken.message, broken)
        if broken.reason == "wrong_version":
            return
        member.malformed += 1
        if member.malformed >= self.limits.malformed_in_a_row:
            self._leave(member, "malformed")
            member.wire.close_in_background(CLOSE_POLICY_VIOLATION, "too many malformed messages")

    def _refuse(
        self,
        member: TopicMember,
        name: str,
        message: str,
        cause: Envelope | BrokenEnvelope,
        more: dict[str, Any] | None = None,
    ) -> None:
        self.metrics.count("refused_total", name)
        _log_event("refused", member, error=name, id=cause.id, kind=cause.kind)
        self._send([member], error_notice(member, name, message, cause.id, more))

    # -- administration ----------------------------------------------------------------------------------

    def find_members_named(self, participant: str) -> list[TopicMember]:
        """The members of this name, in all topics. Guests of one name may be several people."""
        return [topic.members[participant] for topic in self.topics.values() if participant in topic.members]

    def change_capabilities(
        self, one: TopicMember, add: Sequence[str], remove: Sequence[str], by: str
    ) -> CapabilityChange:
        """Change what a participant may send, in all its topics. It is welcomed again, and the others are told."""
        id, holder, none = one.id, one.holder, frozenset[str]()
        members = [member for member in self.find_members_named(id) if member.holder == holder]
        self._added[holder] = self._added.get(holder, none) - set(remove) | set(add)
        self._removed[id] = self._removed.get(id, none) - set(add) | set(remove)
        old = one.capabilities.patterns
        for member in members:
            member.capabilities = member.capabilities.with_changes(add, remove)
            self._send([member], welcome_notice(member, member.topic.others(member)))
            self._send(member.topic.others(member), presence_notice("join", member))
            _log_event("promote", member, old=old, new=member.capabilities.patterns, by=by)
        self.metrics.count("promotions_total")
        self._drop_slow()
        return CapabilityChange(
            old, one.capabilities.patterns, format_current_time(), tuple(member.topic.name for member in members)
        )

    @property
    def participants(self) -> int:
        return sum(len(topic.members) for topic in self.topics.values())

    # -- sending -----------------------------------------------------------------------------------------

    def _send(self, members: Iterable[TopicMember], data: bytes) -> None:
        """Write to all members that keep up. The others are remembered, and dropped afterwards."""
        frame, limit = self._framed(data), self.limits.waiting
        for member in members:
            if not member.wire.queue_frame(frame, limit):
                self._slow.append(member)

    def _drop_slow(self) -> None:
        # Telling the others may find more slow members, so this is a loop and not a recursion.
        while self._slow:
            member = self._slow.pop()
            if member.is_in:
                member.wire.queue_frame(
                    self._framed(
                        error_notice(member, "slow_reader", f"more than {self.limits.waiting} bytes waited for you")
                    ),
                    inf,
                )
                member.wire.close_in_background(CLOSE_TRY_AGAIN_LATER, "too slow")
                self._leave(member, "slow")

    def _leave(self, member: TopicMember, reason: str) -> None:
        topic = member.topic
        topic.remove(member)
        if not topic.members:
            del self.topics[topic.name]
        self._count_leave(member, reason)
        self._send(topic.receivers(), presence_notice("leave", member))

    def _count_leave(self, member: TopicMember, reason: str) -> None:
        self.metrics.count("left_total", reason)
        _log_event("leave", member, reason=reason)

    def _turn_away(self, why: str, code: int, reason: str) -> AdmissionRefusal:
        self.metrics.count("turned_away_total", why)
        log.info("%s", encode({"ts": format_current_time(), "event": "turned_away", "reason": reason}).decode())
        return AdmissionRefusal(code, reason)


_UNREAD: Final = BrokenEnvelope("unread", "it came too fast to be read")


def _log_workflow(member: TopicMember, envelope: Envelope) -> None:
    # §7.1: proposals, replies to them and their fulfilment are logged, without their content.
    kind = envelope.kind
    event = "fulfilment" if kind.startswith(REQUEST_KIND) else "proposal" if kind.startswith(PROPOSAL_KIND) else "reply"
    _log_event(event, member, id=envelope.id, kind=envelope.kind, correlation_id=envelope.correlation_id)


def _log_event(event: str, member: TopicMember, **fields: object) -> None:
    """Log one line of JSON."""
    if log.isEnabledFor(logging.INFO):
        about = {"ts": format_current_time(), "event": event, "topic": member.topic.name, "participant": member.id}
        log.info("%s", encode({**about, "connection": member.connection, **fields}).decode())


# -- The members of a topic, and who receives what. No event loop: of a connection, only what does not wait is used.


WINDOW_SECONDS: Final = 60.0
"""How long messages are counted, as the reference gateway counts them."""
HISTORY_BYTES: Final = 256 * 1024
"""What is kept of one topic, beside the number of messages."""


class TopicMember:
    """One connection of one participant: the state of §10.1."""

    __slots__ = (
        "topic", "id", "holder", "is_guest", "key", "capabilities", "routing", "wire", "connection", "connected_at",
        "malformed", "messages", "chat_messages", "window_ends", "_behind_since", "_seen_behind",
    )  # fmt: skip

    def __init__(
        self,
        topic: GatewayTopic,
        admission: Admission,
        capabilities: TopicCapabilities,
        wire: GatewayConnection,
        connection: str,
    ) -> None:
        self.topic, self.capabilities, self.wire = topic, capabilities, wire
        self.id, self.routing = admission.participant, admission.routing
        self.holder, self.is_guest = admission.holder or self.id, admission.is_guest
        self.connection, self.connected_at = connection, format_current_time()
        self.key = topic.name, self.id
        self.malformed = 0
        """How many malformed frames came in a row."""
        self.messages = self.chat_messages = 0
        """How many frames came in this minute, refused ones too, and how many of them were chat."""
        self.window_ends = 0.0
        self._behind_since = self._seen_behind = -inf

    def is_late(self, now: float, patience: float) -> bool:
        """It was found behind. Returns whether it has been so for longer than others have patience."""
        if now - self._seen_behind > FORGET_SECONDS:
            self._behind_since = now
        self._seen_behind = now
        return now - self._behind_since > patience

    def reset_expired_window(self, now: float) -> None:
        """Count from 0 again if a minute is over."""
        if now >= self.window_ends:
            self.messages = self.chat_messages = 0
            self.window_ends = now + WINDOW_SECONDS

    @property
    def is_in(self) -> bool:
        """False after it left, was removed, or was replaced by a newer connection."""
        return self.topic.members.get(self.id) is self


class GatewayTopic:
    """The members of one topic, by their ids, and its last messages: at most `keep` of them."""

    def __init__(self, name: str, keep: int = 0) -> None:
        self.name = name
        self.history: deque[bytes] = deque()
        self._keep, self._history_bytes = keep, 0
        self.members: dict[str, TopicMember] = {}
        self._all: tuple[TopicMember, ...] = ()
        self._directed = False

    def add(self, member: TopicMember) -> None:
        """Add a member. It replaces one with the same id."""
        self.members[member.id] = member
        self._update_members()

    def remove(self, member: TopicMember) -> None:
        del self.members[member.id]
        self._update_members()

    def remember(self, frame: bytes) -> None:
        """Keep a message for the history, and drop what is too old or too much."""
        if not self._keep:
            return
        self.history.append(frame)
        self._history_bytes += len(frame)
        while len(self.history) > self._keep or self._history_bytes > HISTORY_BYTES:
            self._history_bytes -= len(self.history.popleft())

    def others(self, member: TopicMember) -> list[TopicMember]:
        return [other for other in self._all if other is not member]

    def receivers(self, to: Iterable[str] = ()) -> Sequence[TopicMember]:
        """Who receives a message to these ids, or to everyone if there are none. The sender receives it too.

        Members with `directed` routing do not receive a message that names only others.
        """
        if not to or not self._directed:
            return self._all
        named = frozenset(to)
        return [member for member in self._all if member.routing == "all" or member.id in named]

    def _update_members(self) -> None:
        # Rebuilt when a member joins or leaves, so that a message finds its list ready.
        self._all = tuple(self.members.values())
        self._directed = any(member.routing == "directed" for member in self._all)


# -- The messages of the gateway itself: `system/welcome`, `system/presence`, `system/error`.


def welcome_notice(member: TopicMember, others: Iterable[TopicMember], *, replaced: bool = False) -> bytes:
    """§3.5.1: who the member is, what it may send, and who else is in the topic.

    `replaced` adds that another connection of the same participant had to go.
    """
    payload: dict[str, Any] = {
        "you": _describe_member(member),
        "participants": [_describe_member(other) for other in others],
    }
    if replaced:
        payload["replaced"] = True
    return Envelope(WELCOME_KIND, GATEWAY_SENDER, payload, to=[member.id]).encode()


def presence_notice(event: Literal["join", "leave"], member: TopicMember) -> bytes:
    """§3.4: for everyone. A second `join` of a member announces new capabilities: there is no kind for that."""
    return Envelope(
        PRESENCE_KIND,
        GATEWAY_SENDER,
        {"event": event, "participant": _describe_member(member) if event == "join" else {"id": member.id}},
    ).encode()


def error_notice(
    member: TopicMember, name: str, message: str, correlation: str | None = None, more: Mapping[str, Any] | None = None
) -> bytes:
    """§3.5.2 and similar errors; `correlation` is the id of the envelope that caused it."""
    payload = {"error": name, "message": message, **(more or {})}
    return Envelope(ERROR_KIND, GATEWAY_SENDER, payload, to=[member.id], correlation_id=correlation).encode()


def _describe_member(member: TopicMember) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": member.id, "capabilities": member.capabilities.patterns}
    return shown if member.is_guest else {**shown, AUTHENTICATED_FIELD: True}


# -- The metrics of a gateway, for Prometheus. They name no topic and no participant.


METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "defserve_gateway_"

# name -> (type, help, label or nothing)
_FAMILIES: Final = {
    "topics": ("gauge", "Topics that have a participant.", ""),
    "participants": ("gauge", "Connected participants, counted once per topic.", ""),
    "joined_total": ("counter", "Participants that joined.", ""),
    "turned_away_total": ("counter", "Connections that were refused.", "reason"),
    "left_total": ("counter", "Participants that left or were removed.", "reason"),
    "received_total": ("counter", "Frames received.", ""),
    "received_bytes_total": ("counter", "Bytes of the frames received.", ""),
    "delivered_total": ("counter", "Messages of participants, counted once per receiver.", ""),
    "refused_total": ("counter", "Frames that were not passed on.", "error"),
    "promotions_total": ("counter", "Changes of capabilities.", ""),
}


class GatewayMetrics:
    """Counts per family and value of its label."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.received = self.received_bytes = self.delivered = 0

    def count(self, family: str, label: str = "") -> None:
        self.counts[family, label] += 1

    def text(self, topics: int, participants: int) -> str:
        """The exposition format 0.0.4."""
        plain = {
            "topics": topics,
            "participants": participants,
            "received_total": self.received,
            "received_bytes_total": self.received_bytes,
            "delivered_total": self.delivered,
        }
        return "".join(f"{line}\n" for line in self._lines(plain))

    def _lines(self, plain: dict[str, int]) -> Iterator[str]:
        for family, (kind, about, label) in _FAMILIES.items():
            name = _PREFIX + family
            yield f"# HELP {name} {about}"
            yield f"# TYPE {name} {kind}"
            if not label:
                yield f"{name} {plain.get(family, self.counts[family, ''])}"
                continue
            for (counted, value), count in sorted(self.counts.items()):
                if counted == family:
                    yield f'{name}{{{label}="{value}"}} {count}'
