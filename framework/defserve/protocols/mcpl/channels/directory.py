"""MCPL §14: channels of one type as authors use them, which of them each host has, and the messages that come in.

A channel that the author adds is shared by all hosts. One that a host opens belongs to its session alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from defserve.base.redaction import get_logger
from defserve.binding.signature import find_source_location, get_function_name
from defserve.core.call import Call
from defserve.core.json_values import is_array, is_object
from defserve.core.messages import Params
from defserve.core.registry import Registry
from defserve.core.session import Session
from defserve.errors import InvalidParams, MethodNotFound, NoBackChannel, PeerError, Refused, UsageError
from defserve.protocols.mcpl import peers
from defserve.protocols.mcpl.channels.messages import (
    MAX_CHANNELS,
    OBSERVE_ONLY_CHANNELS,
    OBSERVING_VERBS,
    USES_BY_VERB,
    Channel,
    ChannelTypeBase,
    ChannelVerbFunction,
    MessageReceipt,
    ReceivedMessage,
    read_channel,
    read_message_receipts,
)
from defserve.protocols.mcpl.peers import (
    Peer,
    To,
    everyone,
    find_send_obstacle,
    load_sessions_elsewhere,
    run_on_session_loop,
    select_peers,
)
from defserve.protocols.mcpl.policies import FeaturePolicy, McplTerms, get_mcpl_terms, is_stateless_call
from defserve.protocols.mcpl.section import make_registering_decorator
from defserve.protocols.mcpl.vocabulary import ChannelNotPermitted, UnknownChannel

if TYPE_CHECKING:
    from defserve.protocols.mcpl.section import FeatureSetBase, McplServerState


INCOMING = "incoming"
F = TypeVar("F", bound=Callable[..., Any])


class ChannelDecorator:
    """A decorator of a channel type: `@chat.publish`, `@chat.publish(timeout=5)`. Returns the function unchanged."""

    __slots__ = ("_kind", "_verb")

    def __init__(self, kind: ChannelType, verb: str) -> None:
        self._kind, self._verb = kind, verb

    # used bare: @chat.open
    @overload
    def __call__(self, function: F, /) -> F: ...
    # used with options: @chat.open(timeout=5)
    @overload
    def __call__(
        self, /, *, timeout: float | None = None, scope: Callable[[Any], str] | None = None
    ) -> Callable[[F], F]: ...
    def __call__(
        self, function: Any = None, /, *, timeout: float | None = None, scope: Callable[[Any], str] | None = None
    ) -> Any:
        if scope is not None and self._verb != "open":
            raise UsageError(f"{self._verb} needs no scope: a channel's id is its label", fix="leave scope= out")
        return make_registering_decorator(function, lambda made: self._kind.declare(self._verb, made, timeout, scope))


class ChannelType(ChannelTypeBase):
    """Channels of one type; made by `server.channels`.

    Channels that the author adds are shared by all hosts. A channel that a host opens belongs to its session: no other
    session can see, use or close it, and it is closed with the session. A host that closes a shared channel closes it
    for itself.

    Functions take what they need by name, besides Context and dependencies:

    - `open(address, metadata)` returns a Channel. `address` is validated against its annotation. Raise
      ChannelOpenFailed with a reason for the host. `scope` returns the label of an address, so that the host's scopes
      are checked before anything is opened, and not only with the id that the channel gets.
    - `close(channel)`, when a host closes a channel: one that it opened, or, for itself, a shared one. A channel that
      a host opened is closed with its session, too. False leaves it open.
    - `publish(channel, content, text, conversation_id, stream)` returns the message's id. False means undelivered.
    - `observe(channel, content, text, conversation_id, inference_id)` sees what a host sends to a channel, and
      `observe_chunks(channel, delta, index, conversation_id, inference_id)` sees it grow. They see channels of this
      type, including the host's own. The type `*` sees all channels, `thinking` the model's thoughts.
    - `history(channel, limit, before, since_last_seen)` returns the latest Messages of a channel that a host opens,
      the oldest first, or a ChannelHistory. `before` is the id of a message, `since_last_seen` a bool.
    - `acknowledge(channel, message_id, intent, value)` marks a message, such as with a reaction. It may return how the
      service shows that, as text. False means that it did not.
    - `typing(channel, active, metadata)` shows that the model writes, or has stopped.
    """

    def __init__(self, directory: ChannelDirectory, type: str, feature_set: FeatureSetBase) -> None:
        super().__init__(type, feature_set)
        self._directory = directory
        self.open = ChannelDecorator(self, "open")
        self.close = ChannelDecorator(self, "close")
        self.publish = ChannelDecorator(self, "publish")
        self.observe = ChannelDecorator(self, "observe")
        self.observe_chunks = ChannelDecorator(self, "observe_chunks")
        self.acknowledge = ChannelDecorator(self, "acknowledge")
        self.typing = ChannelDecorator(self, "typing")
        self.history = ChannelDecorator(self, "history")

    def declare(
        self, verb: str, function: Callable[..., Any], timeout: float | None, scope: Callable[[Any], str] | None
    ) -> None:
        """Add the function for a verb. Raises UsageError for one that does not fit, and for a second one."""
        if verb in self.functions:
            raise UsageError(
                f"{self.name} have a function for {verb} already: {self.functions[verb].function.signature.name}",
                where=find_source_location(function),
                fix=f"declare {get_function_name(function)} on channels of another type",
            )
        if self.type in OBSERVE_ONLY_CHANNELS and verb not in OBSERVING_VERBS:
            raise UsageError(
                f"{self.name} can only be observed, not {verb}",
                where=find_source_location(function),
                fix="use @….observe",
            )
        self.functions[verb] = ChannelVerbFunction(verb, function, self._directory.server.find_provider, timeout, scope)
        self.feature_set.record_declaration(*USES_BY_VERB.get(verb, ()))

    # -- verbs -------------------------------------------------------------------------------------------

    def add(self, channel: Channel) -> None:
        """Offer a channel to all hosts, also while serving. They are told. From any thread."""
        if self.type in OBSERVE_ONLY_CHANNELS:
            raise UsageError(f"{self.name} can only be observed", fix="declare channels of a type of your own")
        self._directory.add(self, _check_channel(channel))

    def remove(self, id: str) -> None:
        """Take back a channel that was added. Hosts are told. From any thread."""
        self._directory.remove(self, id)

    def update(self, channel: Channel) -> None:
        """Change the description of a channel that was added or opened. Its hosts are told. From any thread."""
        self._directory.update(self, _check_channel(channel))

    async def incoming(
        self, messages: ReceivedMessage | Sequence[ReceivedMessage], *, to: To = None
    ) -> list[MessageReceipt]:
        """Deliver messages to the hosts that have their channels. Returns one receipt each, in order.

        Inside a call or handler, that is its session. Outside, a message goes to the only session that has its channel
        (for a Channel with an address: the one with that address; else any channel with that id). If several have it,
        `to` says which: a session, a principal, or `everyone`, which returns a receipt from each. Raises AmbiguousPeer,
        FeatureDisabled, ChannelNotPermitted if the host's scopes forbid the channel, UnknownChannel, PeerError, and
        NoBackChannel if nobody can be reached and the set has no `inbox`.
        """

        given = [messages] if isinstance(messages, ReceivedMessage) else messages
        await load_sessions_elsewhere(self._directory.server, to)
        if to is everyone and (others := self._directory.server.others) is not None:
            others.publish(INCOMING, [self.type, [message.to_json_value() for message in given]])
        return await MessageDelivery(self._directory, self, given, to).deliver()

    async def host_channels(self, *, to: To = None) -> list[Channel]:
        """The channels that a host knows, of any type and any server. `to` as in `incoming`."""
        verb, told = "host_channels", list[Channel]()
        await load_sessions_elsewhere(self._directory.server, to)
        for peer in select_peers(
            self._directory.server,
            verb,
            to,
            lambda peer: find_send_obstacle(peer, self.feature_set, verb, "channels.register"),
        ):
            asking = peer.request("channels/list", {}, timeout=peer.session.composition.limits.callback)
            told += _channels_in(await run_on_session_loop(peer.session, asking))
        return told


def _check_channel(channel: object) -> Channel:
    if isinstance(channel, Channel):
        return channel
    fix = f'Channel("{channel}")' if isinstance(channel, str) else 'Channel("discord:#general", "#general")'
    raise UsageError(f"{channel!r:.80} is not a channel", fix=fix)


def _channels_in(answer: Any) -> list[Channel]:
    """A host's answer to `channels/list`. Raises PeerError for one that is no list of channels."""
    channels = answer.get("channels") if is_object(answer) else None
    try:
        if not is_array(channels):
            raise InvalidParams("channels must be a list")
        return [read_channel(one) for one in channels[:MAX_CHANNELS]]
    except InvalidParams as error:
        raise PeerError(f"the host's answer to channels/list has the wrong shape: {error.message}", code=0) from None


