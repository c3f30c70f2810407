"""MCPL §9: push events. Each keeps one id, is sent until the host answers, and counts once.

A slow or absent host delays nobody. Events for hosts that cannot be called wait in an inbox, if the set has one.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from defserve.base.concurrency import BackgroundTasks
from defserve.base.peer_bounds import ByteBoundedCache
from defserve.base.redaction import get_logger
from defserve.binding.signature import find_source_location, get_function_name
from defserve.core.call import Call
from defserve.core.engine import CancellableTask
from defserve.core.messages import INTERNAL_ERROR, Params
from defserve.core.session import Session
from defserve.errors import NoBackChannel, PeerError, PeerGone, PeerTimeout, Refused, UsageError
from defserve.protocols.mcp.resources import Resource, ResourceOptions
from defserve.protocols.mcpl import peers
from defserve.protocols.mcpl.content import (
    PUSH_METHOD,
    Event,
    Receipt,
    decode_receipt_of_process,
    encode_push_event,
    encode_receipt_for_process,
    is_generated_event_id,
)
from defserve.protocols.mcpl.peers import (
    CURRENT_CALL,
    SOURCE_SESSION,
    can_notify_claude,
    is_session_owned_by_this_process,
    notify_claude,
)
from defserve.protocols.mcpl.policies import is_anonymous_session
from defserve.protocols.mcpl.section import McplSection, McplServerState
from defserve.protocols.mcpl.vocabulary import CapabilityDenied, FeatureDisabled, UnknownFeatureSet

if TYPE_CHECKING:
    from defserve.protocols.mcp.extension import MCP
    from defserve.protocols.mcpl.section import FeatureSetBase


# For one session: events that wait for an answer at the same time, and the bytes of the receipts that are remembered.
UNDER_WAY = 64
MAX_RECEIPT_CACHE_BYTES, RECEIPT_BYTES = 2 * 1024 * 1024, 256

# For events to everyone: how many may wait for one session, and how long a source waits for the sessions that keep up.
BACKLOG = 256
SOURCE_WAIT_SECONDS = 1.0

# Seconds before an event is sent again. After the last one, the author gets the error.
DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)

# Seconds before a crashed source is started again; the last value repeats.
RESTARTS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
PUSH: Final = "push"


class SessionPushes:
    """The events of one session: those under way, bounded, and those that the host has accepted.

    `turn` is held from the moment an event may leave until it leaves, or somebody else has sent it.
    """

    __slots__ = ("room", "turn", "under_way", "_accepted")

    def __init__(self) -> None:
        self.room, self.turn = asyncio.Semaphore(UNDER_WAY), asyncio.Lock()
        self.under_way: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._accepted = ByteBoundedCache[Receipt](MAX_RECEIPT_CACHE_BYTES)

    async def wait_for_receipt(self, key: tuple[str, str]) -> Receipt | None:
        """The receipt of an event that the host has accepted already. Waits for one that is under way."""
        while (first := self.under_way.get(key)) is not None:
            await asyncio.wait((first,))
        return self._accepted.get(key)

    def remember(self, key: tuple[str, str], receipt: Receipt) -> None:
        texts = (*key, receipt.inference_id or "", receipt.reason or "")
        self._accepted.store_value(key, receipt, RECEIPT_BYTES + sum(map(len, texts)))


class PushSection(McplSection):
    """Sends events. Outcomes, by MCPL-9.3 and MCPL-6.6:

    - `accepted: false` is a receipt: it concerns this event only.
    - The codes -32001 and -32003 raise FeatureDisabled and UnknownFeatureSet: no event of the set gets through.
    - Other errors raise PeerError. Timeouts and internal errors are tried again first.
    - For `everyone` nothing is raised: each session has its receipt.
    """

    def __init__(self, server: McplServerState) -> None:
        super().__init__(server)
        self.delays, self.restarts = DELAYS, RESTARTS
        self._sources: list[EventSource] = []
        self._sending = BackgroundTasks()

    # -- the verb ----------------------------------------------------------------------------------------

    async def push(self, feature_set: FeatureSetBase, event: Event, to: peers.To = None) -> Receipt | list[Receipt]:
        """Send an event. Events leave in the order of their pushes; a push waits while many are under way."""
        peers.check_use_declared(feature_set, "push", "pushEvents")
        wire = encode_push_event(feature_set.name, event)
        await peers.load_sessions_elsewhere(self.server, to)
        if to is peers.everyone and self.server.others is not None:
            self.server.others.publish(PUSH, wire)
        try:
            found = peers.select_peers(self.server, "push", to, lambda peer: _obstacle(peer, feature_set))
        except NoBackChannel:
            reader = peers.find_inbox_principal(to)
            if feature_set.inbox is None or reader is None:
                raise
            return _store_in_inbox(feature_set, wire, reader)
        if to is not peers.everyone:
            return await peers.run_on_session_loop(found[0].session, self._deliver(found[0], feature_set, wire))
        receipts = await asyncio.gather(*[self._outcome(peer, feature_set, wire) for peer in found])
        return receipts if feature_set.inbox is None else [*receipts, _store_in_inbox(feature_set, wire, None)]

    async def deliver_published(self, wire: Params, only: Session | None) -> None:
        """Another process pushes an event to everyone: the sessions that this one owns get it, or `only` one."""
        if (feature_set := self.server.sets.get(wire["featureSet"])) is None:
            return
        if only is None:
            sending, _ = self._send_to_all(feature_set, wire, None)
            if sending:
                await asyncio.wait(sending)
        elif _obstacle(peers.Peer(only), feature_set) is None:
            await self._outcome(peers.Peer(only), feature_set, wire)

    def can_push(self, peer: peers.Peer) -> bool:
        """Whether some set can push to this peer, directly or through its inbox."""
        return any(
            "pushEvents" in one.uses and peers.can_reach_peer(peer, one, _obstacle(peer, one))
            for one in self.server.sets
        )

    # -- one session -------------------------------------------------------------------------------------

    async def _outcome(self, peer: peers.Peer, feature_set: FeatureSetBase, wire: Params) -> Receipt:
        try:
            return await peers.run_on_session_loop(peer.session, self._deliver(peer, feature_set, wire))
        except (PeerError, Refused) as error:
            return Receipt(wire["eventId"], False, reason=str(error), session=peer.session)

    async def _deliver(self, peer: peers.Peer, feature_set: FeatureSetBase, wire: Params) -> Receipt:
        events, key = peer.session.local(SessionPushes), (feature_set.name, wire["eventId"])
        if (before := await events.wait_for_receipt(key)) is not None:
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

    async def _send_once(
        self, peer: peers.Peer, feature_set: FeatureSetBase, wire: Params, turn: asyncio.Lock
    ) -> Receipt:
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
            return encode_receipt_for_process(receipt), receipt.accepted

        with leave:
            if is_generated_event_id(id):
                return decode_receipt_of_process((await send())[0], peer.session)
            return decode_receipt_of_process(
                await others.run_once(peer.session, f"push\n{feature_set.name}\n{id}", send), peer.session
            )

    async def _send_until_answered(self, peer: peers.Peer, feature_set: FeatureSetBase, wire: Params) -> Receipt:
        """Send until there is an answer. The host's policy is checked each time, because it may have changed."""
        is_repeated, told = False, peers.drop_unsupported_tags(peer, wire)
        for delay in (*self.delays, None):
            problem = peers.find_send_obstacle(peer, feature_set, "push", "pushEvents")
            if problem is not None:
                if not can_notify_claude(peer, feature_set, problem):
                    raise problem
                notify_claude(peer, wire)
                return Receipt(wire["eventId"], True, session=peer.session)
            try:
                answer = await peer.request(PUSH_METHOD, told, timeout=peer.session.composition.limits.callback)
                receipt = Receipt.from_answer(wire["eventId"], answer, peer.session)
                # A host that calls what we repeated a duplicate has taken it the first time.
                return replace(receipt, accepted=True) if is_repeated and receipt.reason == "duplicate" else receipt
            except PeerError as error:
                if delay is None or not _may_succeed_later(error):
                    raise _to_typed_error(error, feature_set) from error
            is_repeated = True
            await asyncio.sleep(delay)
        raise AssertionError("the last delay is None")

    # -- sources -----------------------------------------------------------------------------------------

    def declare_source(self, feature_set: FeatureSetBase, function: Callable[..., Any], per: str) -> None:
        """Declare a source of events; see `FeatureSet.events`."""
        if per == "server" and self.server.composition is not None:
            raise UsageError(
                "a source per server was declared after the server has started",
                fix="declare it where you create the server",
            )
        self._sources.append(EventSource(feature_set, function, per))
        self.server.for_each_session(self.session_changed)

    async def _push_from_source(self, feature_set: FeatureSetBase, found: Any, session: Session | None) -> None:
        event = found if isinstance(found, Event) else Event(found)
        if session is not None:
            await self.push(feature_set, event, session)
            return
        _, prompt = self._send_to_all(feature_set, encode_push_event(feature_set.name, event), event.to)
        if prompt:  # a moment for the sessions that keep up
            await asyncio.wait(prompt, timeout=SOURCE_WAIT_SECONDS)

    def _send_to_all(
        self, feature_set: FeatureSetBase, wire: Params, to: str | None
    ) -> tuple[list[asyncio.Task[Receipt]], list[asyncio.Task[Receipt]]]:
        """Begin to send; all that was begun, and what goes to sessions that have answered everything.

        A slow session delays nobody; with a full backlog it misses the event.
        """
        found = peers.select_peers(self.server, "push", peers.everyone, lambda peer: _obstacle(peer, feature_set))
        begun: list[asyncio.Task[Receipt]] = []
        prompt: list[asyncio.Task[Receipt]] = []
        for peer in found:
            if not peer.session.engine.is_on_loop() or to not in (None, peer.session.principal):
                continue
            waiting = len(peer.session.local(SessionPushes).under_way)
            if waiting >= BACKLOG:
                get_logger().warning(
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
            feature_set.inbox.store_event(wire, to)
        return begun, prompt

    def session_changed(self, session: Session) -> None:
        """Start and stop sources, so that exactly those that the session's host wants now run. From any thread."""
        engine = session.engine
        if not engine.ready:
            return
        if not engine.is_on_loop():
            engine.post_to_loop(lambda: self.session_changed(session))
            return
        tasks, peer = session.local(RunningSources), peers.Peer(session)
        for source in self._sources:
            is_for_it = source.per == "session" and is_session_owned_by_this_process(session)
            wanted = is_for_it and _obstacle(peer, source.feature_set) is None
            if wanted and source not in tasks:
                tasks[source] = engine.spawn(self._run_source(source, session))
            elif not wanted and source in tasks:
                tasks.pop(source).cancel()

    def session_closed(self, session: Session) -> None:
        self.session_changed(session)

    def import_state(self, session: Session, kept: Mapping[str, Any]) -> None:
        if session.ready:
            self.session_changed(session)  # its sources run in the process that owns it

    def on_feature_set_removed(self, feature_set: FeatureSetBase) -> None:
        self.server.for_each_session(self.session_changed)

    def lifespan(self) -> AbstractAsyncContextManager[None] | None:
        """Runs the sources per server; None if there are no sources."""
        return self._run_server_sources() if self._sources else None

    @asynccontextmanager
    async def _run_server_sources(self) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._run_source(source, None)) for source in self._sources if source.per == "server"]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _run_source(self, source: EventSource, session: Session | None) -> None:
        # A source belongs to no call, even if this task was started in one.
        CURRENT_CALL.set(None)
        SOURCE_SESSION.set(session)
        crashes = 0
        while True:
            try:
                async with aclosing(source.iterate_events(session)) as events:
                    async for event in events:
                        crashes = 0
                        if not await self._send_event(source, event, session):
                            return
                return
            except Exception as error:
                _log_crash(source, error)
            await asyncio.sleep(self.restarts[min(crashes, len(self.restarts) - 1)])
            crashes += 1

    async def _send_event(self, source: EventSource, event: Any, session: Session | None) -> bool:
        """Send an event. False if the host has left or has disabled the set."""
        try:
            await self._push_from_source(source.feature_set, event, session)
        except (FeatureDisabled, PeerGone):
            return False
        except (PeerError, Refused) as error:
            get_logger().warning("an event of %s was not delivered: %s", get_function_name(source.function), error)
        return True


