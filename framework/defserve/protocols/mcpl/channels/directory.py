"""MCPL §14.2–14.3: which channels each host has, and telling it (`channels/register`, `channels/changed`).

A channel that the author adds is shared by all hosts. One that a host opens belongs to its session alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from defserve.core.call import Call
from defserve.core.registry import Registry
from defserve.core.session import Session
from defserve.errors import MethodNotFound, PeerError, UsageError
from defserve.protocols.mcpl.channels.kind import ChannelKind
from defserve.protocols.mcpl.channels.values import Channel
from defserve.protocols.mcpl.peers import Peer
from defserve.protocols.mcpl.policies import FeaturePolicy, LiveTerms, agreed, is_stateless
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    import logging

    from defserve.protocols.mcpl.feature import Feature
    from defserve.protocols.mcpl.section import LiveServer

CHANGED = "channels/changed"
# How what is kept of a session is named.
REGISTERED, OPENED, CLOSED, REFUSED = "registered", "opened:", "closed:", "refused:"
KEPT = (OPENED, CLOSED, REFUSED)


class HeldChannel(NamedTuple):
    """A channel, and the type it was declared with."""

    kind: ChannelKind
    channel: Channel

    def wire(self) -> Params:
        described, capabilities = self.channel.wire(self.kind.type), self.kind.capabilities
        return {**described, "capabilities": capabilities} if capabilities else described


class SessionChannels:
    """The channels of one host: those it opened, the shared ones it closed, what it was told, and what it refused.

    `closing` are those it opened whose author's function is closing them now.
    """

    __slots__ = ("opened", "closing", "closed", "told", "registered", "refused")

    def __init__(self) -> None:
        self.opened: dict[str, HeldChannel] = {}
        self.closing: dict[str, HeldChannel] = {}
        self.closed: set[str] = set()
        self.told: dict[str, Params] = {}
        self.registered = False
        self.refused: set[str] = set()

    def note(self, held: HeldChannel) -> Params:
        """The descriptor of a channel that this host asked for. It counts as told."""
        self.told[held.channel.id] = wire = held.wire()
        self.refused.discard(held.channel.id)
        return wire

    def kept(self) -> Params:
        """All of it as JSON, for another process: a name for each channel."""
        found: Params = {REGISTERED: True} if self.registered else {}
        found |= {f"{OPENED}{id}": [held.kind.type, held.channel.written()] for id, held in self.opened.items()}
        found |= {f"{CLOSED}{id}": True for id in self.closed}
        return found | {f"{REFUSED}{id}": True for id in self.refused}

    def opened_at(self, kind: ChannelKind, address: object) -> HeldChannel | None:
        """The channel that this host opened with an address, in the form of the wire."""
        return _at(self.opened.values(), kind, address)

    def judge(self, ids: Iterable[str], answer: Any, *, strictly: bool) -> bool:
        """Note which channels the host refuses, by its answer. False if the answer says nothing about them.

        `strictly`: a channel that the answer leaves out is refused.
        """
        told = answer if is_object(answer) else {}
        results, registered = told.get("results"), told.get("registered")
        if is_array(results):
            verdicts = {one.get("id"): one.get("accepted") is True for one in results if is_object(one)}
        elif is_array(registered):
            verdicts, strictly = {id: True for id in registered if isinstance(id, str)}, True
        else:
            return False
        for id in ids:
            (self.refused.discard if verdicts.get(id, not strictly) else self.refused.add)(id)
        return True


def channels_of(call: Call) -> SessionChannels | None:
    """The channels of the host of a call; None without a session that could keep them."""
    return None if is_stateless(call) else call.session.local(SessionChannels)


class ChannelDirectory:
    """The channels of a server by id: the shared ones here, those of a session in its SessionChannels."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self.types: Registry[ChannelKind] = Registry("type of channels")
        self.shared: Registry[HeldChannel] = Registry("channel")

    # -- for authors, from any thread --------------------------------------------------------------------

    def add(self, kind: ChannelKind, channel: Channel) -> None:
        self.shared.add(channel.id, HeldChannel(kind, channel))
        self.follow_all()

    def remove(self, kind: ChannelKind, id: str) -> None:
        self._refuse_foreign(kind, id)
        self.shared.remove(id)
        self.follow_all()

    def update(self, kind: ChannelKind, channel: Channel) -> None:
        def same(view: SessionChannels) -> bool:
            # Two hosts may have opened different channels with one id: the address tells them apart.
            held = view.opened.get(channel.id)
            return held is not None and held.kind is kind and held.channel.address == channel.address

        opened = [
            view for one in self.server.sessions if (view := one.peek(SessionChannels)) is not None and same(view)
        ]
        for view in opened:
            view.opened[channel.id] = HeldChannel(kind, channel)
        if not opened:
            self._refuse_foreign(kind, channel.id)
            self.shared.add(channel.id, HeldChannel(kind, channel), replace=True)
        self.follow_all()

    def forget(self, feature_set: Feature) -> list[ChannelKind]:
        """Drop the types of a set and their shared channels. The caller closes what hosts have opened."""
        gone = [kind for kind in self.types if kind.feature_set is feature_set]
        for id, held in self.shared.items():
            if held.kind in gone:
                self.shared.remove(id)
        for kind in gone:
            self.types.remove(kind.type)
        return gone

    def _refuse_foreign(self, kind: ChannelKind, id: str) -> None:
        if (held := self.shared.get(id)) is None:
            raise UsageError(f"there is no channel {id!r} among {kind.name}", fix="add it first")
        if held.kind is not kind:
            raise UsageError(f"channel {id!r} is one of {held.kind.name}, not of {kind.name}")

    # -- looking up --------------------------------------------------------------------------------------

    def held(self, view: SessionChannels | None, id: str, *, even_closed: bool = False) -> HeldChannel | None:
        """A channel of a host, enabled or not. `even_closed`: also one that the host closed for itself."""
        if view is not None and id in view.opened:
            return view.opened[id]
        return self.shared.get(id) if view is None or even_closed or id not in view.closed else None

    def shared_at(self, kind: ChannelKind, address: object) -> HeldChannel | None:
        """The shared channel with an address, in the form of the wire."""
        return _at(self.shared, kind, address)

    def listed(self, view: SessionChannels | None, found: FeaturePolicy) -> dict[str, Params]:
        """The descriptors of the channels that a host has and has enabled, by id."""
        closed, opened = (view.closed, view.opened) if view is not None else (set[str](), dict[str, HeldChannel]())
        mine = {id: held for id, held in self.shared.items() if id not in closed} | opened
        return {id: held.wire() for id, held in mine.items() if found.allows(held.kind.feature_set)}

    def restore(self, session: Session, kept: Mapping[str, Any]) -> None:
        """What another process has kept of a session's channels. None is opened or closed by this."""
        names = {prefix: {n.removeprefix(prefix) for n in kept if n.startswith(prefix)} for prefix in KEPT}
        if session.peek(SessionChannels) is None and not any(names.values()) and REGISTERED not in kept:
            return
        view, live = session.local(SessionChannels), agreed(session.terms)
        view.closed, view.refused = names[CLOSED], names[REFUSED]
        view.opened = {id: held for id, held in view.opened.items() if id in names[OPENED]}
        for id in names[OPENED] - view.opened.keys() - view.closing.keys():
            type, written = kept[f"{OPENED}{id}"]
            if (kind := self.types.get(type)) is not None:
                view.opened[id] = HeldChannel(kind, kind.remembered(written))
        if kept.get(REGISTERED) and not view.registered and live is not None:
            view.registered, view.told = True, self.listed(view, live.policy)

    # -- telling -----------------------------------------------------------------------------------------

    def follow_all(self) -> None:
        """`follow` for every host. From any thread."""
        self.server.for_each_session(self.follow)

    def follow(self, session: Session) -> None:
        """Tell a host what has changed for it: everything when it is ready, later the differences."""
        live = agreed(session.terms)
        if live is None or not session.ready or session.closed:
            return
        view = session.local(SessionChannels)
        if not _registers(live):
            view.registered, view.told = False, {}
            return
        view.closed.intersection_update(id for id, _ in self.shared.items())
        before, now = view.told, self.listed(view, live.policy)
        if view.registered:
            view.told = now
            _tell_change(session, live, before, now)
        elif any(live.policy.allows(kind.feature_set) for kind in self.types):
            # A host that starts with nothing enabled is told after its first update.
            view.registered, view.told = True, now
            session.kept_changed()
            if now:
                session.engine.spawn(_tell(session, live, "channels/register", {"channels": list(now.values())}))


