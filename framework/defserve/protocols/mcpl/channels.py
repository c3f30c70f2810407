"""MCPL §14: channels. Which there are for a host, what it was told of them, and what it does with them.

A channel that the author adds is shared by all hosts. One that a host opens belongs to its session alone, and without a
session there is nobody it could belong to: there, only what is shared can be opened, published to and listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from defserve.core.call import Call
from defserve.core.profile import mask
from defserve.core.registry import Registry
from defserve.core.session import Session
from defserve.errors import InvalidParams, PeerError, Refused, ToolError, UsageError
from defserve.jsonvalue import is_array, is_object
from defserve.protocols.mcp.params import text
from defserve.protocols.mcpl import content, peers
from defserve.protocols.mcpl.channel_handlers import Lanes, unanswered
from defserve.protocols.mcpl.channel_type import THINKING, WATCHING, ChannelType
from defserve.protocols.mcpl.channel_values import Channel
from defserve.protocols.mcpl.errors import ChannelNotPermitted, ChannelOpenFailed, LiveRefusal, UnknownChannel
from defserve.protocols.mcpl.feature_sets import FeatureSet, Live, Policy, is_enabled, is_stateless, policy, require
from defserve.protocols.mcpl.globs import glob
from defserve.protocols.mcpl.section import Section
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.extension import MCPL

# What one session may have opened, and a host may tell of its own.
MOST_CHANNELS = 1_000


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


class Channels(Section):
    """The channels of a server."""

    def __init__(self, mcpl: MCPL) -> None:
        super().__init__(mcpl)
        self.types: Registry[ChannelType] = Registry("type of channels")
        self.shared: Registry[Held] = Registry("channel")

    # -- declaring ---------------------------------------------------------------------------------------

    def declare(self, type: str, feature_set: FeatureSet) -> ChannelType:
        """Channels of a type. Raises UsageError where there are such already."""
        if not type:
            raise UsageError("channels have no type", fix='server.channels("discord", feature_set=…)')
        if feature_set.mcpl is not self.mcpl:
            raise UsageError(
                f"channels {type!r}: feature set {feature_set.name!r} is of another server",
                fix="declare both on one server",
            )
        made = ChannelType(self, type, feature_set)
        self.types.add(type, made)
        # Whatever else it does, it may deliver what comes in.
        feature_set.use("channels.observe")
        return made

    def capability(self) -> Params:
        """What is advertised (§14.1)."""
        declared = {verb for kind in self.types for verb in kind.functions if not kind.feature_set.removed}
        return {
            "register": True,
            "publish": "publish" in declared,
            "observe": not declared.isdisjoint(WATCHING),
            "lifecycle": "open" in declared,
            "streaming": "observe_chunks" in declared,
        }

    def add(self, kind: ChannelType, channel: Channel) -> None:
        self.shared.add(channel.id, Held(kind, channel))
        self._follow_all()

    def remove(self, kind: ChannelType, id: str) -> None:
        self._own(kind, id)
        self.shared.remove(id)
        self._follow_all()

    def update(self, kind: ChannelType, channel: Channel) -> None:
        views = [view for session in self._sessions() if (view := session.peek(View)) is not None]
        # Two hosts may have opened different channels of one id: the address tells them apart.
        opened = [view for view in views if (held := view.opened.get(channel.id)) and _same(held, kind, channel)]
        for view in opened:
            view.opened[channel.id] = Held(kind, channel)
        if not opened:
            self._own(kind, channel.id)
            self.shared.add(channel.id, Held(kind, channel), replace=True)
        self._follow_all()

    def _own(self, kind: ChannelType, id: str) -> None:
        held = self.shared.get(id)
        if held is not None and held.kind is not kind:
            raise UsageError(f"channel {id!r} is one of {held.kind.name}, not of {kind.name}")
        if held is None:
            self.shared.remove(id)  # which says what there is instead

    # -- what a host has ---------------------------------------------------------------------------------

    def held(self, session: Session, id: str) -> Held | None:
        """A channel of this session, whatever its host has enabled."""
        return _held(self.shared, session.peek(View), id)

    def permits(self, found: Policy, kind: ChannelType, label: str) -> bool:
        """Whether a host's scopes let a channel be used (§14.5). The blacklist counts first."""
        lists = found.scoping(kind.feature_set.name)
        if any(glob(pattern).matches(label) for pattern in lists.blacklist):
            return False
        return not lists.whitelist or any(glob(pattern).matches(label) for pattern in lists.whitelist)

    def can(self, peer: peers.Peer) -> bool:
        """Whether messages of some type could be delivered to this peer, be it into an inbox."""
        for kind in self.types:
            problem = peers.obstacle(peer, kind.feature_set, "incoming", "channels")
            has_inbox = kind.feature_set.inbox is not None and not peer.session.is_crowd
            if problem is None or (isinstance(problem, peers.NoBackChannel) and has_inbox):
                return True
        return False

    def _listed(self, view: View | None, found: Policy) -> dict[str, Params]:
        """The descriptors of what a host has and has enabled, by id."""
        mine = view or View()
        shared = {id: held for id, held in self.shared.items() if id not in mine.closed}
        return {
            id: held.wire()
            for id, held in (shared | mine.opened).items()
            if not held.kind.feature_set.removed and found.enabled(held.kind.feature_set.name)
        }

    def _usable(self, call: Call, id: str) -> Held:
        """A channel to do something with. Raises what stands in the way."""
        if _is_thinking(id):
            raise ChannelNotPermitted(id)  # §14.5: it can only be watched
        held = _held(self.shared, _view(call), id)
        if held is None:
            raise UnknownChannel(id)
        require(call, held.kind.feature_set)
        if not self.permits(policy(call), held.kind, id):
            raise ChannelNotPermitted(id)
        return held

    # -- telling hosts -----------------------------------------------------------------------------------

    def session_ready(self, session: Session) -> None:
        self._follow(session)

    def policy_changed(self, session: Session) -> None:
        self._follow(session)

    def removed(self, feature_set: FeatureSet) -> None:
        self._follow_all()

    def _sessions(self) -> list[Session]:
        return list(self.mcpl.composition.sessions) if self.mcpl.composition is not None else []

    def _follow_all(self) -> None:
        for session in self._sessions():
            if not session.engine.ready:
                continue
            if session.engine.on_loop():
                self._follow(session)
            else:
                session.engine.post(lambda session=session: self._follow(session))

    def _follow(self, session: Session) -> None:
        """Tell a host what has changed for it: all there is when it is ready, later the differences."""
        agreed = _agreed(session)
        if agreed is None or not session.ready or session.closed or not _wants(agreed, "register"):
            return
        view = session.local(View)
        before, now = view.told, self._listed(view, agreed.policy)
        if not view.registered:
            # A host that enables nothing before it has decided is told when it has.
            view.registered = any(agreed.policy.enabled(kind.feature_set.name) for kind in self.types)
            view.told = now
            if now:
                session.engine.spawn(_register(session, list(now.values())))
            return
        view.told = now
        added = [wire for id, wire in now.items() if id not in before]
        removed = [id for id in before if id not in now]
        updated = [wire for id, wire in now.items() if id in before and before[id] != wire]
        if added or removed or updated:
            session.notify("channels/changed", {"added": added, "removed": removed, "updated": updated})

    async def of_host(self, kind: ChannelType, to: peers.To) -> list[Channel]:
        """`channels/list`, asked of a host. Raises PeerError for an answer that is no list."""
        found = peers.addressed(
            self.mcpl,
            "host_channels",
            to,
            lambda peer: peers.obstacle(peer, kind.feature_set, "host_channels", "channels"),
        )
        told: list[Channel] = []
        for peer in found:
            asking = peer.request("channels/list", {}, timeout=peer.session.composition.limits.callback)
            answer = await peers.on_its_loop(peer.session, asking)
            listed = answer.get("channels") if is_object(answer) else None
            if not is_array(listed):
                raise PeerError("the host's answer to channels/list has the wrong shape", code=0)
            told += [Channel.read(one) for one in listed[:MOST_CHANNELS]]
        return told

    # -- what hosts ask ----------------------------------------------------------------------------------

    async def known(self, call: Call, params: Params) -> Params:
        """`channels/list`: what this host has."""
        return {"channels": [*self._listed(_view(call), policy(call)).values()]}

    async def open(self, call: Call, params: Params) -> Params:
        """`channels/open`: by type and address, or, for a channel there is, by its id."""
        if "type" not in params and "channelId" in params:
            return self._reopen(call, text(params, "channelId"))
        kind = self.types.get(text(params, "type"))
        if kind is None:
            raise ChannelOpenFailed(f"there are no channels of type {params['type']!r:.80}")
        require(call, kind.feature_set)
        shared = self._shared_at(kind, params.get("address"))
        if shared is not None:
            return self._reopen(call, shared.channel.id)
        if is_stateless(call):
            raise ChannelOpenFailed("without a session only the channels in channels/list can be used")
        if len(call.session.local(View).opened) >= MOST_CHANNELS:
            raise ChannelOpenFailed(f"a session has at most {MOST_CHANNELS} channels open")
        held = Held(kind, await self._opened(call, kind, params))
        await self._check_opened(call, held)
        view = call.session.local(View)
        view.opened[held.channel.id] = held
        view.told[held.channel.id] = held.wire()
        return {"channel": held.wire()}

    def _reopen(self, call: Call, id: str) -> Params:
        """A channel there is, also one that this host has closed for itself."""
        view = _view(call)
        if view is not None and id in self.shared:
            view.closed.discard(id)
        held = self._usable(call, id)
        if view is not None:
            view.told[id] = held.wire()
        return {"channel": held.wire()}

    def _shared_at(self, kind: ChannelType, address: Any) -> Held | None:
        if address is None:
            return None
        return next((held for held in self.shared if held.kind is kind and held.wire().get("address") == address), None)

    async def _opened(self, call: Call, kind: ChannelType, params: Params) -> Channel:
        """What the author's function opened. Raises ChannelOpenFailed with a reason that may be told."""
        function = kind.functions.get("open")
        if function is None:
            raise ChannelOpenFailed(f"{kind.name} cannot be opened")
        given = {name: params[name] for name in ("address", "metadata") if params.get(name) is not None}
        try:
            taken = {p.wire_name for p in function.function.signature.parameters}
            values = function.function.arguments.validate({n: v for n, v in given.items() if n in taken})
            if function.scope is not None and not self.permits(policy(call), kind, function.scope(values["address"])):
                raise ChannelNotPermitted(function.scope(values["address"]))
            channel = await function.run(call, kind, values)
            if not isinstance(channel, Channel):
                raise TypeError(f"{function.function.signature.name} gave {channel!r:.80}, not a Channel")
        except LiveRefusal:
            raise
        except (ToolError, Refused, PeerError) as error:
            raise ChannelOpenFailed(error.message) from error
        except Exception as error:
            raise ChannelOpenFailed(mask(call, error)) from error
        return channel

    async def _check_opened(self, call: Call, held: Held) -> None:
        """Close again what its host may not have, or is no longer there to have."""
        id = held.channel.id
        if not call.session.closed and is_enabled(call, held.kind.feature_set):
            if self.permits(policy(call), held.kind, id) and not _is_thinking(id):
                return
        await self._run_close(call, held)
        require(call, held.kind.feature_set)
        raise ChannelNotPermitted(id)

    async def close(self, call: Call, params: Params) -> Params:
        """`channels/close`. A shared channel is closed for this host only."""
        id = text(params, "channelId")
        view, held = _view(call), _held(self.shared, _view(call), id)
        if held is None:
            raise UnknownChannel(id)
        require(call, held.kind.feature_set)
        if view is None:
            return {"closed": False}
        if id not in view.opened:
            view.closed.add(id)
        elif await self._run_close(call, held) is False:
            return {"closed": False}
        view.opened.pop(id, None)
        view.told.pop(id, None)
        return {"closed": True}

    async def _run_close(self, call: Call, held: Held) -> Any:
        function = held.kind.functions.get("close")
        return await function.run(call, held.kind, {"channel": held.channel}) if function is not None else None

    async def publish(self, call: Call, params: Params) -> Params:
        """`channels/publish` as a request: when it is answered, the author's function has delivered it."""
        import asyncio

        # An eager task would overtake the notifications that came before it.
        await asyncio.sleep(0)
        id = text(params, "channelId")
        async with _lanes(call).turn(("publish", id)):
            return await self._publish(call, id, params)

    async def _publish(self, call: Call, id: str, params: Params) -> Params:
        held = self._usable(call, id)
        function = held.kind.functions.get("publish")
        if function is None or held.channel.direction == "inbound":
            raise ChannelNotPermitted(id)
        stream = params.get("stream") is True
        outcome = await function.run(call, held.kind, _content(held.channel, params) | {"stream": stream})
        if outcome is False:
            return {"delivered": False}
        return {"delivered": True} | ({"messageId": outcome} if isinstance(outcome, str) else {})

    # -- what hosts tell ---------------------------------------------------------------------------------

    async def published(self, session: Session, params: Params) -> None:
        """`channels/publish` as a notification: what becomes of it is in the log."""
        call = unanswered(session, "channels/publish", params)
        if call is None or _overrun(call):
            return
        try:
            id = text(params, "channelId")
            async with _lanes(call).turn(("publish", id)):
                await self._publish(call, id, params)
        except Exception as error:
            _log_failure(call, error)

    async def outgoing(self, session: Session, params: Params) -> None:
        """`channels/outgoing/complete`."""
        await self._observed(session, "channels/outgoing/complete", "observe", params)

    async def outgoing_chunk(self, session: Session, params: Params) -> None:
        """`channels/outgoing/chunk`."""
        await self._observed(session, "channels/outgoing/chunk", "observe_chunks", params)

    async def _observed(self, session: Session, method: str, verb: str, params: Params) -> None:
        call = unanswered(session, method, params)
        if call is None or _overrun(call):
            return
        try:
            id = text(params, "channelId")
            async with _lanes(call).turn(("observe", id)):
                for kind, channel in self._observers(call, verb, id):
                    values = _chunk(channel, params) if verb == "observe_chunks" else _content(channel, params)
                    await kind.functions[verb].run(call, kind, values)
        except Exception as error:
            _log_failure(call, error)

    def _observers(self, call: Call, verb: str, id: str) -> Iterator[tuple[ChannelType, Channel]]:
        """Who watches a channel, be it one of ours or of the host's own."""
        held = _held(self.shared, _view(call), id)
        channel = held.channel if held is not None else Channel(id, direction="outbound")
        for kind in self.types:
            concerned = kind.watches(id) or (held is not None and held.kind is kind)
            if concerned and verb in kind.functions and is_enabled(call, kind.feature_set):
                if self.permits(policy(call), kind, id):
                    yield kind, channel

    # -- the end -----------------------------------------------------------------------------------------

    def session_closed(self, session: Session) -> None:
        view = session.peek(View)
        if view is not None and view.opened and session.engine.ready:
            opened, view.opened = list(view.opened.values()), {}
            session.engine.spawn(self._close_all(session, opened))

    async def _close_all(self, session: Session, opened: list[Held]) -> None:
        for held in opened:
            call = unanswered(session, "channels/close", {"channelId": held.channel.id})
            try:
                if call is not None:
                    await self._run_close(call, held)
            except Exception as error:
                assert call is not None
                _log_failure(call, error)


