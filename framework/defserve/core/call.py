"""One request, from waiting for room to its answer: who asked, on what terms, and how it ended.

How it works: a call that finds no room waits in a `CallQueue`, in the order of arrival and bounded in number and bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from defserve.core.extension import OutgoingMessage
from defserve.core.messages import Params, RequestId, encode, encode_notification
from defserve.errors import ToolError, TooManyCalls

if TYPE_CHECKING:
    from asyncio import Future

    from defserve.core.composition import NegotiatedTerms, WrappedMethod
    from defserve.core.engine import CallTimer, CancellableTask, Engine
    from defserve.core.peer import PeerIdentity
    from defserve.core.session import Session


T = TypeVar("T")

FinalReply: TypeAlias = tuple[bytes, int | None]
"""A reply, encoded, and its code if it is an error. Empty for a call that was cancelled."""


class ExtensionLocals:
    """A place where extensions keep things, one instance for each type. Calls and sessions have one."""

    __slots__ = ("_locals",)

    def __init__(self) -> None:
        self._locals: dict[type, Any] | None = None

    def local(self, kind: type[T]) -> T:
        """The instance of `kind` that belongs here."""
        if self._locals is None:
            self._locals = {}
        if kind not in self._locals:
            self._locals[kind] = kind()
        return self._locals[kind]

    def peek(self, kind: type[T]) -> T | None:
        """The instance of `kind` if it was ever made."""
        return self._locals.get(kind) if self._locals else None


class ReplyBatch:
    """The replies to one array of requests. They are sent together when the last is there.

    It also waits for who reads the array, so that it is not sent before every member has been looked at.
    """

    __slots__ = ("waiting", "envelope", "replies")

    def __init__(self, envelope: object | None) -> None:
        self.waiting, self.envelope = 1, envelope
        self.replies: list[bytes] = []

    def on_member_done(self, outlet: Callable[[OutgoingMessage], None]) -> None:
        """One of those it waits for is done."""
        self.waiting -= 1
        if self.waiting == 0 and (self.replies or self.envelope is not None):
            data = b"[%b]" % b",".join(self.replies) if self.replies else b""
            outlet(OutgoingMessage(data, None, True, self.envelope))


class Call(ExtensionLocals):
    """Handed to handlers, wrappers, stages and providers. Extensions keep per-request things in `local`.

    `identity` is who sent this request, which decides what it may do; None stands for a local process. Another request
    of the same session may have another one. While a call is `held`, its reply is not sent but kept in `reply`, for the
    transport that began the call and awaits the `rest` of it. `notified`: it has sent notifications. `unsent` of them
    have not left this process; `last_left` is when the last one did.
    """

    # Defaults live on the class. Those that every call reads are set as well: to read from the class what an instance
    # lacks costs ten times as much.
    task: CancellableTask | None = None
    timer: CallTimer | None = None
    batch: ReplyBatch | None = None
    envelope: object | None = None
    subject: Any = None
    suspension: Callable[[], Any] | None = None
    endless = settled = cancelled = timed_out = cut_short = held = notified = False
    reply: FinalReply | None = None
    on_end: Callable[[], None] | None = None
    """Called once, when it is known what the reply says, and before the reply is sent."""
    unsendable: Exception | None = None
    """Why the reply says something else than how the call ended: that was too large, or has no form on the wire."""
    rest: Awaitable[None] | None = None
    questions = unsent = 0
    last_left = 0.0
    queued: QueuedCall | None = None
    _children: set[CancellableTask] | None = None

    def __init__(
        self, session: Session, id: RequestId, method: str, params: Params, raw: Params, terms: NegotiatedTerms
    ) -> None:
        self._locals = None
        self.session, self.id, self.method = session, id, method
        self.identity: PeerIdentity | None = session.identity
        self.params, self.raw, self.terms = params, raw, terms
        self.settled = self.cancelled = self.held = self.notified = False
        self.task = self.batch = self.envelope = self.suspension = self.reply = self.queued = self.on_end = None

    @property
    def engine(self) -> Engine:
        return self.session.engine

    @property
    def principal(self) -> str:
        """The id of who sent this request."""
        return self.identity.id if self.identity is not None else self.session.principal

    @property
    def outer(self) -> Call | None:
        """The call that makes this one; None if the peer makes it."""
        return None

    @property
    def root(self) -> Call:
        """The call that the peer has made: this one, or the outermost that makes it."""
        return self

    @property
    def stopped(self) -> bool:
        """Whether nobody waits for the outcome any more."""
        return self.cancelled or self.timed_out or self.suspension is not None

    def send_reply(self) -> None:
        """The transport that began this call no longer takes the reply from it: it is sent."""
        self.held = False
        if self.reply is not None:
            self.session.outlet(OutgoingMessage(self.reply[0], self, True, self.envelope, self.reply[1]))

    @property
    def title(self) -> str:
        """The call in words, for logs."""
        name = self.subject_name
        return f"{self.method} {name}" if name else self.method

    @property
    def subject_name(self) -> str | None:
        """The name of the tool, resource or prompt that it is for, once that is found."""
        return getattr(self.subject, "name", None)

    def notify(self, method: str, params: Params, *, replaces: Hashable = None) -> None:
        """Send a notification that belongs to this call; from any thread, in order, never after the reply.

        A notification that is still unsent may be dropped for a newer one with the same `replaces`. Raises ValueError
        for params that have no JSON form.
        """
        engine, data = self.session.engine, encode_notification(method, params)
        message = OutgoingMessage(data, self, replaces=replaces, taken=self._on_sent_or_dropped)
        if engine.is_on_loop():
            self._send(message)
        else:
            engine.post_to_loop(lambda: self._send(message))

    def _send(self, message: OutgoingMessage) -> None:
        if not (self.settled or self.cancelled):
            self.notified = True
            self.unsent += 1
            self.session.outlet(message)

    def _on_sent_or_dropped(self) -> None:
        self.unsent -= 1
        self.last_left = self.session.engine.time()

    async def request(self, method: str, params: Params, *, timeout: float | None = None) -> Any:
        """Ask the peer within this call."""
        return await self.wait_for_answer(self.session.request(method, params, relates_to=self, timeout=timeout))

    async def wait_for_answer(self, answer: Awaitable[T]) -> T:
        """Wait for the peer's answer. Until then the call's own timeout is paused, and the call takes no room."""
        self.questions += 1
        if self.questions == 1:
            self.session.make_room(1)
            if self.timer is not None:
                self.timer.pause()
        try:
            return await answer
        finally:
            self.questions -= 1
            if self.questions == 0:
                self.session.make_room(-1)
                if self.timer is not None:
                    self.timer.resume()

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run blocking code in a worker thread."""
        return await self.session.engine.in_thread(lambda: function(*args))

    async def clean_up_in_thread(self, function: Callable[[], None]) -> None:
        """Run blocking teardown in the worker thread of what it tears down, even if the call was cancelled."""
        await self.session.engine.clean_up_in_thread(function)

    def hang_up(self) -> None:
        """End the response that carries this call, where its peer can come back for the rest. From any thread."""
        hang_up = getattr(self.envelope, "hang_up", None)
        if hang_up is not None and self.engine.is_on_loop():
            hang_up()
        elif hang_up is not None:
            self.engine.post_to_loop(hang_up)

    def keep_credential(self, is_kept: Callable[[], bool], ended: Callable[[], None]) -> None:
        """Something was opened for who makes this call, and outlives it: `ended` is called if the credential ends.

        That is so while `is_kept`. A session watches over its credentials itself.
        """
        keep = getattr(self.envelope, "keep_credential", None)
        if keep is not None:
            keep(is_kept, ended)

    def fail(self, error: BaseException) -> None:
        """Answer with an exception, even if the function has not stopped."""
        self.session.fail(self, error)

    def cut(self, outcome: Callable[[], Any]) -> None:
        """End this call early with `outcome()` as its result, because its peer wants no more."""
        if self.suspension is None:
            self.cut_short = True
            self.suspend(outcome)

    def suspend(self, outcome: Callable[[], Any]) -> None:
        """End this run because it needs an answer. The reply is `outcome()`, whatever the function still does.

        Takes effect after everything that is ready to run, so that questions asked at once travel together.
        """
        if self.suspension is None:
            self.suspension = outcome
            self.session.engine.call_soon(self._unwind)

    def _unwind(self) -> None:
        if self.settled:
            return  # it ended by itself, and its task may have begun something else
        # A waiting thread leaves the function by itself, before its resources are closed.
        if self._children:
            self._stop_children()
        else:
            self.stop()

    def adopt(self, task: CancellableTask) -> None:
        """Cancel this task when the call ends, because a worker thread of the call waits for the task."""
        if self._children is None:
            self._children = set()
        self._children.add(task)
        if self.stopped:
            task.cancel()

    def release(self, task: CancellableTask) -> None:
        """An adopted task is done."""
        if self._children is not None:
            self._children.discard(task)

    def stop(self) -> None:
        """Cancel the task that runs this call, and those its threads wait for."""
        self._stop_children()
        if self.task is not None:
            self.task.cancel()
        elif not self.settled:
            self.session.engine.call_soon(self.stop)  # after its first step, which is still to come

    def _stop_children(self) -> None:
        for task in self._children or ():
            task.cancel()


