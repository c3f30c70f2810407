"""MCPL §14.3: `channels/incoming`. Messages go to who has their channels, in order and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from defserve.core.session import Session
from defserve.errors import NoBackChannel, UsageError
from defserve.protocols.mcpl import claude_channel, peers
from defserve.protocols.mcpl.channel_book import View
from defserve.protocols.mcpl.channel_values import Message, MessageReceipt, receipts
from defserve.protocols.mcpl.errors import ChannelNotPermitted, UnknownChannel
from defserve.protocols.mcpl.peers import Peer, To, everyone
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.channel_type import ChannelType
    from defserve.protocols.mcpl.channels import Channels
    from defserve.protocols.mcpl.inbox import Inbox

METHOD = "channels/incoming"
A_BATCH = 100


class Parcel:
    """The messages for one peer, by their place among all."""

    __slots__ = ("peer", "messages")

    def __init__(self, peer: Peer) -> None:
        self.peer, self.messages = peer, dict[int, Message]()


async def deliver(section: Channels, kind: ChannelType, messages: Sequence[Message], to: To) -> list[MessageReceipt]:
    """Send all; nothing is sent where one of them has nobody to go to."""
    import asyncio

    parcels: dict[Session, Parcel] = {}
    found: list[tuple[int, MessageReceipt]] = []
    wires = [_checked(message).wire() for message in messages]
    for place, message in enumerate(messages):
        try:
            meant = peers.addressed(
                section.mcpl, "incoming", to, lambda peer, message=message: obstacle(section, kind, message, peer)
            )
        except NoBackChannel as error:
            found.append((place, _left_in_inbox(section, kind, wires[place], to, error)))
            continue
        if to is everyone and kind.feature_set.inbox is not None:
            found.append((place, _kept(kind.feature_set.inbox, wires[place], None)))
        for peer in meant:
            parcels.setdefault(peer.session, Parcel(peer)).messages[place] = message
    sent = await asyncio.gather(*[_deliver(section, kind, parcel, wires) for parcel in parcels.values()])
    found += [receipt for each in sent for receipt in each]
    return [receipt for _, receipt in sorted(found, key=lambda pair: pair[0])]


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


async def _deliver(
    section: Channels, kind: ChannelType, parcel: Parcel, wires: Sequence[Params]
) -> list[tuple[int, MessageReceipt]]:
    return await peers.on_its_loop(parcel.peer.session, _in_batches(section, kind, parcel, wires))


async def _in_batches(
    section: Channels, kind: ChannelType, parcel: Parcel, wires: Sequence[Params]
) -> list[tuple[int, MessageReceipt]]:
    places, found = list(parcel.messages), list[tuple[int, MessageReceipt]]()
    for start in range(0, len(places), A_BATCH):
        batch = places[start : start + A_BATCH]
        for place in batch:  # the host may have changed its policy meanwhile
            problem = obstacle(section, kind, parcel.messages[place], parcel.peer)
            if problem is not None:
                raise problem
        sent = await _send(kind, parcel.peer, [wires[place] for place in batch])
        found += zip(batch, sent, strict=True)
    return found


async def _send(kind: ChannelType, peer: Peer, wires: list[Params]) -> list[MessageReceipt]:
    session = peer.session
    if peers.obstacle(peer, kind.feature_set, "incoming", "channels") is None:
        answer = await peer.request(METHOD, {"messages": wires}, timeout=session.composition.limits.callback)
        return receipts(wires, answer, session)
    for wire in wires:
        claude_channel.tell(peer, _as_event(kind, wire))
    return receipts(wires, {}, session)


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


def _left_in_inbox(section: Channels, kind: ChannelType, wire: Params, to: To, error: NoBackChannel) -> MessageReceipt:
    """Where there is no road back, a message of a shared channel waits for the principal it is for."""
    inbox = kind.feature_set.inbox
    meant = Peer(to) if isinstance(to, Session) else peers.current()
    principal = to if isinstance(to, str) else meant.session.principal if meant is not None else None
    is_crowd = meant is not None and meant.session.is_crowd
    if inbox is None or principal is None or is_crowd or wire["channelId"] not in section.book.shared:
        raise error
    return _kept(inbox, wire, principal)


def _kept(inbox: Inbox, wire: Params, principal: str | None) -> MessageReceipt:
    inbox.keep({"featureSet": inbox.feature_set.name, **wire}, principal)
    return MessageReceipt(wire["messageId"], True, inbox=inbox.uri)


def _checked(message: object) -> Message:
    if isinstance(message, Message):
        return message
    raise UsageError(f"incoming: {message!r:.80} is no message", fix='Message(channel, "text", author=Author("u1"))')