def _obstacle(peer: peers.Peer, feature_set: FeatureSetBase) -> Exception | None:
    """Why an event cannot be sent to a host."""
    problem = peers.find_send_obstacle(peer, feature_set, "push", "pushEvents")
    return None if can_notify_claude(peer, feature_set, problem) else problem


def _may_succeed_later(error: PeerError) -> bool:
    """Whether the same event may succeed later."""
    return isinstance(error, PeerTimeout) or (type(error) is PeerError and error.code == INTERNAL_ERROR)


def _to_typed_error(error: PeerError, feature_set: FeatureSetBase) -> Exception:
    if error.code == CapabilityDenied.code:
        return CapabilityDenied("pushEvents", feature_set.name)
    kind = {kind.code: kind for kind in (FeatureDisabled, UnknownFeatureSet)}.get(error.code)
    return kind(feature_set.name) if kind is not None else error


def _store_in_inbox(feature_set: FeatureSetBase, wire: Params, principal: str | None) -> Receipt:
    assert feature_set.inbox is not None
    feature_set.inbox.store_event(wire, principal)
    return Receipt(wire["eventId"], True, inbox=feature_set.inbox.uri)


# -- MCPL §9: sources of push events. A source runs for each session whose host wants it, or once for everyone.


class EventSource:
    """An author's async generator function, its feature set, and whether it runs per session or per server."""

    __slots__ = ("feature_set", "function", "per", "_takes_session")

    def __init__(self, feature_set: FeatureSetBase, function: Callable[..., Any], per: str) -> None:
        self.feature_set, self.function, self.per = feature_set, function, per
        subject = f"events {get_function_name(function)!r}"
        if per not in ("session", "server"):
            raise UsageError(
                f"{subject}: per={per!r} is not possible",
                where=find_source_location(function),
                fix='use "session" or "server"',
            )
        if not inspect.isasyncgenfunction(function):
            raise UsageError(
                f"{subject} is not an async generator",
                where=find_source_location(function),
                fix="write async def … with yield in it",
            )
        required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        if len(required) > (1 if per == "session" else 0):
            raise UsageError(
                f"{subject} takes {len(required)} arguments",
                where=find_source_location(function),
                fix="take none, or the session that a source per session runs for",
            )
        self._takes_session = bool(required)

    def iterate_events(self, session: Session | None) -> AsyncGenerator[Any, None]:
        return self.function(session) if self._takes_session else self.function()


