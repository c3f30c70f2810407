"""MGP §13.1–13.3, §13.5: event channels. An event is emitted once, and goes to the subscribers that it concerns.

A subscription belongs to one session. If its reader is too slow, the oldest events are dropped: every event has a
`sequence`, and the next one that is sent names the `gap`. Without a session nothing can be pushed. There, the latest
events of a server's own channels are read with `mgp/events/replay`, an addition of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, TypeAlias

from defserve.auth.authority import is_stranger
from defserve.auth.remembered import remembered, written
from defserve.core.call import Call
from defserve.core.session import Session
from defserve.errors import InvalidParams, LimitExceeded, MethodNotFound, UsageError
from defserve.protocols.mcp.authorization.authorization import identity
from defserve.protocols.mcp.lifecycle import LOG_LEVELS, dialect_of
from defserve.protocols.mcp.params import optional_fields, text
from defserve.protocols.mcp.trace import trace_id
from defserve.protocols.mgp.events.channel import Audience, EventChannel, MgpEvent
from defserve.protocols.mgp.events.delivery import EventSubscription, RecentEvents
from defserve.wire.jsonvalue import is_array
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from collections.abc import Mapping

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


# How what is kept of a session is named.
SUBSCRIPTION, SEQUENCE = "subscription:", "sequence:"


Note: TypeAlias = Callable[[Session, str, str], bool]
"""Keeps how many events a session was told, by name. False: it was told this one by another process."""


class SessionSubscriptions(dict[str, EventSubscription]):
    """The subscriptions of one session, by id."""


class EventSection:
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

    def follow(self, child: EventSection) -> None:
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

    def subscribe(self, call: Call, params: Params) -> Params:
        """`mgp/events/subscribe`. `subscribed` names channels; a pattern that no channel fits is `unsupported`."""
        if dialect_of(call).stateless:
            raise MethodNotFound(
                f"Method not found: {call.method} (nothing can be pushed without a session: use mgp/events/replay)",
                data={"error_type": "no_session"},
            )
        patterns, least = _wanted(params), _least(params)
        names, unsupported = self._fitting(call, patterns)
        mine, limit = call.session.local(SessionSubscriptions), call.session.composition.limits.subscriptions
        if len(mine) >= limit or sum(len(each.patterns) for each in mine.values()) + len(patterns) > limit:
            raise LimitExceeded("too many event subscriptions in this session", data={"limit": "subscriptions"})
        id, wanted = token_urlsafe(24), frozenset(patterns) - frozenset(unsupported)
        mine[id] = subscription = EventSubscription(id, call.session, identity(call), wanted, least)
        self._subscriptions.add(subscription)
        self._watchers += self._watches(subscription)
        call.session.kept_changed()
        return {"subscribed": names, "unsupported": unsupported, "subscription_id": id}

    def unsubscribe(self, call: Call, params: Params) -> Params:
        """`mgp/events/unsubscribe`. Raises InvalidParams for an id this session does not have."""
        id, mine = text(params, "subscription_id"), call.session.peek(SessionSubscriptions)
        subscription = mine.pop(id, None) if mine is not None else None
        if subscription is None:
            # The message does not say whether such a subscription ever existed, here or in another session.
            raise InvalidParams(
                "Invalid params: this session has no such subscription", data={"error_type": "unknown_subscription"}
            )
        self._end(subscription)
        call.session.kept_changed()
        return {"unsubscribed": True, "subscription_id": id}

    def replay(self, call: Call, params: Params) -> Params:
        """`mgp/events/replay`: the latest events of the server's own channels, after the event whose id is `since`.

        `gap` is true when that event is no longer known here, so that others behind it may be lost as well.
        """
        patterns, least = _wanted(params), _least(params)
        since = text(params, "since") if params.get("since") is not None else None
        names, unsupported = self._fitting(call, patterns, kept_only=True)
        found, gap = self.recent.after(since)
        told = [
            event
            for event in found
            if event.channel.name in names and event.severity >= least and event.concerns(call.session, identity(call))
        ]
        return {
            "events": [{"event_id": event.id, **event.wire()} for event in told],
            "gap": gap,
            "next": told[-1].id if told else since,
            "unsupported": unsupported,
        }

    def closed(self, session: Session) -> None:
        """End the subscriptions of a session that has ended."""
        for subscription in list((session.peek(SessionSubscriptions) or SessionSubscriptions()).values()):
            self._end(subscription)

    def credential_ended(self, session: Session, credential: str) -> None:
        """End the subscriptions that were made with a key or token that is no longer good."""
        mine = session.peek(SessionSubscriptions) or SessionSubscriptions()
        for id, subscription in list(mine.items()):
            if subscription.caller.credential == credential:
                self._end(mine.pop(id))
                session.kept_changed()

    def kept(self, session: Session) -> Params:
        """The subscriptions of a session and how many events each was told, for another process."""
        found: Params = {}
        for id, each in (session.peek(SessionSubscriptions) or SessionSubscriptions()).items():
            found[f"{SUBSCRIPTION}{id}"] = [sorted(each.patterns), each.least, written(each.caller)]
            found[f"{SEQUENCE}{id}"] = each.sequence
        return found

    def restore(self, session: Session, kept: Mapping[str, Any]) -> None:
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
                mine[id] = made = EventSubscription(id, session, remembered(caller), frozenset(patterns), least)
                self._subscriptions.add(made)
                self._watchers += self._watches(made)
            mine[id].continue_after(kept.get(f"{SEQUENCE}{id}", 0))

    def _end(self, subscription: EventSubscription) -> None:
        subscription.end()
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._watchers -= self._watches(subscription)

    @property
    def listeners(self) -> int:
        """How many subscriptions there are."""
        return len(self._subscriptions)

    @property
    def watches_calls(self) -> bool:
        """Whether anybody subscribed to the channels about tools and security. If not, calls are not watched."""
        return self._watchers > 0

    def _watches(self, subscription: EventSubscription) -> bool:
        return any(subscription.fits(channel) for channel in self.channels.values() if channel.standard)

    def _fitting(self, call: Call, patterns: list[str], *, kept_only: bool = False) -> tuple[list[str], list[str]]:
        """The matching channels that are open to this caller, and the patterns that match none of them."""
        caller = identity(call)
        open_to = [c for c in self.channels.values() if c.is_open_to(caller) and not (kept_only and c.standard)]
        names = sorted(channel.name for channel in open_to if not channel.patterns.isdisjoint(patterns))
        fitting = frozenset[str]().union(*(channel.patterns for channel in open_to))
        return names, [pattern for pattern in patterns if pattern not in fitting]

    # -- sending -----------------------------------------------------------------------------------------

    def publish(self, event: MgpEvent) -> None:
        """Send an event to the subscribers that it concerns, in all processes. From any thread."""
        is_shared = self._share(event)
        if not is_shared:
            self._keep(event)
        # What is not shared still has its number from the one process that counts for a session.
        told = list(self._subscriptions)
        self._offer(
            event, [s for s in told if s.session.sharer is None or (not is_shared and s.session.sharer.is_owner)]
        )

    def received(self, event: MgpEvent, sessions: Iterable[Session], note: Note) -> None:
        """A process has shared an event, of which these sessions are told."""
        for session in sessions:
            for id, subscription in sorted((session.peek(SessionSubscriptions) or SessionSubscriptions()).items()):
                if subscription.takes(event) and note(session, f"{SEQUENCE}{id}", str(subscription.sequence + 1)):
                    subscription.offer(event)

    def received_elsewhere(self, event: MgpEvent, *, is_own: bool) -> None:
        """A process has shared an event: all remember it, and tell the sessions that only they know."""
        self._keep(event)
        if not is_own:
            self._offer(event, [each for each in list(self._subscriptions) if each.session.sharer is None])

    def _keep(self, event: MgpEvent) -> None:
        if event.is_kept:
            self.recent.keep(event)

    def remembered(self, value: list[Any], session: Callable[[str], Session | None]) -> MgpEvent | None:
        """The event that another process has written, with whom it is for. None if it concerns nobody here."""
        *event, to = value
        channel = self.channels.get(event[0])
        audience: Audience = remembered(to["principal"]) if "principal" in to else to.get("name")
        if "session" in to and (audience := session(to["session"])) is None:
            return None
        return MgpEvent.remembered(channel, event, audience) if channel is not None else None

    def _offer(self, event: MgpEvent, subscriptions: Iterable[EventSubscription]) -> None:
        for subscription in subscriptions:
            if subscription.wants(event):
                engine = subscription.session.engine
                if engine.on_loop():
                    subscription.offer(event)
                else:
                    engine.post(partial(subscription.offer, event))

    def tool(self, call: Call, name: str, tool: str, **details: Any) -> None:
        """Tell the caller of a tool how far its call has come."""
        data = {"tool_name": tool, "request_id": call.id, "trace_id": trace_id(call), **details}
        self.channels[name].emit_now(data, severity=TOOL_CHANNELS[name], to=_caller(call))

    def audited(self, call: Call, event_type: str, tool: str | None, details: Mapping[str, Any]) -> None:
        """Tell a caller of an event on the audit trail, if it is about security."""
        reason = details.get("reason")
        name = SECURITY_EVENTS.get(str(reason) if event_type == "TOOL_BLOCKED" else event_type)
        if name is not None:
            data: Params = {"tool_name": tool, "trace_id": trace_id(call), "event_type": event_type}
            if isinstance(reason, str):
                data["reason"] = reason
            self.channels[name].emit_now(data, severity="warning", to=_caller(call))


def _caller(call: Call) -> Audience:
    # Strangers at one address share a principal. An event for one of them goes to its session alone.
    caller = identity(call)
    return call.session if is_stranger(caller) else caller


def _wanted(params: Params) -> list[str]:
    patterns = params.get("channels")
    if not is_array(patterns) or not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise InvalidParams('Invalid params: channels must be a list of names and patterns, like ["tool.*"]')
    return list(dict.fromkeys(patterns))


def _least(params: Params) -> int:
    severity = (optional_fields(params, "filter") or {}).get("min_severity", LOG_LEVELS[0])
    if severity not in LOG_LEVELS:
        raise InvalidParams(f"Invalid params: min_severity must be one of {', '.join(LOG_LEVELS)}")
    return LOG_LEVELS.index(severity)
