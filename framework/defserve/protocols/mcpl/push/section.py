"""MCPL §9: push events. Each keeps one id, is sent until the host answers, and counts once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from defserve.base.background import BackgroundTasks
from defserve.base.caches import ByteCache
from defserve.core.session import Session
from defserve.errors import NoBackChannel, PeerError, PeerTimeout, Refused, UsageError
from defserve.protocols.mcpl import peers
from defserve.protocols.mcpl.errors import CapabilityDenied, FeatureDisabled, UnknownFeatureSet
from defserve.protocols.mcpl.push import claude_channel
from defserve.protocols.mcpl.push.event import METHOD, Event, Receipt, event_wire, is_new_id, remembered, written
from defserve.protocols.mcpl.push.sources import EventSource, EventSources
from defserve.protocols.mcpl.section import LiveServer, Section
from defserve.wire.messages import INTERNAL_ERROR, Params

if TYPE_CHECKING:
    from defserve.protocols.mcpl.feature import Feature

# For one session: events that wait for an answer at the same time, and the bytes of the receipts that are remembered.
UNDER_WAY = 64
MOST_BYTES, RECEIPT_BYTES = 2 * 1024 * 1024, 256

# For events to everyone: how many may wait for one session, and how long a source waits for the sessions that keep up.
BACKLOG = 256
SOURCE_WAIT_SECONDS = 1.0

# Seconds before an event is sent again. After the last one, the author gets the error.
DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)
DUPLICATE: Final = "duplicate"
PUSH: Final = "push"


class SessionPushes:
    """The events of one session: those under way, bounded, and those that the host has accepted.

    `turn` is held from the moment an event may leave until it leaves, or somebody else has sent it.
    """

    __slots__ = ("room", "turn", "under_way", "_accepted")

    def __init__(self) -> None:
        self.room, self.turn = asyncio.Semaphore(UNDER_WAY), asyncio.Lock()
        self.under_way: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._accepted = ByteCache[Receipt](MOST_BYTES)

    async def accepted(self, key: tuple[str, str]) -> Receipt | None:
        """The receipt of an event that the host has accepted already. Waits for one that is under way."""
        while (first := self.under_way.get(key)) is not None:
            await asyncio.wait((first,))
        return self._accepted.get(key)

    def remember(self, key: tuple[str, str], receipt: Receipt) -> None:
        texts = (*key, receipt.inference_id or "", receipt.reason or "")
        self._accepted.put(key, receipt, RECEIPT_BYTES + sum(map(len, texts)))


class PushSection(Section):
    """Sends events. Outcomes, by MCPL-9.3 and MCPL-6.6:

    - `accepted: false` is a receipt: it concerns this event only.
    - The codes -32001 and -32003 raise FeatureDisabled and UnknownFeatureSet: no event of the set gets through.
    - Other errors raise PeerError. Timeouts and internal errors are tried again first.
    - For `everyone` nothing is raised: each session has its receipt.
    """

    def __init__(self, server: LiveServer) -> None:
        super().__init__(server)
        self.delays = DELAYS
        self.sources = EventSources(self._yielded, self._may_run)
        self._sending = BackgroundTasks()

    # -- the verb ----------------------------------------------------------------------------------------

    async def push(self, feature_set: Feature, event: Event, to: peers.To = None) -> Receipt | list[Receipt]:
        """Send an event. Events leave in the order of their pushes; a push waits while many are under way."""
        peers.check_declared(feature_set, "push", "pushEvents")
        wire = event_wire(feature_set.name, event)
        await peers.find(self.server, to)
        if to is peers.everyone and self.server.others is not None:
            self.server.others.publish(PUSH, wire)
        try:
            found = peers.addressed(self.server, "push", to, lambda peer: _obstacle(peer, feature_set))
        except NoBackChannel:
            reader = peers.inbox_reader(to)
            if feature_set.inbox is None or reader is None:
                raise
            return _kept(feature_set, wire, reader)
        if to is not peers.everyone:
            return await self._delivered(found[0], feature_set, wire)
        receipts = await asyncio.gather(*[self._outcome(peer, feature_set, wire) for peer in found])
        return receipts if feature_set.inbox is None else [*receipts, _kept(feature_set, wire, None)]

    async def received(self, wire: Params, only: Session | None) -> None:
        """Another process pushes an event to everyone: the sessions that this one owns get it, or `only` one."""
        if (feature_set := self.server.sets.get(wire["featureSet"])) is None:
            return
        if only is None:
            sending, _ = self._send_to_all(feature_set, wire, None)
            if sending:
                await asyncio.wait(sending)
        elif _obstacle(peers.Peer(only), feature_set) is None:
            await self._outcome(peers.Peer(only), feature_set, wire)

    def can(self, peer: peers.Peer) -> bool:
        """Whether some set can push to this peer, directly or through its inbox."""
        return any(
            "pushEvents" in one.uses and peers.can_reach(peer, one, _obstacle(peer, one)) for one in self.server.sets
        )

    # -- one session -------------------------------------------------------------------------------------

    async def _outcome(self, peer: peers.Peer, feature_set: Feature, wire: Params) -> Receipt:
        try:
            return await self._delivered(peer, feature_set, wire)
        except (PeerError, Refused) as error:
            return Receipt(wire["eventId"], False, reason=str(error), session=peer.session)

    async def _delivered(self, peer: peers.Peer, feature_set: Feature, wire: Params) -> Receipt:
        return await peers.on_its_loop(peer.session, self._deliver(peer, feature_set, wire))

    async def _deliver(self, peer: peers.Peer, feature_set: Feature, wire: Params) -> Receipt:
        events, key = peer.session.local(SessionPushes), (feature_set.name, wire["eventId"])
        if (before := await events.accepted(key)) is not None:
            return before
        decided = events.under_way[key] = asyncio.get_running_loop().create_future()
        try:
            async with events.room:
                receipt = await self._send_once(peer, feature_set, wire, events.turn)
            if receipt.accepted:
                events.remember(key, receipt)
            return receipt
        finally:
            del events.under_way[key]
            decided.set_result(None)

    async def _send_once(self, peer: peers.Peer, feature_set: Feature, wire: Params, turn: asyncio.Lock) -> Receipt:
        """Send an event that no other process sends, or get the receipt that another process has got for it."""
        others, id = self.server.others, wire["eventId"]
        if others is None or peer.session.sharer is None:
            return await self._send_until_answered(peer, feature_set, wire)
        # Asking the other processes takes longer for one event than for the next, which must not leave before it.
        await turn.acquire()
        leave = ExitStack()
        leave.callback(turn.release)

        async def send() -> tuple[str, bool]:
            leave.close()  # the next one begins when this one waits for its answer
            receipt = await self._send_until_answered(peer, feature_set, wire)
            return written(receipt), receipt.accepted

        with leave:
            if is_new_id(id):
                return remembered((await send())[0], peer.session)
            return remembered(await others.once(peer.session, f"push\n{feature_set.name}\n{id}", send), peer.session)

    async def _send_until_answered(self, peer: peers.Peer, feature_set: Feature, wire: Params) -> Receipt:
        """Send until there is an answer. The host's policy is checked each time, because it may have changed."""
        is_repeated = False
        tagged = peer.live is not None and peer.live.vocabulary.tags
        told = wire if tagged else {member: value for member, value in wire.items() if member != "tags"}
        for delay in (*self.delays, None):
            problem = peers.obstacle(peer, feature_set, "push", "pushEvents")
            if problem is not None:
                if not claude_channel.replaces(peer, feature_set, problem):
                    raise problem
                claude_channel.tell(peer, wire)
                return Receipt(wire["eventId"], True, session=peer.session)
            try:
                answer = await peer.request(METHOD, told, timeout=peer.session.composition.limits.callback)
                receipt = Receipt.read(wire["eventId"], answer, peer.session)
                # A host that calls what we repeated a duplicate has taken it the first time.
                return replace(receipt, accepted=True) if is_repeated and receipt.reason == DUPLICATE else receipt
            except PeerError as error:
                if delay is None or not _may_succeed_later(error):
                    raise _typed(error, feature_set) from error
            is_repeated = True
            await asyncio.sleep(delay)
        raise AssertionError("the last delay is None")

    # -- sources -----------------------------------------------------------------------------------------

    def events(self, feature_set: Feature, function: Callable[..., Any], per: str) -> None:
        """Declare a source of events; see `FeatureSet.events`."""
        if per == "server" and self.server.composition is not None:
            raise UsageError(
                "a source per server was declared after serving began", fix="declare it where the server is made"
            )
        self.sources.declared.append(EventSource(feature_set, function, per))
        self._follow_all()

    async def _yielded(self, feature_set: Feature, found: Any, session: Session | None) -> None:
        event = found if isinstance(found, Event) else Event(found)
        if session is not None:
            await self.push(feature_set, event, session)
        else:
            await self._broadcast(feature_set, event_wire(feature_set.name, event), event.to)

    async def _broadcast(self, feature_set: Feature, wire: Params, to: str | None) -> None:
        """Send to every session of this loop, and wait a moment for those that keep up."""
        _, prompt = self._send_to_all(feature_set, wire, to)
        if prompt:
            await asyncio.wait(prompt, timeout=SOURCE_WAIT_SECONDS)

    def _send_to_all(
        self, feature_set: Feature, wire: Params, to: str | None
    ) -> tuple[list[asyncio.Task[Receipt]], list[asyncio.Task[Receipt]]]:
        """Begin to send; all that was begun, and what goes to sessions that have answered everything.

        A slow session delays nobody; with a full backlog it misses the event.
        """
        found = peers.addressed(self.server, "push", peers.everyone, lambda peer: _obstacle(peer, feature_set))
        begun: list[asyncio.Task[Receipt]] = []
        prompt: list[asyncio.Task[Receipt]] = []
        for peer in found:
            if not peer.session.engine.on_loop() or to not in (None, peer.session.principal):
                continue
            waiting = len(peer.session.local(SessionPushes).under_way)
            if waiting >= BACKLOG:
                logging.getLogger("defserve").warning(
                    "%s: event %s is not sent to a session of %s, which has not answered %d others",
                    feature_set.name,
                    wire["eventId"],
                    peer.session.principal,
                    BACKLOG,
                )
                continue
            sending = self._sending.start(self._outcome(peer, feature_set, wire))
            begun.append(sending)
            if not waiting:
                prompt.append(sending)
        if feature_set.inbox is not None:
            feature_set.inbox.keep(wire, to)
        return begun, prompt

    def _may_run(self, feature_set: Feature, session: Session) -> bool:
        return _obstacle(peers.Peer(session), feature_set) is None

    def session_changed(self, session: Session) -> None:
        self.sources.follow(session)

    def session_closed(self, session: Session) -> None:
        self.sources.follow(session)

    def removed(self, feature_set: Feature) -> None:
        self._follow_all()

    def _follow_all(self) -> None:
        for session in self.server.sessions:
            self.sources.follow(session)

    def lifespan(self) -> AbstractAsyncContextManager[None] | None:
        """Runs the sources; None if there are none."""
        return self.sources.lifespan() if self.sources.declared else None


def _obstacle(peer: peers.Peer, feature_set: Feature) -> Exception | None:
    """Why an event cannot be sent to a host."""
    problem = peers.obstacle(peer, feature_set, "push", "pushEvents")
    return None if claude_channel.replaces(peer, feature_set, problem) else problem


def _may_succeed_later(error: PeerError) -> bool:
    """Whether the same event may succeed later."""
    return isinstance(error, PeerTimeout) or (type(error) is PeerError and error.code == INTERNAL_ERROR)


def _typed(error: PeerError, feature_set: Feature) -> Exception:
    if error.code == CapabilityDenied.code:
        return CapabilityDenied("pushEvents", feature_set.name)
    kind = {kind.code: kind for kind in (FeatureDisabled, UnknownFeatureSet)}.get(error.code)
    return kind(feature_set.name) if kind is not None else error


def _kept(feature_set: Feature, wire: Params, principal: str | None) -> Receipt:
    assert feature_set.inbox is not None
    feature_set.inbox.keep(wire, principal)
    return Receipt(wire["eventId"], True, inbox=feature_set.inbox.uri)
