"""MCPL §9: push events. Each has one id for life, is sent until the host has answered, and counts once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from defserve.core.session import Session
from defserve.errors import NoBackChannel, PeerError, PeerTimeout, Refused, UsageError
from defserve.protocols.mcpl import claude_channel, content, peers
from defserve.protocols.mcpl.errors import FeatureDisabled, UnknownFeatureSet
from defserve.protocols.mcpl.instants import instant
from defserve.protocols.mcpl.peers import Peer, To, everyone
from defserve.protocols.mcpl.push.sources import Sources
from defserve.protocols.mcpl.section import Section
from defserve.wire.jsonvalue import is_mapping, is_object
from defserve.wire.messages import Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.extension import MCPL
    from defserve.protocols.mcpl.feature_sets import FeatureSet

METHOD = "push/event"

# Of one session: events that wait for their answer at once, and ids remembered as accepted.
UNDER_WAY = 64
REMEMBERED = 4_096

# Of what is told to everyone: how many events may wait for one session, and for how long all wait for those who are
# up to date.
BACKLOG = 256
PATIENCE = 1.0

# Seconds before an event is sent again; then its error is the author's.
DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)
INTERNAL_ERROR: Final = -32603


@dataclass(frozen=True, slots=True)
class Event:
    """What an event source yields. An `id` of its own lets an event be yielded again without counting twice.

    From a source that runs for all, `to` is the principal that alone may hear of it.
    """

    content: Any
    id: str | None = None
    origin: Mapping[str, Any] | None = None
    timestamp: datetime | str | None = None
    to: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an event at one host: whether it was accepted, the inference it began, or the reason why not.

    `inbox` is the URI of the resource where the event waits to be fetched, where it could not be sent.
    """

    event_id: str
    accepted: bool
    inference_id: str | None = None
    reason: str | None = None
    session: Session | None = None
    inbox: str | None = None


class Outbox:
    """The events of one session that are under way, bounded, and those the host has accepted."""

    __slots__ = ("room", "under_way", "_accepted")

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(UNDER_WAY)
        self.under_way: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._accepted: OrderedDict[tuple[str, str], Receipt] = OrderedDict()

    async def accepted(self, key: tuple[str, str]) -> Receipt | None:
        """The receipt of an event that was sent before, once that is decided."""
        while (first := self.under_way.get(key)) is not None:
            await asyncio.wait((first,))
        return self._accepted.get(key)

    def remember(self, key: tuple[str, str], receipt: Receipt) -> None:
        self._accepted[key] = receipt
        if len(self._accepted) > REMEMBERED:
            self._accepted.popitem(last=False)


