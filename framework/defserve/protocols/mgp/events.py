"""MGP §13.1–13.3, §13.5: event channels. An event is emitted once, and goes to the subscribers that it concerns.

A subscription belongs to one session. If its reader is too slow, the oldest events are dropped: every event has a
`sequence`, and the next one that is sent names the `gap`. Without a session nothing can be pushed. There, the latest
events of a server's own channels are read with `mgp/events/replay`, an addition of ours.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from secrets import token_urlsafe
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic_core import to_jsonable_python

from defserve.auth.authority import is_stranger
from defserve.auth.principals import Principal, decode_principal, encode_principal, parse_scopes
from defserve.core.call import Call
from defserve.core.extension import AddressedMessage, Extension, Handler
from defserve.core.messages import Params, encode, encode_notification
from defserve.core.session import Session
from defserve.core.shapes import TEXT, distinct_list_of, list_of_texts, one_of, read_member, restrict_kind
from defserve.errors import InvalidParams, LimitExceeded, MethodNotFound, UsageError
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mcp.errors import get_trace_id, read_optional_object_param, read_text_param
from defserve.protocols.mcp.lifecycle import LOG_LEVELS, get_dialect
from defserve.protocols.mgp import vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import TypeAdapter


# §13.5: the channels that every server has, and the severity of their events.
TOOL_CHANNELS: Mapping[str, str] = {"tool.started": "info", "tool.completed": "info", "tool.failed": "error"}
ACCESS, PERMISSION, VALIDATION = "security.access_denied", "security.permission_denied", "security.validation_failed"
SECURITY_CHANNELS = (ACCESS, PERMISSION, VALIDATION)

# The type of an audit event, or why a tool was blocked → the channel it goes to.
SECURITY_EVENTS: Mapping[str, str] = {
    "VALIDATION_FAILED": VALIDATION,
    "CODE_REJECTED": VALIDATION,
    "PERMISSION_DENIED": PERMISSION,
    "dev.defserve.access_refused": ACCESS,
    "permission_denied": PERMISSION,
    "access_denied": ACCESS,
}

CHANNEL_PATTERNS_KIND = distinct_list_of(
    restrict_kind(list_of_texts('a list of names and patterns, like ["tool.*"]'), bool)
)

# How what is kept of a session is named.
SUBSCRIPTION, SEQUENCE = "subscription:", "sequence:"

RecordSequence: TypeAlias = Callable[[Session, str, str], bool]
"""Keeps how many events a session was told, by name. False: it was told this one by another process."""


# -- MGP §13.5: one event channel, as an author declares it, and what is emitted on it.


MAX_NAME_LENGTH = 128
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

Audience: TypeAlias = "str | Principal | Session | None"
"""Whom an event is for: everybody who subscribed, one principal, or one session.

