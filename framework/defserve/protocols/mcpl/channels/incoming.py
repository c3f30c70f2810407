"""MCPL §14.3: `channels/incoming`. Messages go to the hosts that have their channels, in order and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from defserve.core.session import Session
from defserve.errors import NoBackChannel, PeerError, Refused, UsageError
from defserve.protocols.mcpl import peers
from defserve.protocols.mcpl.channels.directory import ChannelDirectory, SessionChannels
from defserve.protocols.mcpl.channels.values import Message, MessageReceipt, receipts
from defserve.protocols.mcpl.errors import ChannelNotPermitted, UnknownChannel
from defserve.protocols.mcpl.push import claude_channel
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.channels.kind import ChannelKind

METHOD = "channels/incoming"
BATCH = 100


class PeerMessages(NamedTuple):
    """The messages for one peer, by their position among all."""

    peer: peers.Peer
    messages: dict[int, Message]


class MessageDelivery:
    """Delivers messages of one type's channels. If one of them cannot be sent to anybody, nothing is sent."""

    def __init__(
        self, directory: ChannelDirectory, kind: ChannelKind, messages: Sequence[Message], to: peers.To
    ) -> None:
        self.directory, self.kind, self.to = directory, kind, to
        self.wires = [_checked(message).wire() for message in messages]
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

    def _readers(self, message: Message) -> tuple[list[peers.Peer], tuple[str | None, ...]]:
        """The peers that are sent a message, and the readers whose inbox keeps it: a principal, or None for all."""
        inbox, shared = self.kind.feature_set.inbox, message.channel_id in self.directory.shared
        try:
            found = peers.addressed(
                self.directory.server, "incoming", self.to, lambda peer: self._obstacle(message, peer)
            )
        except NoBackChannel:
            reader = peers.inbox_reader(self.to)
            if inbox is None or reader is None or not shared:
                raise
            return [], (reader,)
        return found, (None,) if self.to is peers.everyone and inbox is not None and shared else ()

    async def deliver(self) -> list[MessageReceipt]:
        """A receipt for each message and reader, in the order of the messages. Raises the first obstacle."""
        import asyncio

        placed = [(place, self._keep(place, reader)) for place, reader in self.to_keep.items()]
        work = [self._deliver(for_peer) for for_peer in self.to_send.values()]
        for sent in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(sent, BaseException):
                raise sent
            placed += sent
        return [receipt for _, receipt in sorted(placed, key=lambda pair: pair[0])]

    def _keep(self, place: int, reader: str | None) -> MessageReceipt:
        inbox, wire = self.kind.feature_set.inbox, self.wires[place]
        assert inbox is not None
        inbox.keep({"featureSet": self.kind.feature_set.name, **wire}, reader)
        return MessageReceipt(wire["messageId"], True, inbox=inbox.uri)

    async def _deliver(self, for_peer: PeerMessages) -> list[tuple[int, MessageReceipt]]:
        session, found = for_peer.peer.session, list[tuple[int, MessageReceipt]]()
        places = list(for_peer.messages)
        for start in range(0, len(places), BATCH):
            batch = places[start : start + BATCH]
            try:
                sent = await peers.on_its_loop(session, self._send(for_peer, batch))
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
        if peers.obstacle(peer, self.kind.feature_set, "incoming", "channels.incoming") is None:
            limit = peer.session.composition.limits.callback
            told = wires if peer.live is not None and peer.live.vocabulary.tags else [_untagged(wire) for wire in wires]
            answer = await peer.try_request("channels.incoming", METHOD, {"messages": told}, timeout=limit)
            return receipts(wires, answer, peer.session)
        for wire in wires:
            claude_channel.tell(peer, _as_event(self.kind, wire))
        return receipts(wires, {}, peer.session)

    def _obstacle(self, message: Message, peer: peers.Peer) -> Exception | None:
        """Why a message cannot be sent to a host."""
        problem = peers.obstacle(peer, self.kind.feature_set, "incoming", "channels.incoming")
        if problem is not None and not claude_channel.replaces(peer, self.kind.feature_set, problem):
            return problem
        view = peer.session.peek(SessionChannels)
        held = self.directory.held(view, message.channel_id)
        if held is None or held.kind is not self.kind:
            return UnknownChannel(message.channel_id)
        if not isinstance(message.channel, str) and not held.channel.is_same_place(message.channel):
            return UnknownChannel(message.channel_id)
        is_refused = view is not None and message.channel_id in view.refused
        permitted = not is_refused and self.kind.permits(peer.policy, message.channel_id)
        return None if permitted else ChannelNotPermitted(message.channel_id)


def _as_event(kind: ChannelKind, wire: Params) -> Params:
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


def _untagged(wire: Params) -> Params:
    return {member: value for member, value in wire.items() if member != "tags"}


def _checked(message: object) -> Message:
    if isinstance(message, Message):
        return message
    raise UsageError(f"incoming: {message!r:.80} is not a message", fix='Message(channel, "text", author=Author("u1"))')
