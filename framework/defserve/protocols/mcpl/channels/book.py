"""MCPL §14.2–14.3: which channels there are for each host, and telling it (`channels/register`, `channels/changed`).

A channel that the author adds is shared by all hosts. One that a host opens belongs to its session alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from defserve.core.call import Call
from defserve.core.registry import Registry
from defserve.core.session import Session
from defserve.errors import PeerError, UsageError
from defserve.protocols.mcpl.channels.type import ChannelType
from defserve.protocols.mcpl.channels.values import Channel
from defserve.protocols.mcpl.feature_sets import FeatureSet
from defserve.protocols.mcpl.policies import Live, Policy, is_stateless
from defserve.wire.jsonvalue import is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.extension import MCPL


class Held(NamedTuple):
    """A channel, and the type it was declared with."""

    kind: ChannelType
    channel: Channel

    def wire(self) -> Params:
        return self.channel.wire(self.kind.type)


class View:
    """What one host has: the channels it opened, the shared ones it closed, and what it was told of."""

    __slots__ = ("opened", "closed", "told", "registered")

    def __init__(self) -> None:
        self.opened: dict[str, Held] = {}
        self.closed: set[str] = set()
        self.told: dict[str, Params] = {}
        self.registered = False

    def note(self, held: Held) -> Params:
        """The descriptor of what this host has asked for, so that it need not be told once more."""
        wire = self.told[held.channel.id] = held.wire()
        return wire


def view_of(call: Call) -> View | None:
    """What the host of a call has; None where there is no session to remember it."""
    return None if is_stateless(call) else call.session.local(View)


class Book:
    """The channels of a server by id: the shared ones here, those of a session in its View."""

    def __init__(self, mcpl: MCPL) -> None:
        self.mcpl = mcpl
        self.types: Registry[ChannelType] = Registry("type of channels")
        self.shared: Registry[Held] = Registry("channel")

    # -- for authors, from any thread --------------------------------------------------------------------

    def add(self, kind: ChannelType, channel: Channel) -> None:
        self.shared.add(channel.id, Held(kind, channel))
        self.follow_all()

    def remove(self, kind: ChannelType, id: str) -> None:
        self._refuse_foreign(kind, id)
        self.shared.remove(id)
        self.follow_all()

    def update(self, kind: ChannelType, channel: Channel) -> None:
        def same(view: View) -> bool:
            # Two hosts may have opened different channels of one id: the address tells them apart.
            held = view.opened.get(channel.id)
            return held is not None and held.kind is kind and held.channel.address == channel.address

        opened = [view for one in self._sessions() if (view := one.peek(View)) is not None and same(view)]
        for view in opened:
            view.opened[channel.id] = Held(kind, channel)
        if not opened:
            self._refuse_foreign(kind, channel.id)
            self.shared.add(channel.id, Held(kind, channel), replace=True)
        self.follow_all()

    def forget(self, feature_set: FeatureSet) -> list[ChannelType]:
        """Drop the types of a set and what is shared of them; what hosts have opened is left to close."""
        gone = [kind for kind in self.types if kind.feature_set is feature_set]
        for id, held in self.shared.items():
            if held.kind in gone:
                self.shared.remove(id)
        for kind in gone:
            self.types.remove(kind.type)
        return gone

    def _refuse_foreign(self, kind: ChannelType, id: str) -> None:
        held = self.shared.get(id)
        if held is None:
            raise UsageError(f"there is no channel {id!r} among {kind.name}", fix="add it first")
        if held.kind is not kind:
            raise UsageError(f"channel {id!r} is one of {held.kind.name}, not of {kind.name}")

    # -- looking up --------------------------------------------------------------------------------------

    def held(self, view: View | None, id: str, *, even_closed: bool = False) -> Held | None:
        """A channel of a host, whatever it has enabled; `even_closed`, also one that it closed for itself."""
        if view is not None and id in view.opened:
            return view.opened[id]
        return self.shared.get(id) if view is None or even_closed or id not in view.closed else None

    def shared_at(self, kind: ChannelType, address: object) -> Held | None:
        """The shared channel with an address as hosts write it."""
        if address is None:
            return None
        return next((held for held in self.shared if held.kind is kind and held.wire().get("address") == address), None)

    def listed(self, view: View | None, found: Policy) -> dict[str, Params]:
        """The descriptors of what a host has and has enabled, by id."""
        closed, opened = (view.closed, view.opened) if view is not None else (set[str](), dict[str, Held]())
        shared = {id: held for id, held in self.shared.items() if id not in closed}
        return {id: held.wire() for id, held in (shared | opened).items() if found.enabled(held.kind.feature_set.name)}

    # -- telling -----------------------------------------------------------------------------------------

    def follow_all(self) -> None:
        """As `follow`, for every host. From any thread."""
        self.for_all(self.follow)

    def for_all(self, action: Callable[[Session], None]) -> None:
        """Do something for every session, on its loop. From any thread."""
        for session in self._sessions():
            engine = session.engine
            if engine.ready and engine.on_loop():
                action(session)
            elif engine.ready:
                engine.post(partial(action, session))

    def follow(self, session: Session) -> None:
        """Tell a host what has changed for it: all there is when it is ready, later the differences."""
        agreed = _agreed(session)
        if agreed is None or not session.ready or session.closed or not _registers(agreed):
            return
        view = session.local(View)
        view.closed.intersection_update(id for id, _ in self.shared.items())
        before, now = view.told, self.listed(view, agreed.policy)
        if view.registered:
            view.told = now
            _tell_change(session, before, now)
        elif any(agreed.policy.enabled(kind.feature_set.name) for kind in self.types):
            # A host that enables nothing before it has decided is told when it has.
            view.registered, view.told = True, now
            if now:
                session.engine.spawn(_register(session, list(now.values())))

    def _sessions(self) -> list[Session]:
        return list(self.mcpl.composition.sessions) if self.mcpl.composition is not None else []


def _tell_change(session: Session, before: dict[str, Params], now: dict[str, Params]) -> None:
    added = [wire for id, wire in now.items() if id not in before]
    removed = [id for id in before if id not in now]
    updated = [wire for id, wire in now.items() if id in before and before[id] != wire]
    if added or removed or updated:
        session.notify("channels/changed", {"added": added, "removed": removed, "updated": updated})


async def _register(session: Session, channels: list[Params]) -> None:
    try:
        await session.request("channels/register", {"channels": channels}, timeout=session.composition.limits.callback)
    except PeerError as error:
        import logging

        # It can still ask with channels/list.
        logging.getLogger("defserve").warning("channels/register: %s", error)


def _agreed(session: Session) -> Live | None:
    found = session.terms.states.get("mcpl") if session.terms is not None else None
    return found if isinstance(found, Live) else None


def _registers(agreed: Live) -> bool:
    """Whether a host wants to know: some say `channels: true`, others in detail."""
    found = agreed.offered.get("channels")
    return agreed.offers("channels") and (not is_object(found) or found.get("register") is not False)