async def _register(session: Session, channels: list[Params]) -> None:
    try:
        await session.request("channels/register", {"channels": channels}, timeout=session.composition.limits.callback)
    except PeerError as error:
        import logging

        # It can still ask with channels/list.
        logging.getLogger("defserve").warning("channels/register: %s", error)


def _view(call: Call) -> View | None:
    """What the host of this call has; None where there is no session to remember it."""
    return None if is_stateless(call) else call.session.local(View)


def _held(shared: Registry[Held], view: View | None, id: str) -> Held | None:
    if view is not None and id in view.opened:
        return view.opened[id]
    return shared.get(id) if view is None or id not in view.closed else None


def _same(held: Held, kind: ChannelType, channel: Channel) -> bool:
    return held.kind is kind and held.channel.address == channel.address


def _agreed(session: Session) -> Live | None:
    found = session.terms.states.get("mcpl") if session.terms is not None else None
    return found if isinstance(found, Live) else None


def _wants(agreed: Live, what: str) -> bool:
    """Whether a host takes part: some say `channels: true`, others in detail."""
    found = agreed.offered.get("channels")
    return agreed.offers("channels") and (not is_object(found) or found.get(what) is not False)


def _is_thinking(id: str) -> bool:
    return id == THINKING or id.startswith(f"{THINKING}:")