# -- MCPL §14.2–14.3: which channels each host has, and telling it (`channels/register`, `channels/changed`).
#
# A channel that the author adds is shared by all hosts. One that a host opens belongs to its session alone.


CHANNELS_CHANGED_METHOD = "channels/changed"

# How what is kept of a session is named.
REGISTERED, OPENED, CLOSED, REFUSED = "registered", "opened:", "closed:", "refused:"
KEPT = (OPENED, CLOSED, REFUSED)


class DeclaredChannel(NamedTuple):
    """A channel, and the type it was declared with."""

    kind: ChannelTypeBase
    channel: Channel

    def to_wire(self) -> Params:
        described, capabilities = self.channel.describe(self.kind.type), self.kind.capabilities
        return {**described, "capabilities": capabilities} if capabilities else described


@dataclass(slots=True, eq=False)
class SessionChannels:
    """The channels of one host: those it opened, the shared ones it closed, what it was told, and what it refused.

    `closing` are those it opened whose author's function is closing them now.
    """

    opened: dict[str, DeclaredChannel] = field(default_factory=dict[str, DeclaredChannel])
    closing: dict[str, DeclaredChannel] = field(default_factory=dict[str, DeclaredChannel])
    closed: set[str] = field(default_factory=set[str])
    told: dict[str, Params] = field(default_factory=dict[str, Params])
    registered: bool = False
    refused: set[str] = field(default_factory=set[str])

    def describe_and_mark_told(self, held: DeclaredChannel) -> Params:
        """The descriptor of a channel that this host asked for. It counts as told."""
        self.told[held.channel.id] = wire = held.to_wire()
        self.refused.discard(held.channel.id)
        return wire

    def export_state(self) -> Params:
        """All of it as JSON, for another process: a name for each channel."""
        found: Params = {REGISTERED: True} if self.registered else {}
        found |= {f"{OPENED}{id}": [held.kind.type, held.channel.to_json_value()] for id, held in self.opened.items()}
        found |= {f"{CLOSED}{id}": True for id in self.closed}
        return found | {f"{REFUSED}{id}": True for id in self.refused}

    def record_refusals(self, ids: Iterable[str], answer: Any, *, strictly: bool) -> bool:
        """Note which channels the host refuses, by its answer. False if the answer says nothing about them.

        `strictly`: a channel that the answer leaves out is refused.
        """
        told = answer if is_object(answer) else {}
        results, registered = told.get("results"), told.get("registered")
        if is_array(results):
            said = [one for one in results if is_object(one) and isinstance(one.get("id"), str)]
            verdicts = {one["id"]: one.get("accepted") is True for one in said}
        elif is_array(registered):
            verdicts, strictly = {id: True for id in registered if isinstance(id, str)}, True
        else:
            return False
        for id in ids:
            (self.refused.discard if verdicts.get(id, not strictly) else self.refused.add)(id)
        return True