class Pushing(Section):
    """Sends events. Outcomes, by MCPL-9.3 and MCPL-6.6:

    a host's `accepted: false` is a receipt, for it is a word about this event; -32001 and -32003 raise FeatureDisabled
    and UnknownFeatureSet, for nothing of the set gets through; other errors raise PeerError. Timeouts and internal
    errors are tried again first. To `everyone` nothing is raised: each session has its receipt.
    """

    def __init__(self, mcpl: MCPL) -> None:
        super().__init__(mcpl)
        self.delays = DELAYS
        self.sources = Sources(self._yielded, self._may_run)
        self._sending: set[asyncio.Task[Receipt]] = set()

    # -- the verb ----------------------------------------------------------------------------------------

    async def push(self, feature_set: FeatureSet, event: Event, to: To = None) -> Receipt | list[Receipt]:
        """Send an event; events leave in the order of their pushes, which wait while many are under way."""
        peers.declared(feature_set, "push", "pushEvents")
        wire = event_wire(feature_set, event)
        try:
            found = peers.addressed(self.mcpl, "push", to, lambda peer: self.obstacle(peer, feature_set))
        except NoBackChannel as error:
            return self._left_in_inbox(feature_set, wire, to, error)
        if to is not everyone:
            return await self._delivered(found[0], feature_set, wire)
        sent = [self._outcome(peer, feature_set, wire) for peer in found]
        receipts = list(await asyncio.gather(*sent))
        if feature_set.inbox is not None:
            receipts.append(_kept(feature_set, wire, None))
        return receipts

    def obstacle(self, peer: Peer, feature_set: FeatureSet) -> Exception | None:
        """Why an event cannot be sent to a host."""
        problem = peers.obstacle(peer, feature_set, "push", "pushEvents")
        if isinstance(problem, NoBackChannel) and feature_set.claude_channel and claude_channel.takes(peer):
            return None
        return problem

    def can(self, peer: Peer) -> bool:
        """Whether some set could push to this peer, be it into an inbox."""
        for one in self.mcpl.sets:
            problem = self.obstacle(peer, one)
            if "pushEvents" in one.uses and (problem is None or _inbox_for(one, peer, problem)):
                return True
        return False

    def _left_in_inbox(self, feature_set: FeatureSet, wire: Params, to: To, error: NoBackChannel) -> Receipt:
        if isinstance(to, str):
            principal = to
        else:
            meant = Peer(to) if isinstance(to, Session) else peers.current()
            principal = meant.session.principal if meant is not None and not meant.session.is_shared_identity else None
        if feature_set.inbox is None or principal is None:
            raise error
        return _kept(feature_set, wire, principal)

    # -- one session -------------------------------------------------------------------------------------

    async def _outcome(self, peer: Peer, feature_set: FeatureSet, wire: Params) -> Receipt:
        try:
            return await self._delivered(peer, feature_set, wire)
        except (PeerError, Refused) as error:
            return Receipt(wire["eventId"], False, reason=str(error), session=peer.session)

    async def _delivered(self, peer: Peer, feature_set: FeatureSet, wire: Params) -> Receipt:
        return await peers.on_its_loop(peer.session, self._deliver(peer, feature_set, wire))

    async def _deliver(self, peer: Peer, feature_set: FeatureSet, wire: Params) -> Receipt:
        outbox, key = peer.session.local(Outbox), (feature_set.name, wire["eventId"])
        before = await outbox.accepted(key)
        if before is not None:
            return before
        decided = outbox.under_way[key] = asyncio.get_running_loop().create_future()
        try:
            async with outbox.room:
                receipt = await self._insist(peer, feature_set, wire)
            if receipt.accepted:
                outbox.remember(key, receipt)
            return receipt
        finally:
            del outbox.under_way[key]
            decided.set_result(None)

    async def _insist(self, peer: Peer, feature_set: FeatureSet, wire: Params) -> Receipt:
        """Send until there is an answer. The host's policy is asked before each time: it may have changed."""
        for delay in (*self.delays, None):
            problem = peers.obstacle(peer, feature_set, "push", "pushEvents")
            if problem is not None and self.obstacle(peer, feature_set) is None:
                claude_channel.tell(peer, wire)
                return Receipt(wire["eventId"], True, session=peer.session)
            if problem is not None:
                raise problem
            try:
                answer = await peer.request(METHOD, wire, timeout=peer.session.composition.limits.callback)
                return _receipt(wire["eventId"], answer, peer.session)
            except PeerError as error:
                if delay is None or not _passing(error):
                    raise _typed(error, feature_set) from error
            await asyncio.sleep(delay)
        raise AssertionError("the last delay is None")

    # -- sources -----------------------------------------------------------------------------------------

    def events(self, feature_set: FeatureSet, function: Callable[..., Any], per: str) -> None:
        """Declare a source of events; see `FeatureSet.events`."""
        serving = self.mcpl.composition is not None
        if per == "server" and serving:
            raise UsageError("a source per server comes after serving began", fix="declare it where the server is made")
        self.sources.add(feature_set, function, per)
        for session in self.mcpl.composition.sessions if self.mcpl.composition is not None else ():
            self.sources.follow(session)

    async def _yielded(self, feature_set: FeatureSet, found: Any, session: Session | None) -> None:
        event = found if isinstance(found, Event) else Event(found)
        if event.id is None:
            event = replace(event, id=_new_id())
        if session is not None:
            await self.push(feature_set, event, session)
        else:
            await self._broadcast(feature_set, event_wire(feature_set, event), event.to)

    async def _broadcast(self, feature_set: FeatureSet, wire: Params, to: str | None) -> None:
        """Send to every session of this loop. One that is slow holds nobody up; one that hears nothing misses it."""
        found = peers.addressed(self.mcpl, "push", everyone, lambda peer: self.obstacle(peer, feature_set))
        prompt: list[asyncio.Task[Receipt]] = []
        for peer in found:
            if not peer.session.engine.on_loop() or to not in (None, peer.session.principal):
                continue
            waiting = len(peer.session.local(Outbox).under_way)
            if waiting >= BACKLOG:
                _log_missed(feature_set, wire, peer)
                continue
            sending = asyncio.create_task(self._outcome(peer, feature_set, wire))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
            if not waiting:
                prompt.append(sending)
        if feature_set.inbox is not None:
            feature_set.inbox.keep(wire, to)
        if prompt:
            await asyncio.wait(prompt, timeout=PATIENCE)

    def _may_run(self, feature_set: FeatureSet, session: Session) -> bool:
        return self.obstacle(Peer(session), feature_set) is None

    def session_ready(self, session: Session) -> None:
        self.sources.follow(session)

    def policy_changed(self, session: Session) -> None:
        self.sources.follow(session)

    def session_closed(self, session: Session) -> None:
        self.sources.follow(session)

    def removed(self, feature_set: FeatureSet) -> None:
        for session in list(self.mcpl.composition.sessions) if self.mcpl.composition is not None else ():
            self.sources.follow(session)

    def lifespan(self) -> AbstractAsyncContextManager[None] | None:
        """Around the life of the sources; None where there are none."""
        return self.sources.lifespan() if self.sources.declared else None


