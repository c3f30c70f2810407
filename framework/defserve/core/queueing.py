"""Calls that wait for room: in the order they came, bounded in number and bytes.

A call that waits for its peer's answer, or that never ends, does not count as running. Otherwise such calls could take
all the room and wait for an answer that is never read. They are bounded all the same: with them, a session has at most
`in_flight_total` calls, and more of them than `sessions` in the whole server count as running.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from defserve.errors import TooManyCalls
from defserve.wire.codec import encode

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.composition import Method
    from defserve.core.engine import PendingAnswer
    from defserve.core.session import Session

# All queues of a server together hold at most as much as so many full ones.
FULL_QUEUES = 64


class QueuedCall:
    """The place of a call in the queue. It is `left` when the call ends, or is `admitted` and begins a moment later."""

    __slots__ = ("admitted", "left", "size")

    def __init__(self, left: PendingAnswer, size: int) -> None:
        self.left, self.size = left, size
        self.admitted = False


class CallQueue:
    """The waiting calls of one session. It exists until the last of them has begun, so that none is overtaken."""

    __slots__ = ("_beginning", "_session", "_size", "_waiting")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[Call, QueuedCall] = {}
        self._size = self._beginning = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, call: Call) -> QueuedCall:
        """Let a call wait. Raises TooManyCalls if the queue is full and nobody stops reading for it.

        The calls of a batch were read already: a queue that is full takes no more of them.
        """
        session, composition = self._session, self._session.composition
        stops_reading = session.on_room is not None and call.batch is None and self._can_move
        if self._holds(1) and not stops_reading:
            self._end_if_empty()
            raise self.refusal()
        call.queued = place = QueuedCall(session.engine.pending(), _size(call, composition.limits.message))
        self._waiting[call] = place
        self._size += place.size
        composition.queued += 1
        composition.queued_bytes += place.size
        session.in_flight[call.id] = call
        self.advance()
        return place

    def has(self, envelope: object) -> bool:
        """Whether a call that came in this envelope waits here."""
        return any(call.envelope is envelope for call in self._waiting)

    def begun(self, place: QueuedCall) -> None:
        """A call that has left its place begins, unless it has ended before."""
        if place.admitted:
            self._beginning -= 1
            self._end_if_empty()

    def remove(self, call: Call) -> None:
        """A call waits no more."""
        place = self._waiting.pop(call)
        call.queued = None
        self._size -= place.size
        self._session.composition.queued -= 1
        self._session.composition.queued_bytes -= place.size
        if not place.left.done():
            place.left.set_result(None)

    def advance(self) -> None:
        """Admit the calls for which there is room. If there is room in the queue again, reading may go on."""
        session, composition = self._session, self._session.composition
        while self._waiting and len(session.in_flight) - len(self) < session.room and not session.closed:
            if composition.running >= composition.limits.in_flight_total:
                composition.line[session] = None
                break
            call, place = next(iter(self._waiting.items()))
            place.admitted = True
            self._beginning += 1
            composition.running += 1
            self.remove(call)
        self._end_if_empty()
        if session.on_room is not None and not (self._holds(2) and self._can_move):
            session.on_room()

    def _end_if_empty(self) -> None:
        session = self._session
        if not (self._waiting or self._beginning) and session.queue is self:
            session.queue = None
            if session.on_room is not None:  # nobody else tells the transport: the queue is gone
                session.on_room()

    @property
    def full(self) -> bool:
        """Whether nothing more should be read from the peer.

        Never if all calls wait for the peer: its answers may lie behind what was not read.
        """
        return self._holds(1) and self._can_move

    def refusal(self) -> TooManyCalls:
        session, limits = self._session, self._session.composition.limits
        begun = max(session.composition.running, len(session.in_flight) - len(self))
        is_total = begun >= limits.in_flight_total
        limit, most = ("in_flight_total", limits.in_flight_total) if is_total else ("in_flight", limits.in_flight)
        text = f"too many calls in flight: at most {most} {'in this server' if is_total else 'a session'}"
        return TooManyCalls(text, data={"limit": limit, "retry_after_ms": 1000})

    def _holds(self, part: int) -> bool:
        """Whether this queue, or all queues of the server together, hold as much as they may, divided by `part`."""
        composition, limits = self._session.composition, self._session.composition.limits
        return (
            len(self) * part >= limits.queued
            or self._size * part >= limits.queued_bytes
            or composition.queued * part >= limits.queued * FULL_QUEUES
            or composition.queued_bytes * part >= limits.queued_bytes * FULL_QUEUES
        )

    @property
    def _can_move(self) -> bool:
        """Whether a call runs that ends without the peer, so that the queue moves on."""
        session, composition = self._session, self._session.composition
        if len(session.in_flight) - len(self) > session.idle:
            return True
        limits = composition.limits
        return (
            composition.running >= limits.in_flight_total and composition.running > composition.idle - limits.sessions
        )


def goes_ahead(session: Session, method: Method) -> bool:
    """Whether a call of this method waits for nobody, because running calls may wait for it."""
    waiting = len(session.queue) if session.queue is not None else 0
    return method.urgent and len(session.in_flight) - waiting < 2 * session.room


def wait_for_room(session: Session, call: Call, method: Method) -> Coroutine[Any, Any, Any]:
    """Put a call into its session's queue. Returns the work that runs it when its turn comes. Raises TooManyCalls."""
    if session.queue is None:
        session.queue = CallQueue(session)
    return _run_behind(session.queue.put(call), call, method, session.queue)


async def _run_behind(place: QueuedCall, call: Call, method: Method, queue: CallQueue) -> Any:
    session = call.session
    # Who can stop reading lets calls wait as long as it takes. Other callers are told to come back.
    seconds = session.composition.limits.queue if session.on_room is None else None
    try:
        await session.engine.wait(place.left, seconds)
    except TimeoutError:
        if not place.admitted:
            raise queue.refusal() from None
    finally:
        queue.begun(place)
    return None if call.settled else await method.run(call, call.params)


def _size(call: Call, most: int) -> int:
    try:
        return len(encode(call.raw))
    except ValueError:  # it was decoded, but has no JSON form of its own
        return most
