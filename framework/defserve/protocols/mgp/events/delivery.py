"""MGP §13.3: events that wait for a slow reader, and the latest ones for peers that ask. Both are bounded."""

from __future__ import annotations

from collections import deque
from threading import Lock

from defserve.auth.principals import Principal
from defserve.core.extension import AddressedMessage
from defserve.core.session import Session
from defserve.protocols.mgp.events.channel import EventChannel, MgpEvent
from defserve.wire.codec import notification

EVENT = "notifications/mgp.event"

# Limits of one subscription: events the transport has taken and not sent, and events that wait behind them.
UNDER_WAY = 16
WAITING = 256
WAITING_BYTES = 1024 * 1024


class EventBuffer:
    """The newest events, up to a number and a size. One is always kept, however large."""

    __slots__ = ("events", "_size")

    def __init__(self) -> None:
        self.events: deque[tuple[int, MgpEvent]] = deque()
        self._size = 0

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
    """What `caller` wants to hear in one session, from severity `least` up.

    Call all but `fits` and `wants` on the session's own loop.
    """

    __slots__ = ("id", "session", "caller", "patterns", "least", "_last", "_sent", "_waiting", "_under_way", "_ended")

    def __init__(self, id: str, session: Session, caller: Principal, patterns: frozenset[str], least: int) -> None:
        self.id, self.session, self.caller, self.patterns, self.least = id, session, caller, patterns, least
        self._last = self._sent = self._under_way = 0
        self._waiting, self._ended = EventBuffer(), False

    def fits(self, channel: EventChannel) -> bool:
        return not channel.patterns.isdisjoint(self.patterns)

    def wants(self, event: MgpEvent) -> bool:
        return self.fits(event.channel) and event.severity >= self.least

    def takes(self, event: MgpEvent) -> bool:
        """Whether it wants the event, and may be told."""
        return self.wants(event) and not self._ended and event.concerns(self.session, self.caller)

    def offer(self, event: MgpEvent) -> None:
        """Send an event once the reader has taken those before it. If too many wait, the oldest are dropped."""
        if self._ended or not event.concerns(self.session, self.caller):
            return
        self._last += 1
        self._waiting.append(self._last, event)
        self._send()

    @property
    def sequence(self) -> int:
        """The number of the last event."""
        return self._last

    def continue_after(self, sequence: int) -> None:
        """Another process has sent events, up to this number."""
        self._last, self._sent = max(self._last, sequence), max(self._sent, sequence)

    def end(self) -> None:
        self._ended, self._waiting = True, EventBuffer()

    def _send(self) -> None:
        # The store of a shared session keeps what its reader has not taken.
        while self._waiting.events and (self._under_way < UNDER_WAY or self.session.sharer is not None):
            sequence, event = self._waiting.popleft()
            params = {"subscription_id": self.id, **event.wire(), "sequence": sequence}
            if sequence != self._sent + 1:
                params["gap"] = {"from": self._sent + 1, "to": sequence - 1}
            self._sent = sequence
            self._under_way += 1
            self.session.outlet(AddressedMessage(notification(EVENT, params), (self.caller,), taken=self._taken))

    def _taken(self) -> None:
        self._under_way -= 1
        if self._waiting.events:
            # Not at once: the transport is in the middle of writing.
            self.session.engine.soon(self._send)


class RecentEvents:
    """The latest events of a server, for peers that cannot be sent any. From any thread."""

    __slots__ = ("_kept", "_lock")

    def __init__(self) -> None:
        self._kept, self._lock = EventBuffer(), Lock()

    def keep(self, event: MgpEvent) -> None:
        with self._lock:
            self._kept.append(0, event)

    def after(self, id: str | None) -> tuple[list[MgpEvent], bool]:
        """The events after the one with this id, and whether some may be missing."""
        with self._lock:
            events = [event for _, event in self._kept.events]
        if id is None:
            return events, False
        place = next((number for number, event in enumerate(events) if event.id == id), None)
        return (events, True) if place is None else (events[place + 1 :], False)