def get_session_channels(call: Call) -> SessionChannels | None:
    """The channels of the host of a call; None without a session that could keep them."""
    return None if is_stateless_call(call) else call.session.local(SessionChannels)


class ChannelDirectory:
    """The channels of a server by id: the shared ones here, those of a session in its SessionChannels."""

    def __init__(self, server: McplServerState) -> None:
        self.server = server
        self.types: Registry[ChannelTypeBase] = Registry("type of channels")
        self.shared: Registry[DeclaredChannel] = Registry("channel")

    # -- for authors, from any thread --------------------------------------------------------------------

    def add(self, kind: ChannelTypeBase, channel: Channel) -> None:
        self.shared.add(channel.id, DeclaredChannel(kind, channel))
        self.notify_all_hosts()

    def remove(self, kind: ChannelTypeBase, id: str) -> None:
        self._refuse_foreign(kind, id)
        self.shared.remove(id)
        self.notify_all_hosts()

    def update(self, kind: ChannelTypeBase, channel: Channel) -> None:
        def same(view: SessionChannels) -> bool:
            # Two hosts may have opened different channels with one id: the address tells them apart.
            held = view.opened.get(channel.id)
            return held is not None and held.kind is kind and held.channel.address == channel.address

        opened = [
            view for one in self.server.sessions if (view := one.peek(SessionChannels)) is not None and same(view)
        ]
        for view in opened:
            view.opened[channel.id] = DeclaredChannel(kind, channel)
        if not opened:
            self._refuse_foreign(kind, channel.id)
            self.shared.add(channel.id, DeclaredChannel(kind, channel), replace=True)
        self.notify_all_hosts()

    def drop_feature_set_types(self, feature_set: FeatureSetBase) -> list[ChannelTypeBase]:
        """Drop the types of a set and their shared channels. The caller closes what hosts have opened."""
        gone = [kind for kind in self.types if kind.feature_set is feature_set]
        for id, held in self.shared.items():
            if held.kind in gone:
                self.shared.remove(id)
        for kind in gone:
            self.types.remove(kind.type)
        return gone

    def _refuse_foreign(self, kind: ChannelTypeBase, id: str) -> None:
        if (held := self.shared.get(id)) is None:
            raise UsageError(f"there is no channel {id!r} among {kind.name}", fix="add it first")
        if held.kind is not kind:
            raise UsageError(f"channel {id!r} is one of {held.kind.name}, not of {kind.name}")

    # -- looking up --------------------------------------------------------------------------------------

    def find_channel(
        self, view: SessionChannels | None, id: str, *, even_closed: bool = False
    ) -> DeclaredChannel | None:
        """A channel of a host, enabled or not. `even_closed`: also one that the host closed for itself."""
        if view is not None and id in view.opened:
            return view.opened[id]
        return self.shared.get(id) if view is None or even_closed or id not in view.closed else None

    def describe_channels(self, view: SessionChannels | None, found: FeaturePolicy) -> dict[str, Params]:
        """The descriptors of the channels that a host has and has enabled, by id."""
        closed, opened = (view.closed, view.opened) if view is not None else (set[str](), dict[str, DeclaredChannel]())
        mine = {id: held for id, held in self.shared.items() if id not in closed} | opened
        return {id: held.to_wire() for id, held in mine.items() if found.allows(held.kind.feature_set)}

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        """What another process has kept of a session's channels. None is opened or closed by this."""
        names = {prefix: {n.removeprefix(prefix) for n in kept if n.startswith(prefix)} for prefix in KEPT}
        if session.peek(SessionChannels) is None and not any(names.values()) and REGISTERED not in kept:
            return
        view, live = session.local(SessionChannels), get_mcpl_terms(session.terms)
        view.closed, view.refused = names[CLOSED], names[REFUSED]
        view.opened = {id: held for id, held in view.opened.items() if id in names[OPENED]}
        for id in names[OPENED] - view.opened.keys() - view.closing.keys():
            type, written = kept[f"{OPENED}{id}"]
            if (kind := self.types.get(type)) is not None:
                view.opened[id] = DeclaredChannel(kind, kind.decode_channel(written))
        if kept.get(REGISTERED) and not view.registered and live is not None:
            view.registered, view.told = True, self.describe_channels(view, live.policy)

    # -- telling -----------------------------------------------------------------------------------------

    def notify_all_hosts(self) -> None:
        """`notify_host` for every host. From any thread."""
        self.server.for_each_session(self.notify_host)

    def notify_host(self, session: Session) -> None:
        """Tell a host what has changed for it: everything when it is ready, later the differences."""
        live = get_mcpl_terms(session.terms)
        if live is None or not session.ready or session.closed:
            return
        view = session.local(SessionChannels)
        if not _registers(live):
            view.registered, view.told = False, {}
            return
        view.closed.intersection_update(id for id, _ in self.shared.items())
        before, now = view.told, self.describe_channels(view, live.policy)
        if view.registered:
            view.told = now
            _tell_change(session, live, before, now)
        elif any(live.policy.allows(kind.feature_set) for kind in self.types):
            # A host that starts with nothing enabled is told after its first update.
            view.registered, view.told = True, now
            session.mark_dirty()
            if now:
                session.engine.spawn(
                    _announce_channels(session, live, "channels/register", {"channels": list(now.values())})
                )