A principal that has authenticated stands for those with at least its rights, not for its weaker keys."""


class MgpEvent:
    """What happened, on which channel, when, and for whom. `severity` is a rank among MCP's log levels."""

    __slots__ = ("channel", "id", "at", "data", "severity", "size", "_to")

    def __init__(self, channel: EventChannel, at: datetime, data: Any, severity: int, to: Audience) -> None:
        self.channel, self.id, self.at, self.data, self.severity = channel, token_urlsafe(12), at, data, severity
        self.size = len(encode(data))
        # A principal that nothing has authenticated stands for its id.
        self._to = to.id if isinstance(to, Principal) and not to.credential else to

    @property
    def is_kept(self) -> bool:
        """Whether it can be read later. The framework's own events and those for one session cannot."""
        return not (self.channel.standard or isinstance(self._to, Session))

    def is_visible_to(self, session: Session, caller: Principal) -> bool:
        """Whether this caller may be told, in this session."""
        if not self.channel.is_open_to(caller):
            return False
        if self._to is None or self._to is session:
            return True
        # Strangers at one address share an identity. An event for one of them must not reach the others.
        if is_stranger(caller):
            return False
        return caller.covers(self._to) if isinstance(self._to, Principal) else self._to == caller.id

    def to_json_value(self) -> list[Any]:
        """The event as JSON, for another process; without whom it is for."""
        return [self.channel.name, self.id, self.at.isoformat(), self.data, self.severity]

    def encode_audience(self) -> dict[str, Any] | None:
        """Whom it is for, as JSON. None: for a session that only this process knows."""
        if isinstance(self._to, Session):
            return {"session": self._to.sharer.id} if self._to.sharer is not None else None
        if isinstance(self._to, Principal):
            return {"principal": encode_principal(self._to)}
        return {"name": self._to}

    @classmethod
    def from_json_value(cls, channel: EventChannel, value: list[Any], to: Audience) -> MgpEvent:
        """The event of `to_json_value`."""
        _, id, at, data, severity = value
        event = cls(channel, datetime.fromisoformat(at), data, severity, to)
        event.id = id
        return event

    def to_wire(self) -> Params:
        return {
            "channel": self.channel.name,
            "timestamp": vocabulary.format_instant(self.at),
            "data": self.data,
            "severity": LOG_LEVELS[self.severity],
        }


class EventChannel:
    """`usage = server.event_channel("model.token_usage", Usage)`, then `await usage.emit(tokens_used=12)`.

    Emitting never waits for listeners, and does the same whether or not there are any.
    """

    def __init__(
        self, name: str, kind: Any = None, *, scopes: str | Iterable[str] = (), standard: bool = False
    ) -> None:
        if not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
            raise UsageError(
                f"{name!r} cannot be an event channel",
                fix='use words with dots between them: "model.token_usage", "com.example.order_shipped"',
            )
        self.name, self.standard, self._kind = name, standard, kind
        self.scopes, parts = frozenset(parse_scopes(scopes)), name.split(".")
        prefixes = (".".join(parts[:count]) + ".*" for count in range(1, len(parts)))
        self.patterns = frozenset((name, "*", *prefixes))
        """Everything that a peer may write for this channel."""
        self.audiences: list[EventSection] = []
        self._adapter: TypeAdapter[Any] | None = None

    async def emit(self, value: Any = ..., /, *, severity: str = "info", to: Audience = None, **fields: Any) -> None:
        """Tell subscribers something: a value of the channel's type, or its fields. See `emit_now`."""
        self.emit_now(value, severity=severity, to=to, **fields)

    def emit_now(self, value: Any = ..., /, *, severity: str = "info", to: Audience = None, **fields: Any) -> None:
        """The same without `await`, from any thread.

        `to` says whom it is for: a session (`ctx.session`) or a principal. Anonymous callers on this machine share one
        identity: use the session for them. Raises ValueError for a value that does not fit the type or has no JSON
        form, and for a severity that is none of MCP's log levels.
        """
        if severity not in LOG_LEVELS:
            raise ValueError(f"severity {severity!r} is none of {', '.join(LOG_LEVELS)}")
        if fields and value is not ...:
            raise ValueError(f"{self.name}: give a value or its fields, not both")
        data = self._data(fields if value is ... else value)
        event = MgpEvent(self, vocabulary.utc_now(), data, LOG_LEVELS.index(severity), to)
        for audience in self.audiences:
            audience.publish(event)

    def is_open_to(self, caller: Principal) -> bool:
        """Whether this caller has the scopes the channel asks for."""
        return not (self.scopes and caller.missing(self.scopes))

    def _data(self, value: Any) -> Any:
        if self._kind is None:
            return to_jsonable_python(value)
        if self._adapter is None:
            from pydantic import TypeAdapter

            self._adapter = TypeAdapter[Any](self._kind)
        return self._adapter.dump_python(self._adapter.validate_python(value), mode="json", by_alias=True)


