"""MCPL §14.3: what hosts do with channels: list, open, close, publish and let them be observed.

What a host opens belongs to its session. Without a session there is nobody it could belong to: there, only what is
shared can be opened, published to and listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.core.profile import mask
from defserve.core.session import Session
from defserve.errors import InvalidParams, NoBackChannel, PeerError, Refused, ToolError, UsageError
from defserve.protocols.mcp.params import text
from defserve.protocols.mcpl import content, peers
from defserve.protocols.mcpl.channels.book import Book, Held, View, view_of
from defserve.protocols.mcpl.channels.handlers import Lanes, unanswered
from defserve.protocols.mcpl.channels.type import THINKING, WATCHING, ChannelType
from defserve.protocols.mcpl.channels.values import Channel
from defserve.protocols.mcpl.errors import ChannelNotPermitted, ChannelOpenFailed, LiveRefusal, UnknownChannel
from defserve.protocols.mcpl.feature_sets import FeatureSet
from defserve.protocols.mcpl.policies import Policy, is_enabled, is_stateless, policy, require
from defserve.protocols.mcpl.scopes.scopes import listed, normal
from defserve.protocols.mcpl.section import Section
from defserve.wire.jsonvalue import is_array, is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.extension import MCPL
    from defserve.protocols.mcpl.peers import Peer, To

# What one session may have opened, and a host may tell of its own.
MOST_CHANNELS = 1_000


class Channels(Section):
    """The channels of a server."""

    def __init__(self, mcpl: MCPL) -> None:
        super().__init__(mcpl)
        self.book = Book(mcpl)

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
        self.book.types.add(type, made)
        # Whatever else it does, it may deliver what comes in.
        feature_set.use("channels.observe")
        return made

    def capability(self) -> Params:
        """What is advertised (§14.1)."""
        declared = {verb for kind in self.book.types for verb in kind.functions}
        return {
            "register": True,
            "publish": "publish" in declared,
            "observe": not declared.isdisjoint(WATCHING),
            "lifecycle": "open" in declared,
            "streaming": "observe_chunks" in declared,
        }

    # -- sessions and sets -------------------------------------------------------------------------------

    def session_ready(self, session: Session) -> None:
        self.book.follow(session)

    def policy_changed(self, session: Session) -> None:
        self.book.follow(session)

    def removed(self, feature_set: FeatureSet) -> None:
        gone = self.book.forget(feature_set)
        self.book.for_all(lambda session: self._close_gone(session, gone))

    def _close_gone(self, session: Session, gone: list[ChannelType]) -> None:
        view = session.peek(View)
        if view is not None:
            self._close_soon(session, [held for held in view.opened.values() if held.kind in gone])
            self.book.follow(session)

    def session_closed(self, session: Session) -> None:
        view = session.peek(View)
        if view is not None and session.engine.ready:
            self._close_soon(session, list(view.opened.values()))

    def _close_soon(self, session: Session, opened: list[Held]) -> None:
        if opened:
            for held in opened:
                session.local(View).opened.pop(held.channel.id)
            session.engine.spawn(self._close_all(session, opened))

    async def _close_all(self, session: Session, opened: list[Held]) -> None:
        for held in opened:
            call = unanswered(session, "channels/close", {"channelId": held.channel.id})
            if call is not None:
                try:
                    await self._run_close(call, held)
                except Exception as error:
                    _log_failure(call, error)

    # -- rights ------------------------------------------------------------------------------------------

    def permits(self, found: Policy, kind: ChannelType, label: str) -> bool:
        """Whether a host's scopes let a channel be used (§14.5). The blacklist counts first."""
        lists = found.scoping(kind.feature_set.name)
        allowed = listed(lists, normal(label))
        return not lists.whitelist if allowed is None else allowed

    def _usable(self, call: Call, id: str, *, even_closed: bool = False) -> Held:
        """A channel to do something with. Raises what stands in the way."""
        if _is_thinking(id):
            raise ChannelNotPermitted(id)  # §14.5: it can only be watched
        held = self.book.held(view_of(call), id, even_closed=even_closed)
        if held is None:
            raise UnknownChannel(id)
        require(call, held.kind.feature_set)
        if not self.permits(policy(call), held.kind, id):
            raise ChannelNotPermitted(id)
        return held

    def can(self, peer: Peer) -> bool:
        """Whether messages of some type could be delivered to this peer, be it into an inbox."""
        for kind in self.book.types:
            problem = peers.obstacle(peer, kind.feature_set, "incoming", "channels")
            has_inbox = kind.feature_set.inbox is not None and not peer.session.is_shared_identity
            if problem is None or (isinstance(problem, NoBackChannel) and has_inbox):
                return True
        return False

    # -- listing, both ways ------------------------------------------------------------------------------

    async def known(self, call: Call, params: Params) -> Params:
        """`channels/list`: what this host has."""
        return {"channels": list(self.book.listed(view_of(call), policy(call)).values())}

    async def of_host(self, kind: ChannelType, to: To) -> list[Channel]:
        """`channels/list`, asked of a host. Raises PeerError for an answer that is no list of channels."""
        verb = "host_channels"
        found = peers.addressed(
            self.mcpl, verb, to, lambda peer: peers.obstacle(peer, kind.feature_set, verb, "channels")
        )
        told: list[Channel] = []
        for peer in found:
            asking = peer.request("channels/list", {}, timeout=peer.session.composition.limits.callback)
            told += _told(await peers.on_its_loop(peer.session, asking))
        return told

    # -- opening -----------------------------------------------------------------------------------------

    async def open(self, call: Call, params: Params) -> Params:
        """`channels/open`: by type and address, or, for a channel there is, by its id."""
        if "type" not in params and "channelId" in params:
            return self._reopen(call, text(params, "channelId"))
        kind = self.book.types.get(text(params, "type"))
        if kind is None:
            raise ChannelOpenFailed(f"there are no channels of type {params['type']!r:.80}")
        require(call, kind.feature_set)
        shared = self.book.shared_at(kind, params.get("address"))
        if shared is not None:
            return self._reopen(call, shared.channel.id)
        if is_stateless(call):
            raise ChannelOpenFailed("without a session only the channels in channels/list can be used")
        view = call.session.local(View)
        if len(view.opened) >= MOST_CHANNELS:
            raise ChannelOpenFailed(f"a session has at most {MOST_CHANNELS} channels open")
        held = Held(kind, await self._opened(call, kind, params))
        await self._check_opened(call, held)
        view.opened[held.channel.id] = held
        return {"channel": view.note(held)}

    def _reopen(self, call: Call, id: str) -> Params:
        """A channel there is, also one that this host has closed for itself."""
        view, held = view_of(call), self._usable(call, id, even_closed=True)
        if view is None:
            return {"channel": held.wire()}
        view.closed.discard(id)
        return {"channel": view.note(held)}

    async def _opened(self, call: Call, kind: ChannelType, params: Params) -> Channel:
        """What the author's function opened. Raises ChannelOpenFailed with a reason that may be told."""
        function = kind.functions.get("open")
        if function is None:
            raise ChannelOpenFailed(f"{kind.name} cannot be opened")
        try:
            values = function.validated(params)
            if function.scope is not None:
                label = function.scope(values.get("address"))
                if not self.permits(policy(call), kind, label):
                    raise ChannelNotPermitted(label)
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
        """Close again what this host may not have after all: only now the channel has an id."""
        id, kind = held.channel.id, held.kind
        permitted = self.permits(policy(call), kind, id) and not _is_thinking(id)
        if permitted and is_enabled(call, kind.feature_set):
            return
        await self._run_close(call, held)
        require(call, kind.feature_set)
        raise ChannelNotPermitted(id)

    # -- closing -----------------------------------------------------------------------------------------

    async def close(self, call: Call, params: Params) -> Params:
        """`channels/close`. A shared channel is closed for this host only."""
        id, view = text(params, "channelId"), view_of(call)
        held = self.book.held(view, id)
        if held is None:
            raise UnknownChannel(id)
        require(call, held.kind.feature_set)
        if view is None:
            return {"closed": False}
        if id in view.opened and await self._run_close(call, held) is False:
            return {"closed": False}
        view.opened.pop(id, None)
        view.told.pop(id, None)
        if id in self.book.shared:
            view.closed.add(id)
        return {"closed": True}

    async def _run_close(self, call: Call, held: Held) -> Any:
        function = held.kind.functions.get("close")
        return await function.run(call, held.kind, {"channel": held.channel}) if function is not None else None

    # -- publishing --------------------------------------------------------------------------------------

    async def publish(self, call: Call, params: Params) -> Params:
        """`channels/publish` as a request: when it is answered, the author's function has delivered it."""
        id = text(params, "channelId")
        async with _lanes(call).turn(("publish", id)):
            return await self._publish(call, id, params)

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

    async def _publish(self, call: Call, id: str, params: Params) -> Params:
        held = self._usable(call, id)
        function = held.kind.functions.get("publish")
        if function is None or held.channel.direction == "inbound":
            raise ChannelNotPermitted(id)
        values = _content(held.channel, params) | {"stream": params.get("stream") is True}
        outcome = await function.run(call, held.kind, values)
        if outcome is False:
            return {"delivered": False}
        return {"delivered": True} | ({"messageId": outcome} if isinstance(outcome, str) else {})

    # -- observing ---------------------------------------------------------------------------------------

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
        read = _content if verb == "observe" else _chunk
        try:
            id = text(params, "channelId")
            async with _lanes(call).turn(("observe", id)):
                for kind, channel in self._observers(call, verb, id):
                    await kind.functions[verb].run(call, kind, read(channel, params))
        except Exception as error:
            _log_failure(call, error)

    def _observers(self, call: Call, verb: str, id: str) -> Iterator[tuple[ChannelType, Channel]]:
        """Who watches a channel, be it one of ours or of the host's own."""
        held = self.book.held(view_of(call), id)
        channel = held.channel if held is not None else Channel(id, direction="outbound")
        for kind in self.book.types:
            concerned = kind.watches(id) or (held is not None and held.kind is kind)
            enabled = concerned and verb in kind.functions and is_enabled(call, kind.feature_set)
            if enabled and self.permits(policy(call), kind, id):
                yield kind, channel


def _told(answer: Any) -> list[Channel]:
    channels = answer.get("channels") if is_object(answer) else None
    try:
        if not is_array(channels):
            raise InvalidParams("channels must be a list")
        return [Channel.read(one) for one in channels[:MOST_CHANNELS]]
    except InvalidParams as error:
        raise PeerError(f"the host's answer to channels/list has the wrong shape: {error.message}", code=0) from None


def _is_thinking(id: str) -> bool:
    return id == THINKING or id.startswith(f"{THINKING}:")


def _content(channel: Channel, params: Params) -> dict[str, Any]:
    parts = content.read(params.get("content"))
    said = "".join(part.text for part in parts if isinstance(part, content.Text))
    return {"channel": channel, "content": parts, "text": said, **_about(params)}


def _chunk(channel: Channel, params: Params) -> dict[str, Any]:
    index = params.get("index")
    if not isinstance(index, int):
        raise InvalidParams("Invalid params: index must be an integer")
    return {"channel": channel, "delta": text(params, "delta"), "index": index, **_about(params)}


def _about(params: Params) -> dict[str, Any]:
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