# -- Calls that wait for room: in the order they came, bounded in number and bytes.
#
# A call that waits for its peer's answer, or that never ends, does not count as running. Otherwise such calls could
# take all the room and wait for an answer that is never read. They are bounded all the same: with them, a session has
# at most `in_flight_total` calls, and more of them than `sessions` in the whole server count as running.


class QueuedCall:
    """The place of a call in the queue. It is `left` when the call ends, or is `admitted` and begins a moment later."""

    __slots__ = ("admitted", "left", "size")

    def __init__(self, left: Future[Any], size: int) -> None:
        self.left, self.size = left, size
        self.admitted = False


class InnerCall(Call):
    """Runs a method as if the peer of `outer` had asked for it: wrappers and stages see it as a call of its own.

    It takes no room beside `outer`, and cannot be cancelled or answered by its id. Its notifications and questions go
    the way of `outer`. When its time is up, only it fails.
    """

    nth: int | None = None
    """How many calls the outer call has made before. None if it makes no other."""

    def __init__(self, outer: Call, method: str, params: Params) -> None:
        super().__init__(outer.session, outer.id, method, params, {}, outer.terms)
        self._outcome = outer.engine.create_future()
        self.attach(outer)

    @property
    def outer(self) -> Call:
        return self._outer

    def attach(self, outer: Call) -> None:
        """Belong to this call from now on: another request for the same work, from the same principal."""
        self._outer, self.session, self.terms = outer, outer.session, outer.terms
        self.identity, self.envelope = outer.identity, outer.envelope

    async def run(self) -> Any:
        """The result. Raises what the method raises. Who is cancelled while waiting stops the call."""
        self.task = self.engine.spawn(self._settling(self.terms.methods[self.method].run(self, self.params)))
        try:
            return await self._outcome
        finally:
            if not self.settled:
                self.cancelled = True
                self.stop()

    async def _settling(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            result = await work
        except BaseException as error:
            self.fail(error if isinstance(error, Exception) else ToolError("it was stopped before its end"))
        else:
            if not (self.settled or self.cancelled):
                self._outcome.set_result(result)
            self.settled = True

    def fail(self, error: BaseException) -> None:
        if not (self.settled or self.cancelled):
            self._outcome.set_exception(error)
        self.settled = True

    @property
    def root(self) -> Call:
        return self._outer.root

    def suspend(self, outcome: Callable[[], Any]) -> None:
        self.suspension = outcome
        self._outer.suspend(outcome)

    def notify(self, method: str, params: Params, *, replaces: Hashable = None) -> None:
        if not self.settled:
            self._outer.notify(method, params, replaces=replaces)

    async def request(self, method: str, params: Params, *, timeout: float | None = None) -> Any:
        return await self.wait_for_answer(self.session.request(method, params, relates_to=self.root, timeout=timeout))

    async def wait_for_answer(self, answer: Awaitable[T]) -> T:
        return await self.wait_with_paused_timeout(self._outer.wait_for_answer(answer))

    async def wait_with_paused_timeout(self, answer: Awaitable[T]) -> T:
        """Wait for something. Until then the timeout of this call is paused, and not that of the outer call."""
        self.questions += 1
        if self.questions == 1 and self.timer is not None:
            self.timer.pause()
        try:
            return await answer
        finally:
            self.questions -= 1
            if self.questions == 0 and self.timer is not None:
                self.timer.resume()


# All queues of a server together hold at most as much as so many full ones.
FULL_QUEUES = 64


class CallQueue:
    """The waiting calls of one session. It exists until the last of them has begun, so that none is overtaken."""

    __slots__ = ("_beginning", "_session", "_size", "_waiting")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[Call, QueuedCall] = {}
        self._size = self._beginning = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def enqueue_call(self, call: Call) -> QueuedCall:
        """Let a call wait. Raises TooManyCalls if the queue is full and nobody stops reading for it.

        The calls of a batch were read already: a queue that is full takes no more of them.
        """
        session, composition = self._session, self._session.composition
        stops_reading = session.on_room is not None and call.batch is None and self._can_move
        if self._holds(1) and not stops_reading:
            self._end_if_empty()
            raise self.make_refusal()
        call.queued = place = QueuedCall(session.engine.create_future(), _size(call, composition.limits.message))
        self._waiting[call] = place
        self._size += place.size
        composition.queued += 1
        composition.queued_bytes += place.size
        session.in_flight[call.id] = call
        self.admit_waiting_calls()
        return place

    def has_waiting_call(self, envelope: object) -> bool:
        """Whether a call that came in this envelope waits here."""
        return any(call.envelope is envelope for call in self._waiting)

    def on_call_started(self, place: QueuedCall) -> None:
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

    def admit_waiting_calls(self) -> None:
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
    def is_full(self) -> bool:
        """Whether nothing more should be read from the peer.

        Never if all calls wait for the peer: its answers may lie behind what was not read.
        """
        return self._holds(1) and self._can_move

    def make_refusal(self) -> TooManyCalls:
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


def can_skip_queue(session: Session, method: WrappedMethod) -> bool:
    """Whether a call of this method waits for nobody, because running calls may wait for it."""
    waiting = len(session.queue) if session.queue is not None else 0
    return method.urgent and len(session.in_flight) - waiting < 2 * session.room


def queue_call(session: Session, call: Call, method: WrappedMethod) -> Coroutine[Any, Any, Any]:
    """Put a call into its session's queue. Returns the work that runs it when its turn comes. Raises TooManyCalls."""
    if session.queue is None:
        session.queue = CallQueue(session)
    return _run_behind(session.queue.enqueue_call(call), call, method, session.queue)


async def _run_behind(place: QueuedCall, call: Call, method: WrappedMethod, queue: CallQueue) -> Any:
    session = call.session
    # Who can stop reading lets calls wait as long as it takes. Other callers are told to come back.
    seconds = session.composition.limits.queue if session.on_room is None else None
    try:
        await session.engine.wait_for(place.left, seconds)
    except TimeoutError:
        if not place.admitted:
            raise queue.make_refusal() from None
    finally:
        queue.on_call_started(place)
    return None if call.settled else await method.run(call, call.params)


def _size(call: Call, most: int) -> int:
    try:
        return len(encode(call.raw))
    except ValueError:  # it was decoded, but has no JSON form of its own
        return most
