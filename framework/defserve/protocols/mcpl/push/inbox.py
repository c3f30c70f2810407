"""MCPL §9 for hosts that cannot be called: events wait in a resource, `inbox://<set>`, for their readers. Bounded.

A host reads `inbox://<set>`, then `inbox://<set>?after=<cursor>`. It may subscribe to the first of these.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.protocols.mcp.resources.resources import Resource, ResourceOptions
from defserve.protocols.mcpl.policies import is_strangers
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcp.extension import MCP

# How many events are kept for one principal, and for how many principals.
EVENTS = 256
PRINCIPALS = 1_000


class PendingEvents:
    """The events for one principal, or for everyone. `lost` is the number of the newest event that was dropped."""

    __slots__ = ("events", "lost")

    def __init__(self, lost: int = 0) -> None:
        self.events: deque[tuple[int, Params]] = deque()
        self.lost = lost

    def put(self, number: int, event: Params) -> None:
        self.events.append((number, event))
        if len(self.events) > EVENTS:
            self.lost = self.events.popleft()[0]


class EventInbox:
    """The pending events of one set. From any thread."""

    def __init__(self, name: str, description: str) -> None:
        self.uri, self._name, self._description = f"inbox://{name}", name, description
        self._for_all = PendingEvents()
        self._for_one: OrderedDict[str, PendingEvents] = OrderedDict()
        self._last, self._lost, self._lock = 0, 0, Lock()
        self._updated: Callable[[str, str | None], None] | None = None

    def keep(self, event: Params, principal: str | None) -> None:
        """Keep an event for a principal, or for everyone, and tell the subscribers."""
        with self._lock:
            self._last += 1
            self._pending_of(principal).put(self._last, event)
        if self._updated is not None:
            self._updated(self.uri, principal)

    def _pending_of(self, principal: str | None) -> PendingEvents:
        if principal is None:
            return self._for_all
        # Events for a principal without any may have been dropped: nobody remembers whose they were.
        found = self._for_one.setdefault(principal, PendingEvents(self._lost))
        self._for_one.move_to_end(principal)
        if len(self._for_one) > PRINCIPALS:
            _, gone = self._for_one.popitem(last=False)
            self._lost = max(self._lost, gone.events[-1][0])
        return found

    def after(self, principal: str | None, cursor: int) -> Params:
        """The events after a cursor for a principal; None reads those for everyone. `missed`: some are no longer kept.

        A cursor that was not given out yet comes from before a restart: all events are new to its reader.
        """
        with self._lock:
            is_older = cursor > self._last
            own = self._for_one.get(principal) if principal is not None else None
            both = [self._for_all] if own is None else [self._for_all, own]
            kept = sorted((pair for pending in both for pair in pending.events), key=lambda pair: pair[0])
            lost = max([pending.lost for pending in both] + ([self._lost] if own is None and principal else []))
        cursor = 0 if is_older else cursor
        found = [(number, event) for number, event in kept if number > cursor]
        latest = found[-1][0] if found else cursor
        return {"events": [event for _, event in found], "cursor": latest, "missed": is_older or lost > cursor}

    def serve(self, mcp: MCP, binding: object) -> None:
        """Offer it as a resource, with and without a cursor. `binding` decides who sees it."""
        self._updated = mcp.subscriptions.updated

        def pending(call: Call) -> Params:
            return self.after(_reader(call), 0)

        def pending_after(call: Call, after: int) -> Params:
            return self.after(_reader(call), after)

        served: tuple[tuple[str, Callable[..., Any]], ...] = (
            (self.uri, pending),
            (self.uri + "{?after}", pending_after),
        )
        for uri, function in served:
            options = ResourceOptions(
                name=f"inbox of {self._name}",
                description=f"Pending events: {self._description}",
                mime_type="application/json",
                inline=True,
            )
            resource = Resource.of(function, uri, options, find_provider=_the_call)
            resource.facets["mcpl"] = binding
            mcp.resources.add(resource)

    def withdraw(self, mcp: MCP) -> None:
        """Stop offering it."""
        mcp.resources.remove(self.uri)
        mcp.resources.remove(self.uri + "{?after}")


def _reader(call: Call) -> str | None:
    """Whose events a caller reads besides those for everyone. Nobody can tell strangers at one address apart."""
    return None if is_strangers(call.session) else call.principal


def _the_call(annotation: Any) -> Callable[[Any], Any] | None:
    return (lambda call: call) if annotation is Call else None