def _content(channel: Channel, params: Params) -> dict[str, Any]:
    parts = content.read(params.get("content"))
    return {
        "channel": channel,
        "content": parts,
        "text": "".join(part.text for part in parts if isinstance(part, content.Text)),
        **_about(params),
    }


def _chunk(channel: Channel, params: Params) -> dict[str, Any]:
    index = params.get("index")
    if not isinstance(index, int):
        raise InvalidParams("Invalid params: index must be an integer")
    return {"channel": channel, "delta": text(params, "delta"), "index": index, **_about(params)}


def _about(params: Params) -> Mapping[str, Any]:
    members = {"conversation_id": "conversationId", "inference_id": "inferenceId"}
    return {name: params[member] if isinstance(params.get(member), str) else None for name, member in members.items()}


def _lanes(call: Call) -> Lanes:
    return call.session.local(Lanes)


def _overrun(call: Call) -> bool:
    """Whether a host tells more than its channels can take; what it then tells is left out."""
    if not _lanes(call).full:
        return False
    import logging

    logging.getLogger("defserve").warning("%s: left out, for too much waits already", call.method)
    return True


def _log_failure(call: Call, error: Exception) -> None:
    if not isinstance(error, InvalidParams | LiveRefusal | ToolError):
        mask(call, error)
        return
    import logging

    logging.getLogger("defserve").warning("%s: %s", call.title, error)
