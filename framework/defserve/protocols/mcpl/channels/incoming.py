"""MCPL §14.3: `channels/incoming`. Messages go to who has their channels, in order and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from defserve.core.session import Session
from defserve.errors import NoBackChannel, PeerError, Refused, UsageError
from defserve.protocols.mcpl import claude_channel, peers
from defserve.protocols.mcpl.channels.book import View
from defserve.protocols.mcpl.channels.values import Message, MessageReceipt, receipts
from defserve.protocols.mcpl.errors import ChannelNotPermitted, UnknownChannel
from defserve.protocols.mcpl.peers import Peer, To, everyone
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.channels.channels import Channels
    from defserve.protocols.mcpl.channels.type import ChannelType

METHOD = "channels/incoming"
A_BATCH = 100


class Parcel:
    """The messages for one peer, by their place among all."""

    __slots__ = ("peer", "messages")

    def __init__(self, peer: Peer) -> None:
        self.peer, self.messages = peer, dict[int, Message]()


class Mailing:
    """Messages of one type's channels on their way. Nothing is sent where one of them has nobody to go to."""

    def __init__(self, section: Channels, kind: ChannelType, messages: Sequence[Message], to: To) -> None:
        self.section, self.kind, self.to = section, kind, to
        self.wires = [_checked(message).wire() for message in messages]
        self.parcels: dict[Session, Parcel] = {}
        self.shelved: dict[int, str | None] = {}
        known: dict[str | int, tuple[list[Peer], tuple[str | None, ...]]] = {}
        for place, message in enumerate(messages):
            key = message.channel if isinstance(message.channel, str) else id(message.channel)
            if key not in known:
                known[key] = self._readers(message)
            found, shelf = known[key]
            for reader in shelf:
                self.shelved[place] = reader
            for peer in found:
                self.parcels.setdefault(peer.session, Parcel(peer)).messages[place] = message

    def _readers(self, message: Message) -> tuple[list[Peer], tuple[str | None, ...]]:
        """Who is sent a message, and for whom the inbox keeps it: a principal, None for all, or nobody."""
        inbox, shared = self.kind.feature_set.inbox, message.channel_id in self.section.book.shared
        try:
            found = peers.addressed(
                self.section.mcpl, "incoming", self.to, lambda peer: obstacle(self.section, self.kind, message, peer)
            )
        except NoBackChannel:
            reader = _principal(self.to)
            if inbox is None or reader is None or not shared:
                raise
            return [], (reader,)
        return found, (None,) if self.to is everyone and inbox is not None and shared else ()

    async def deliver(self) -> list[MessageReceipt]:
        """A receipt for each message and reader, in the order of the messages. Raises what stood in the way of one."""
        import asyncio

        placed = [(place, self._shelve(place, reader)) for place, reader in self.shelved.items()]
        work = [self._deliver(parcel) for parcel in self.parcels.values()]
        for sent in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(sent, BaseException):
                raise sent
            placed += sent
        return [receipt for _, receipt in sorted(placed, key=lambda pair: pair[0])]

    def _shelve(self, place: int, reader: str | None) -> MessageReceipt:
        inbox, wire = self.kind.feature_set.inbox, self.wires[place]
        assert inbox is not None
        inbox.keep({"featureSet": self.kind.feature_set.name, **wire}, reader)
        return MessageReceipt(wire["messageId"], True, inbox=inbox.uri)

    async def _deliver(self, parcel: Parcel) -> list[tuple[int, MessageReceipt]]:
        session, found = parcel.peer.session, list[tuple[int, MessageReceipt]]()
        places = list(parcel.messages)
        for start in range(0, len(places), A_BATCH):
            batch = places[start : start + A_BATCH]
            try:
                sent = await peers.on_its_loop(session, self._send(parcel, batch))
            except (PeerError, Refused) as error:
                if self.to is not everyone:
                    raise
                # What one of many hosts did not take is no reason to say nothing of the others.
                sent = [MessageReceipt(self.wires[p]["messageId"], False, None, str(error), session) for p in batch]
            found += zip(batch, sent, strict=True)
        return found

    async def _send(self, parcel: Parcel, batch: list[int]) -> list[MessageReceipt]:
        peer, wires = parcel.peer, [self.wires[place] for place in batch]
        for place in batch:  # the host may have changed its policy meanwhile
            problem = obstacle(self.section, self.kind, parcel.messages[place], peer)
            if problem is not None:
                raise problem
        if peers.obstacle(peer, self.kind.feature_set, "incoming", "channels") is None:
            limit = peer.session.composition.limits.callback
            answer = await peer.request(METHOD, {"messages": wires}, timeout=limit)
            return receipts(wires, answer, peer.session)
        for wire in wires:
            claude_channel.tell(peer, _as_event(self.kind, wire))
        return receipts(wires, {}, peer.session)


def obstacle(section: Channels, kind: ChannelType, message: Message, peer: Peer) -> Exception | None:
    """Why a message cannot be sent to a host."""
    problem = peers.obstacle(peer, kind.feature_set, "incoming", "channels")
    by_notification = kind.feature_set.claude_channel and claude_channel.takes(peer)
    if problem is not None and not (isinstance(problem, NoBackChannel) and by_notification):
        return problem
    held = section.book.held(peer.session.peek(View), message.channel_id)
    if held is None or held.kind is not kind:
        return UnknownChannel(message.channel_id)
    if not isinstance(message.channel, str) and held.channel != message.channel:
        return UnknownChannel(message.channel_id)
    if not section.permits(peer.policy, kind, message.channel_id):
        return ChannelNotPermitted(message.channel_id)
    return None


def _as_event(kind: ChannelType, wire: Params) -> Params:
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


def _principal(to: To) -> str | None:
    """Whose inbox is meant; None where that cannot be told."""
    if isinstance(to, str):
        return to
    meant = Peer(to) if isinstance(to, Session) else peers.current() if to is None else None
    return meant.session.principal if meant is not None and not meant.session.is_shared_identity else None


def _checked(message: object) -> Message:
    if isinstance(message, Message):
        return message
    raise UsageError(f"incoming: {message!r:.80} is no message", fix='Message(channel, "text", author=Author("u1"))')