# -- MGP §13.3: events that wait for a slow reader, and the latest ones for peers that ask. Both are bounded.


EVENT = "notifications/mgp.event"

# Limits of one subscription: events the transport has taken and not sent, and events that wait behind them.
UNDER_WAY = 16
WAITING = 256
WAITING_BYTES = 1024 * 1024


@dataclass(slots=True, eq=False)
class EventBuffer:
    """The newest events, up to a number and a size. One is always kept, however large."""

    events: deque[tuple[int, MgpEvent]] = field(default_factory=deque[tuple[int, MgpEvent]])
    _size: int = 0

    def append(self, number: int, event: MgpEvent) -> None:
        self.events.append((number, event))
        self._size += event.size
        while len(self.events) > WAITING or (self._size > WAITING_BYTES and len(self.events) > 1):
            self.popleft()

    def popleft(self) -> tuple[int, MgpEvent]:
        number, event = self.events.popleft()
        self._size -= event.size
        return number, event


class EventSubscription:
    """What `caller` wants to hear in one session, from severity `least` up. `sequence`: the number of the last event.

    Call all but `is_subscribed_to` and `is_wanted` on the session's own loop.
    """

    __slots__ = (
        "id", "session", "caller", "patterns", "least", "sequence", "_sent", "_waiting", "_under_way", "_ended",
    )  # fmt: skip

    def __init__(self, id: str, session: Session, caller: Principal, patterns: frozenset[str], least: int) -> None:
        self.id, self.session, self.caller, self.patterns, self.least = id, session, caller, patterns, least
        self.sequence = self._sent = self._under_way = 0
        self._waiting, self._ended = EventBuffer(), False

    def is_subscribed_to(self, channel: EventChannel) -> bool:
        return not channel.patterns.isdisjoint(self.patterns)

    def is_wanted(self, event: MgpEvent) -> bool:
        return self.is_subscribed_to(event.channel) and event.severity >= self.least

    def can_receive(self, event: MgpEvent) -> bool:
        """Whether it wants the event, and may be told."""
        return self.is_wanted(event) and not self._ended and event.is_visible_to(self.session, self.caller)

    def queue_event(self, event: MgpEvent) -> None:
        """Send an event once the reader has taken those before it. If too many wait, the oldest are dropped."""
        if self._ended or not event.is_visible_to(self.session, self.caller):
            return
        self.sequence += 1
        self._waiting.append(self.sequence, event)
        self._send()

    def continue_after(self, sequence: int) -> None:
        """Another process has sent events, up to this number."""
        self.sequence, self._sent = max(self.sequence, sequence), max(self._sent, sequence)

    def cancel(self) -> None:
        self._ended, self._waiting = True, EventBuffer()

    def _send(self) -> None:
        # The store of a shared session keeps what its reader has not taken.
        while self._waiting.events and (self._under_way < UNDER_WAY or self.session.sharer is not None):
            sequence, event = self._waiting.popleft()
            params = {"subscription_id": self.id, **event.to_wire(), "sequence": sequence}
            if sequence != self._sent + 1:
                params["gap"] = {"from": self._sent + 1, "to": sequence - 1}
            self._sent = sequence
            self._under_way += 1
            self.session.outlet(
                AddressedMessage(encode_notification(EVENT, params), (self.caller,), taken=self._on_sent_or_dropped)
            )

    def _on_sent_or_dropped(self) -> None:
        self._under_way -= 1
        if self._waiting.events:
            # Not at once: the transport is in the middle of writing.
            self.session.engine.call_soon(self._send)


class SessionSubscriptions(dict[str, EventSubscription]):
    """The subscriptions of one session, by id."""