def find_channel_by_address(
    channels: Iterable[DeclaredChannel], kind: ChannelTypeBase, address: object
) -> DeclaredChannel | None:
    """The channel of a type with an address, which is in the form of the wire."""
    if address is None:
        return None
    return next((held for held in channels if held.kind is kind and held.to_wire().get("address") == address), None)


def _tell_change(session: Session, live: McplTerms, before: dict[str, Params], now: dict[str, Params]) -> None:
    added = [wire for id, wire in now.items() if id not in before]
    removed = [id for id in before if id not in now]
    updated = [wire for id, wire in now.items() if id in before and before[id] != wire]
    if not (added or removed or updated):
        return
    change: Params = {"added": added, "removed": removed, "updated": updated}
    session.local(SessionChannels).refused.difference_update(removed)
    if live.vocabulary.verdicts:
        session.engine.spawn(_announce_channels(session, live, CHANNELS_CHANGED_METHOD, change))
    else:
        session.notify(CHANNELS_CHANGED_METHOD, change)


async def _announce_channels(session: Session, live: McplTerms, method: str, params: Params) -> None:
    """Tell a host of channels by a request, and note which of them it refuses."""
    told: list[Params] = [one for member in ("channels", "added", "updated") for one in params.get(member, ())]
    timeout = session.composition.limits.callback
    try:
        answer = await Peer(session).request_or_raise_unsupported("channels.register", method, params, timeout=timeout)
    except PeerError as error:
        if method == CHANNELS_CHANGED_METHOD and error.code == MethodNotFound.code:
            session.notify(CHANNELS_CHANGED_METHOD, params)
        else:  # the host can still ask with channels/list
            get_logger().warning("%s: %s", method, error)
        return
    strictly = live.vocabulary.verdicts
    if (
        not session.local(SessionChannels).record_refusals([one["id"] for one in told], answer, strictly=strictly)
        and strictly
    ):
        get_logger().warning("%s: the host does not say which channels it accepts", method)