def _log_missed(feature_set: FeatureSet, wire: Params, peer: Peer) -> None:
    import logging

    text = "%s: event %s is not sent to a session of %s, which has not answered %d others"
    log = logging.getLogger("defserve")
    log.warning(text, feature_set.name, wire["eventId"], peer.session.principal, BACKLOG)


def event_wire(feature_set: FeatureSet, event: Event) -> Params:
    """The params of `push/event` (§9.2). Raises UsageError for what is no event."""
    id: Any = event.id if event.id is not None else _new_id()
    if not isinstance(id, str) or not id:
        raise UsageError(f"push: id={id!r} is not a text", fix='give the event a stable name: id="evt_1"')
    wire: Params = {"featureSet": feature_set.name, "eventId": id, "timestamp": instant(event.timestamp)}
    if event.origin is not None:
        if not is_mapping(event.origin):
            raise UsageError(f"push: origin={event.origin!r} is not a mapping", fix='origin={"memoryId": "m1"}')
        wire["origin"] = dict(event.origin)
    wire["payload"] = {"content": content.blocks(event.content)}
    return wire


def _new_id() -> str:
    import secrets

    return f"evt_{secrets.token_hex(12)}"


def _receipt(event_id: str, answer: Any, session: Session) -> Receipt:
    if not is_object(answer):
        raise PeerError(f"the host's answer to {METHOD} has the wrong shape", code=0)
    inference_id, reason = answer.get("inferenceId"), answer.get("reason")
    return Receipt(
        event_id,
        answer.get("accepted") is True,
        inference_id if isinstance(inference_id, str) else None,
        reason if isinstance(reason, str) else None,
        session,
    )


def _passing(error: PeerError) -> bool:
    """Whether the same event may fare better in a while."""
    return isinstance(error, PeerTimeout) or (type(error) is PeerError and error.code == INTERNAL_ERROR)


def _typed(error: PeerError, feature_set: FeatureSet) -> Exception:
    kinds = {kind.code: kind for kind in (FeatureDisabled, UnknownFeatureSet)}
    kind = kinds.get(error.code)
    return kind(feature_set.name) if kind is not None else error


def _kept(feature_set: FeatureSet, wire: Params, principal: str | None) -> Receipt:
    assert feature_set.inbox is not None
    feature_set.inbox.keep(wire, principal)
    return Receipt(wire["eventId"], True, inbox=feature_set.inbox.uri)


def _inbox_for(feature_set: FeatureSet, peer: Peer, problem: Exception) -> bool:
    return isinstance(problem, NoBackChannel) and feature_set.inbox is not None and not peer.session.is_shared_identity