def _at(channels: Iterable[HeldChannel], kind: ChannelKind, address: object) -> HeldChannel | None:
    if address is None:
        return None
    return next((held for held in channels if held.kind is kind and held.wire().get("address") == address), None)


def _tell_change(session: Session, live: LiveTerms, before: dict[str, Params], now: dict[str, Params]) -> None:
    added = [wire for id, wire in now.items() if id not in before]
    removed = [id for id in before if id not in now]
    updated = [wire for id, wire in now.items() if id in before and before[id] != wire]
    if not (added or removed or updated):
        return
    change: Params = {"added": added, "removed": removed, "updated": updated}
    session.local(SessionChannels).refused.difference_update(removed)
    if live.vocabulary.verdicts:
        session.engine.spawn(_tell(session, live, CHANGED, change))
    else:
        session.notify(CHANGED, change)


async def _tell(session: Session, live: LiveTerms, method: str, params: Params) -> None:
    """Tell a host of channels by a request, and note which of them it refuses."""
    told: list[Params] = [one for member in ("channels", "added", "updated") for one in params.get(member, ())]
    timeout = session.composition.limits.callback
    try:
        answer = await Peer(session).try_request("channels.register", method, params, timeout=timeout)
    except PeerError as error:
        if method == CHANGED and error.code == MethodNotFound.code:
            session.notify(CHANGED, params)
        else:  # the host can still ask with channels/list
            _log().warning("%s: %s", method, error)
        return
    strictly = live.vocabulary.verdicts
    if not session.local(SessionChannels).judge([one["id"] for one in told], answer, strictly=strictly) and strictly:
        _log().warning("%s: the host does not say which channels it accepts", method)


def _log() -> logging.Logger:
    import logging

    return logging.getLogger("defserve")


def _registers(live: LiveTerms) -> bool:
    """Whether a host wants to be told. Some offer `channels: true`, others the details; hosts of 0.5 grant it."""
    found = live.offered.get("channels")
    is_refused = not live.vocabulary.by_grant and is_object(found) and found.get("register") is False
    return live.offers("channels.register") and not is_refused