def _registers(live: McplTerms) -> bool:
    """Whether a host wants to be told. Some offer `channels: true`, others the details; hosts of 0.5 grant it."""
    found = live.offered.get("channels")
    is_refused = not live.vocabulary.by_grant and is_object(found) and found.get("register") is False
    return live.offers("channels.register") and not is_refused


# -- MCPL §14.3: `channels/incoming`. Messages go to the hosts that have their channels, in order and in batches.


BATCH = 100


class PeerMessages(NamedTuple):
    """The messages for one peer, by their position among all."""

    peer: peers.Peer
    messages: dict[int, ReceivedMessage]


class MessageDelivery:
    """Delivers messages of one type's channels. If one of them cannot be sent to anybody, nothing is sent."""

    def __init__(
        self, directory: ChannelDirectory, kind: ChannelTypeBase, messages: Sequence[ReceivedMessage], to: peers.To
    ) -> None:
        self.directory, self.kind, self.to = directory, kind, to
        self.wires = [_check_message(message).to_wire() for message in messages]
        self.to_send: dict[Session, PeerMessages] = {}
        self.to_keep: dict[int, str | None] = {}
        known: dict[str | int, tuple[list[peers.Peer], tuple[str | None, ...]]] = {}
        for place, message in enumerate(messages):
            key = message.channel if isinstance(message.channel, str) else id(message.channel)
            if key not in known:
                known[key] = self._readers(message)
            found, inbox_readers = known[key]
            for reader in inbox_readers:
                self.to_keep[place] = reader
            for peer in found:
                self.to_send.setdefault(peer.session, PeerMessages(peer, {})).messages[place] = message

    def _readers(self, message: ReceivedMessage) -> tuple[list[peers.Peer], tuple[str | None, ...]]:
        """The peers that are sent a message, and the readers whose inbox keeps it: a principal, or None for all."""
        inbox, shared = self.kind.feature_set.inbox, message.channel_id in self.directory.shared
        try:
            found = peers.select_peers(
                self.directory.server, "incoming", self.to, lambda peer: self._obstacle(message, peer)
            )
        except NoBackChannel:
            reader = peers.find_inbox_principal(self.to)
            if inbox is None or reader is None or not shared:
                raise
            return [], (reader,)
        return found, (None,) if self.to is peers.everyone and inbox is not None and shared else ()

    async def deliver(self) -> list[MessageReceipt]:
        """A receipt for each message and reader, in the order of the messages. Raises the first obstacle."""
        import asyncio

        placed = [(place, self._store_in_inbox(place, reader)) for place, reader in self.to_keep.items()]
        work = [self._deliver(for_peer) for for_peer in self.to_send.values()]
        for sent in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(sent, BaseException):
                raise sent
            placed += sent
        return [receipt for _, receipt in sorted(placed, key=lambda pair: pair[0])]

    def _store_in_inbox(self, place: int, reader: str | None) -> MessageReceipt:
        inbox, wire = self.kind.feature_set.inbox, self.wires[place]
        assert inbox is not None
        inbox.store_event({"featureSet": self.kind.feature_set.name, **wire}, reader)
        return MessageReceipt(wire["messageId"], True, inbox=inbox.uri)

    async def _deliver(self, for_peer: PeerMessages) -> list[tuple[int, MessageReceipt]]:
        session, found = for_peer.peer.session, list[tuple[int, MessageReceipt]]()
        places = list(for_peer.messages)
        for start in range(0, len(places), BATCH):
            batch = places[start : start + BATCH]
            try:
                sent = await peers.run_on_session_loop(session, self._send(for_peer, batch))
            except (PeerError, Refused) as error:
                if self.to is not peers.everyone:
                    raise
                # One host of many that refuses must not hide the receipts of the others.
                sent = [MessageReceipt(self.wires[p]["messageId"], False, None, str(error), session) for p in batch]
            found += zip(batch, sent, strict=True)
        return found

    async def _send(self, for_peer: PeerMessages, batch: list[int]) -> list[MessageReceipt]:
        peer, wires = for_peer.peer, [self.wires[place] for place in batch]
        for place in batch:  # the host may have changed its policy in the meantime
            if (problem := self._obstacle(for_peer.messages[place], peer)) is not None:
                raise problem
        if peers.find_send_obstacle(peer, self.kind.feature_set, "incoming", "channels.incoming") is None:
            limit = peer.session.composition.limits.callback
            told = [peers.drop_unsupported_tags(peer, wire) for wire in wires]
            answer = await peer.request_or_raise_unsupported(
                "channels.incoming", "channels/incoming", {"messages": told}, timeout=limit
            )
            return read_message_receipts(wires, answer, peer.session)
        for wire in wires:
            peers.notify_claude(peer, _as_event(self.kind, wire))
        return read_message_receipts(wires, {}, peer.session)

    def _obstacle(self, message: ReceivedMessage, peer: peers.Peer) -> Exception | None:
        """Why a message cannot be sent to a host."""
        problem = peers.find_send_obstacle(peer, self.kind.feature_set, "incoming", "channels.incoming")
        if problem is not None and not peers.can_notify_claude(peer, self.kind.feature_set, problem):
            return problem
        view = peer.session.peek(SessionChannels)
        held = self.directory.find_channel(view, message.channel_id)
        if held is None or held.kind is not self.kind:
            return UnknownChannel(message.channel_id)
        if not isinstance(message.channel, str) and not held.channel.is_same_channel(message.channel):
            return UnknownChannel(message.channel_id)
        is_refused = view is not None and message.channel_id in view.refused
        permitted = not is_refused and self.kind.is_permitted(peer.policy, message.channel_id)
        return None if permitted else ChannelNotPermitted(message.channel_id)


def _as_event(kind: ChannelTypeBase, wire: Params) -> Params:
    """A message as it would be pushed."""
    author: Params = wire["author"]
    origin = {"channel_id": wire["channelId"], "author_id": author["id"], "author": author["name"]}
    return {
        "featureSet": kind.feature_set.name,
        "eventId": wire["messageId"],
        "timestamp": wire["timestamp"],
        "origin": origin | ({"thread_id": wire["threadId"]} if "threadId" in wire else {}),
        "payload": {"content": wire["content"]},
    }


def _check_message(message: object) -> ReceivedMessage:
    if isinstance(message, ReceivedMessage):
        return message
    raise UsageError(f"incoming: {message!r:.80} is not a message", fix='Message(channel, "text", author=Author("u1"))')