class RunningSources(dict[EventSource, CancellableTask]):
    """The sources that run for one session."""


def _log_crash(source: EventSource, error: Exception) -> None:
    get_logger().error("events %s crashed; it is started again", get_function_name(source.function), exc_info=error)


# -- MCPL §9 for hosts that cannot be called: events wait in a resource, `inbox://<set>`, for their readers. Bounded.
#
# A host reads `inbox://<set>`, then `inbox://<set>?after=<cursor>`. It may subscribe to the first of these.


# How many events are kept for one principal, and for how many principals.
EVENTS = 256
PRINCIPALS = 1_000


@dataclass(slots=True, eq=False)
class PendingEvents:
    """The events for one principal, or for everyone. `lost` is the number of the newest event that was dropped."""

    lost: int = 0
    events: deque[tuple[int, Params]] = field(default_factory=deque[tuple[int, Params]])

    def append_event(self, number: int, event: Params) -> None:
        self.events.append((number, event))
        if len(self.events) > EVENTS:
            self.lost = self.events.popleft()[0]


class EventInbox:
    """The pending events of one set. From any thread."""

    def __init__(self, name: str, description: str) -> None:
        self.uri, self._name, self._description = f"inbox://{name}", name, description
        self._for_all = PendingEvents()
        self._for_one: OrderedDict[str, PendingEvents] = OrderedDict()
        self._last, self._lost, self._lock = 0, 0, Lock()
        self._updated: Callable[[str, str | None], None] | None = None

    def store_event(self, event: Params, principal: str | None) -> None:
        """Keep an event for a principal, or for everyone, and tell the subscribers."""
        with self._lock:
            self._last += 1
            self._pending_of(principal).append_event(self._last, event)
        if self._updated is not None:
            self._updated(self.uri, principal)

    def _pending_of(self, principal: str | None) -> PendingEvents:
        if principal is None:
            return self._for_all
        # Events for a principal without any may have been dropped: nobody remembers whose they were.
        found = self._for_one.setdefault(principal, PendingEvents(self._lost))
        self._for_one.move_to_end(principal)
        if len(self._for_one) > PRINCIPALS:
            _, gone = self._for_one.popitem(last=False)
            self._lost = max(self._lost, gone.events[-1][0])
        return found

    def list_events_after(self, principal: str | None, cursor: int) -> Params:
        """The events after a cursor for a principal; None reads those for everyone. `missed`: some are no longer kept.

        A cursor that was not given out yet comes from before a restart: all events are new to its reader.
        """
        with self._lock:
            is_older = cursor > self._last
            own = self._for_one.get(principal) if principal is not None else None
            both = [self._for_all] if own is None else [self._for_all, own]
            kept = sorted((pair for pending in both for pair in pending.events), key=lambda pair: pair[0])
            lost = max([pending.lost for pending in both] + ([self._lost] if own is None and principal else []))
        cursor = 0 if is_older else cursor
        found = [(number, event) for number, event in kept if number > cursor]
        latest = found[-1][0] if found else cursor
        return {"events": [event for _, event in found], "cursor": latest, "missed": is_older or lost > cursor}

    def publish_as_resources(self, mcp: MCP, binding: object) -> None:
        """Offer it as a resource, with and without a cursor. `binding` decides who sees it."""
        self._updated = mcp.subscriptions.notify_resource_updated

        def pending(call: Call) -> Params:
            return self.list_events_after(_reader(call), 0)

        def pending_after(call: Call, after: int) -> Params:
            return self.list_events_after(_reader(call), after)

        served: tuple[tuple[str, Callable[..., Any]], ...] = (
            (self.uri, pending),
            (self.uri + "{?after}", pending_after),
        )
        for uri, function in served:
            options = ResourceOptions(
                name=f"inbox of {self._name}",
                description=f"Pending events: {self._description}",
                mime_type="application/json",
                inline=True,
            )
            resource = Resource.of(
                function,
                uri,
                options,
                find_provider=lambda annotation: (lambda call: call) if annotation is Call else None,
            )
            resource.facets["mcpl"] = binding
            mcp.resources.add(resource)

    def unpublish_resources(self, mcp: MCP) -> None:
        """Stop offering it."""
        mcp.resources.remove(self.uri)
        mcp.resources.remove(self.uri + "{?after}")


def _reader(call: Call) -> str | None:
    """Whose events a caller reads besides those for everyone. Nobody can tell strangers at one address apart."""
    return None if is_anonymous_session(call.session) else call.principal
