"""MCPL §9 without a road back: events wait in a resource, `inbox://<set>`, for those they are meant for. Bounded.

A host reads `inbox://<set>`, then `inbox://<set>?after=<cursor>`, and may subscribe to the former.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.protocols.mcp.resources.resources import Resource, ResourceOptions
from defserve.protocols.mcpl.feature_sets import Tie
from defserve.protocols.mcpl.policies import is_pushed_to
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcp.extension import MCP
    from defserve.protocols.mcpl.feature_sets import FeatureSet

# The newest events of one principal, and those who have any.
EVENTS = 256
PRINCIPALS = 1_000


class Shelf:
    """The events of one principal, or of all. `lost` is the number of the newest that had to go."""

    __slots__ = ("events", "lost")

    def __init__(self) -> None:
        self.events: deque[tuple[int, Params]] = deque()
        self.lost = 0

    def put(self, number: int, event: Params) -> None:
        self.events.append((number, event))
        if len(self.events) > EVENTS:
            self.lost = self.events.popleft()[0]


class Inbox:
    """The pending events of one set. From any thread."""

    def __init__(self, feature_set: FeatureSet) -> None:
        self.feature_set, self.uri = feature_set, f"inbox://{feature_set.name}"
        self._everyones = Shelf()
        self._shelves: OrderedDict[str, Shelf] = OrderedDict()
        self._last, self._lost, self._lock = 0, 0, Lock()
        self._updated: Callable[[str, str | None], None] | None = None

    def keep(self, event: Params, principal: str | None) -> None:
        """Leave an event for a principal, or for all, and tell who subscribed."""
        with self._lock:
            self._last += 1
            self._shelf(principal).put(self._last, event)
        if self._updated is not None:
            self._updated(self.uri, principal)

    def _shelf(self, principal: str | None) -> Shelf:
        if principal is None:
            return self._everyones
        shelf = self._shelves.setdefault(principal, Shelf())
        self._shelves.move_to_end(principal)
        if len(self._shelves) > PRINCIPALS:
            _, gone = self._shelves.popitem(last=False)
            self._lost = max(self._lost, gone.events[-1][0])
        return shelf

    def after(self, principal: str, cursor: int) -> Params:
        """What a principal finds behind a cursor: `missed` when some of it is no longer kept."""
        with self._lock:
            own = self._shelves.get(principal)
            shelves = [self._everyones] if own is None else [self._everyones, own]
            kept = sorted((pair for shelf in shelves for pair in shelf.events), key=lambda pair: pair[0])
            lost = max([shelf.lost for shelf in shelves] + ([self._lost] if own is None else []))
        found = [(number, event) for number, event in kept if number > cursor]
        latest = found[-1][0] if found else cursor
        return {"events": [event for _, event in found], "cursor": latest, "missed": lost > cursor}

    def serve(self, mcp: MCP) -> None:
        """Offer it as a resource, to be read from a cursor on as well."""
        self._updated = mcp.subscriptions.updated
        for uri, function in ((self.uri, self._pending()), (self.uri + "{?after}", self._pending_after())):
            options = ResourceOptions(
                name=f"inbox of {self.feature_set.name}",
                description=f"Pending events: {self.feature_set.description}",
                mime_type="application/json",
                inline=True,
            )
            resource = Resource.of(function, uri, options, find_provider=_the_call)
            resource.facets["mcpl"] = InboxTie(self.feature_set, None)
            mcp.resources.add(resource)

    def withdraw(self, mcp: MCP) -> None:
        """Offer it no more."""
        mcp.resources.remove(self.uri)
        mcp.resources.remove(self.uri + "{?after}")

    def _pending(self) -> Callable[..., Any]:
        def pending(call: Call) -> Params:
            return self.after(call.principal, 0)

        return pending

    def _pending_after(self) -> Callable[..., Any]:
        def pending_after(call: Call, after: int) -> Params:
            return self.after(call.principal, after)

        return pending_after


class InboxTie(Tie):
    """A host that is sent the events sees no inbox: it would find them twice."""

    __slots__ = ()

    def shown(self, call: Call) -> bool:
        return not is_pushed_to(call) and super().shown(call)


def _the_call(annotation: Any) -> Callable[[Any], Any] | None:
    return (lambda call: call) if annotation is Call else None