class EventSection(Extension):
    """The channels of a server, their subscriptions, and the latest events."""

    def __init__(self, share: Callable[[MgpEvent], bool] = lambda event: False) -> None:
        self._share = share
        self.channels: dict[str, EventChannel] = {}
        self.recent = RecentEvents()
        self._watchers = 0
        self._subscriptions: set[EventSubscription] = set()
        self._followers: list[EventSection] = []
        for name in (*TOOL_CHANNELS, *SECURITY_CHANNELS):
            self.channels[name] = EventChannel(name, None, standard=True)
            self.channels[name].audiences.append(self)

    # -- declaring ---------------------------------------------------------------------------------------

    def declare(self, name: str, kind: Any = None, *, scopes: str | Iterable[str] = ()) -> EventChannel:
        """Declare a channel of this server. Raises UsageError for a name that is not allowed, or is taken."""
        if name in self.channels:
            raise UsageError(
                f"event channel {name!r} exists already",
                fix="use the existing channel" if not self.channels[name].standard else "choose another name",
            )
        channel = EventChannel(name, kind, scopes=scopes)
        self._adopt(channel)
        return channel

    def forward_child_events(self, child: EventSection) -> None:
        """Pass on what a mounted server emits, on channels it has now or later."""
        child._followers.append(self)
        for channel in child.channels.values():
            if not channel.standard:
                self._adopt(channel)

    def _adopt(self, channel: EventChannel) -> None:
        # Two mounted servers may both have a channel of this name. The events of both are passed on.
        self.channels.setdefault(channel.name, channel)
        if self not in channel.audiences:
            channel.audiences.append(self)
        for follower in self._followers:
            follower._adopt(channel)

    # -- methods of the peer -----------------------------------------------------------------------------

    def methods(self) -> Mapping[str, Handler]:
        return {
            "mgp/events/subscribe": self.subscribe,
            "mgp/events/unsubscribe": self.unsubscribe,
            "mgp/events/replay": self.replay,
        }

    def subscribe(self, call: Call, params: Params) -> Params:
        """`mgp/events/subscribe`. `subscribed` names channels; a pattern that no channel fits is `unsupported`."""
        if get_dialect(call).stateless:
            raise MethodNotFound(
                f"Method not found: {call.method} (nothing can be pushed without a session: use mgp/events/replay)",
                data={"error_type": "no_session"},
            )
        patterns, least = read_member(params, "channels", CHANNEL_PATTERNS_KIND), _read_least(params)
        names, unsupported = self._fitting(call, patterns)
        mine, limit = call.session.local(SessionSubscriptions), call.session.composition.limits.subscriptions
        if len(mine) >= limit or sum(len(each.patterns) for each in mine.values()) + len(patterns) > limit:
            raise LimitExceeded("too many event subscriptions in this session", data={"limit": "subscriptions"})
        id, wanted = token_urlsafe(24), frozenset(patterns) - frozenset(unsupported)
        mine[id] = subscription = EventSubscription(id, call.session, identify_caller(call), wanted, least)
        self._subscriptions.add(subscription)
        self._watchers += self._watches(subscription)
        call.session.mark_dirty()
        return {"subscribed": names, "unsupported": unsupported, "subscription_id": id}

    def unsubscribe(self, call: Call, params: Params) -> Params:
        """`mgp/events/unsubscribe`. Raises InvalidParams for an id this session does not have."""
        id, mine = read_text_param(params, "subscription_id"), call.session.peek(SessionSubscriptions)
        subscription = mine.pop(id, None) if mine is not None else None
        if subscription is None:
            # The message does not say whether such a subscription ever existed, here or in another session.
            raise InvalidParams(
                "Invalid params: this session has no such subscription", data={"error_type": "unknown_subscription"}
            )
        self._end(subscription)
        call.session.mark_dirty()
        return {"unsubscribed": True, "subscription_id": id}

    def replay(self, call: Call, params: Params) -> Params:
        """`mgp/events/replay`: the latest events of the server's own channels, after the event whose id is `since`.

        `gap` is true when that event is no longer known here, so that others behind it may be lost as well.
        """
        patterns, least = read_member(params, "channels", CHANNEL_PATTERNS_KIND), _read_least(params)
        since = read_member(params, "since", TEXT, None)
        names, unsupported = self._fitting(call, patterns, kept_only=True)
        found, gap = self.recent.list_events_after(since)
        told = [
            event
            for event in found
            if event.channel.name in names
            and event.severity >= least
            and event.is_visible_to(call.session, identify_caller(call))
        ]
        return {
            "events": [{"event_id": event.id, **event.to_wire()} for event in told],
            "gap": gap,
            "next": told[-1].id if told else since,
            "unsupported": unsupported,
        }

    def session_closed(self, session: Session) -> None:
        """End the subscriptions of a session that has ended."""
        for subscription in list((session.peek(SessionSubscriptions) or SessionSubscriptions()).values()):
            self._end(subscription)

    def credential_ended(self, session: Session, credential: str) -> None:
        """End the subscriptions that were made with a key or token that is no longer good."""
        mine = session.peek(SessionSubscriptions) or SessionSubscriptions()
        for id, subscription in list(mine.items()):
            if subscription.caller.credential == credential:
                self._end(mine.pop(id))
                session.mark_dirty()

    def export_state(self, session: Session) -> Params:
        """The subscriptions of a session and how many events each was told, for another process."""
        found: Params = {}
        for id, each in (session.peek(SessionSubscriptions) or SessionSubscriptions()).items():
            found[f"{SUBSCRIPTION}{id}"] = [sorted(each.patterns), each.least, encode_principal(each.caller)]
            found[f"{SEQUENCE}{id}"] = each.sequence
        return found

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        """What another process has `kept`."""
        wanted = {name.removeprefix(SUBSCRIPTION): kept[name] for name in kept if name.startswith(SUBSCRIPTION)}
        mine = session.peek(SessionSubscriptions)
        if mine is None and not wanted:
            return
        mine = session.local(SessionSubscriptions)
        for id in mine.keys() - wanted.keys():
            self._end(mine.pop(id))
        for id, (patterns, least, caller) in wanted.items():
            if id not in mine:
                mine[id] = made = EventSubscription(id, session, decode_principal(caller), frozenset(patterns), least)
                self._subscriptions.add(made)
                self._watchers += self._watches(made)
            mine[id].continue_after(kept.get(f"{SEQUENCE}{id}", 0))

    def _end(self, subscription: EventSubscription) -> None:
        subscription.cancel()
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._watchers -= self._watches(subscription)

    @property
    def listeners(self) -> int:
        """How many subscriptions there are."""
        return len(self._subscriptions)

    @property
    def has_call_subscribers(self) -> bool:
        """Whether anybody subscribed to the channels about tools and security. If not, calls are not watched."""
        return self._watchers > 0

    def _watches(self, subscription: EventSubscription) -> bool:
        return any(subscription.is_subscribed_to(channel) for channel in self.channels.values() if channel.standard)

    def _fitting(self, call: Call, patterns: Sequence[str], *, kept_only: bool = False) -> tuple[list[str], list[str]]:
        """The matching channels that are open to this caller, and the patterns that match none of them."""
        caller = identify_caller(call)
        open_to = [c for c in self.channels.values() if c.is_open_to(caller) and not (kept_only and c.standard)]
        names = sorted(channel.name for channel in open_to if not channel.patterns.isdisjoint(patterns))
        fitting = frozenset[str]().union(*(channel.patterns for channel in open_to))
        return names, [pattern for pattern in patterns if pattern not in fitting]

    # -- sending -----------------------------------------------------------------------------------------

    def publish(self, event: MgpEvent) -> None:
        """Send an event to the subscribers that it concerns, in all processes. From any thread."""
        is_shared = self._share(event)
        if not is_shared:
            self.recent.add_event(event)
        # What is not shared still has its number from the one process that counts for a session.
        told = list(self._subscriptions)
        self._offer(
            event, [s for s in told if s.session.sharer is None or (not is_shared and s.session.sharer.is_owner)]
        )

    def deliver_shared_event(self, event: MgpEvent, sessions: Iterable[Session], note: RecordSequence) -> None:
        """A process has shared an event, of which these sessions are told."""
        for session in sessions:
            for id, subscription in sorted((session.peek(SessionSubscriptions) or SessionSubscriptions()).items()):
                if subscription.can_receive(event) and note(session, f"{SEQUENCE}{id}", str(subscription.sequence + 1)):
                    subscription.queue_event(event)

    def deliver_event_locally(self, event: MgpEvent, *, is_own: bool) -> None:
        """A process has shared an event: all remember it, and tell the sessions that only they know."""
        self.recent.add_event(event)
        if not is_own:
            self._offer(event, [each for each in list(self._subscriptions) if each.session.sharer is None])

    def decode_event(self, value: list[Any], session: Callable[[str], Session | None]) -> MgpEvent | None:
        """The event that another process has written, with whom it is for. None if it concerns nobody here."""
        *event, to = value
        channel = self.channels.get(event[0])
        audience: Audience = decode_principal(to["principal"]) if "principal" in to else to.get("name")
        if "session" in to and (audience := session(to["session"])) is None:
            return None
        return MgpEvent.from_json_value(channel, event, audience) if channel is not None else None

    def _offer(self, event: MgpEvent, subscriptions: Iterable[EventSubscription]) -> None:
        for subscription in subscriptions:
            if subscription.is_wanted(event):
                engine = subscription.session.engine
                if engine.is_on_loop():
                    subscription.queue_event(event)
                else:
                    engine.post_to_loop(partial(subscription.queue_event, event))

    def publish_tool_event(self, call: Call, name: str, tool: str, **details: Any) -> None:
        """Tell the caller of a tool how far its call has come."""
        data = {"tool_name": tool, "request_id": call.id, "trace_id": get_trace_id(call), **details}
        self.channels[name].emit_now(data, severity=TOOL_CHANNELS[name], to=_caller(call))

    def on_call_audited(self, call: Call, event_type: str, tool: str | None, details: Mapping[str, Any]) -> None:
        """Tell a caller of an event on the audit trail, if it is about security."""
        reason = details.get("reason")
        name = SECURITY_EVENTS.get(str(reason) if event_type == "TOOL_BLOCKED" else event_type)
        if name is not None:
            data: Params = {"tool_name": tool, "trace_id": get_trace_id(call), "event_type": event_type}
            if isinstance(reason, str):
                data["reason"] = reason
            self.channels[name].emit_now(data, severity="warning", to=_caller(call))


def _caller(call: Call) -> Audience:
    # Strangers at one address share a principal. An event for one of them goes to its session alone.
    caller = identify_caller(call)
    return call.session if is_stranger(caller) else caller


def _read_least(params: Params) -> int:
    wanted = read_optional_object_param(params, "filter") or {}
    return LOG_LEVELS.index(read_member(wanted, "min_severity", one_of(*LOG_LEVELS), LOG_LEVELS[0], nullable=False))


@dataclass(slots=True, eq=False)
class RecentEvents:
    """The latest events of a server, for peers that cannot be sent any. From any thread."""

    _kept: EventBuffer = field(default_factory=EventBuffer)
    _lock: Lock = field(default_factory=Lock)

    def add_event(self, event: MgpEvent) -> None:
        if event.is_kept:
            with self._lock:
                self._kept.append(0, event)

    def list_events_after(self, id: str | None) -> tuple[list[MgpEvent], bool]:
        """The events after the one with this id, and whether some may be missing."""
        with self._lock:
            events = [event for _, event in self._kept.events]
        if id is None:
            return events, False
        place = next((number for number, event in enumerate(events) if event.id == id), None)
        return (events, True) if place is None else (events[place + 1 :], False)
