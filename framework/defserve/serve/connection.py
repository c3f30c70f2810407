"""Connects a transport and its sessions: frames in, messages out, one session for each peer. With what ends a process.

Nothing here imports asyncio: a server on stdio gives its first answers before that import (25 ms).
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.engine import Engine, NoLoopEngine
from defserve.core.extension import CarriedMessage, Carrier, OutgoingMessage
from defserve.core.messages import INTERNAL_ERROR, Request, decode, encode
from defserve.core.peer import PeerIdentity, make_error_object
from defserve.core.session import Session
from defserve.errors import LimitExceeded

if TYPE_CHECKING:
    import asyncio


# To a peer for whom more waits, only answers and questions are sent.
MAX_QUEUED_BYTES = 4 * 1024 * 1024


class Transport(Protocol):
    """The methods that every transport of a pipe has."""

    @property
    def closed(self) -> bool: ...
    @property
    def queued(self) -> int:
        """The number of bytes that the peer has not taken yet."""
        ...

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        received: Callable[[list[bytes | None]], None],
        ended: Callable[[], None],
    ) -> None: ...
    def send(self, message: bytes, taken: Callable[[], None] | None = None) -> None: ...
    def flush(self) -> None: ...
    def pause(self) -> None:
        """Read nothing more until `resume`."""

    def resume(self) -> None: ...
    def close(self) -> None: ...


def get_session_arguments(identity: PeerIdentity) -> dict[str, Any]:
    """The arguments of `Session` that describe its peer."""
    return {
        "principal": identity.id,
        "is_local": identity.kind == "local",
        "identity": identity,
        "is_shared_identity": identity.is_shared_identity,
    }


class Connection:
    """Serves one transport. With a carrier, each peer on it has a session of its own.

    A `carrier` given here is for this transport alone. `caller` says who a peer on it is; without it peers are local.
    """

    def __init__(
        self,
        composition: Composition,
        transport: Transport,
        *,
        principal: str = "local",
        carrier: Carrier | None = None,
        caller: Callable[[str], PeerIdentity] | None = None,
    ) -> None:
        self.composition, self.transport, self.principal = composition, transport, principal
        self.carrier, self.caller = carrier or composition.carrier, caller
        self.engine: Engine = NoLoopEngine()  # pyright: ignore[reportAttributeAccessIssue]
        self.sessions: dict[str, Session] = {}
        self._ending: list[Session] = []
        self.waiting: list[bytes | None] = []
        self._flush_planned = False
        self._untaken = 0  # frames of the read that is being taken, the current one included
        self._bulk = BulkQueue()
        self._only: Session | None = None
        if self.carrier is None:
            # Peers that share a pipe cannot be made to wait for one of them.
            self._only = self._session("")
            self._only.on_room = transport.resume
        self._take = self._unwrap if self._only is None else self._only.feed_bytes

    def attach(self, engine: Engine) -> None:
        """A loop is running: take the frames that had to wait for it."""
        self.engine = engine
        for session in self.sessions.values():
            session.engine = engine
        waiting, self.waiting = self.waiting, []
        if waiting:
            self.feed_frames(waiting)

    def feed_frames(self, frames: list[bytes | None]) -> None:
        """Take frames of the transport, in order. Replies that are ready at the end are sent in one write."""
        self._untaken = len(frames)
        for frame in frames:
            if not self._take(frame):
                self.waiting = frames[-self._untaken :]
                break
            self._untaken -= 1
        self._untaken = 0
        if self._bulk.waiting:
            self._bulk.advance()
        self.transport.flush()
        if self._only is not None and self._only.queue is not None and self._only.full:
            self.transport.pause()

    def close(self) -> None:
        for session in list(self.sessions.values()):
            session.close()
        self._bulk.close()
        self.transport.flush()
        self.transport.close()

    def calls(self) -> list[Call]:
        """The calls of all peers, those included that clean up because their peer has left."""
        return [call for session in (*self.sessions.values(), *self._ending) for call in session.in_flight.values()]

    # -- peers -------------------------------------------------------------------------------------------

    def _session(self, peer: str) -> Session:
        known: dict[str, Any] = (
            {"principal": self.principal} if self.caller is None else get_session_arguments(self.caller(peer))
        )
        session = Session(self.composition, self.engine, self._outlet(peer), peer=peer, **known)
        self.sessions[peer] = session
        return session

    def _unwrap(self, frame: bytes | None) -> bool:
        carrier = self.carrier
        assert carrier is not None
        if not self.engine.ready:
            return False  # no peer may overtake one that waits
        for parcel in carrier.unwrap(frame) if frame is not None else ():
            session = self.sessions.get(parcel.peer)
            try:
                if session is None or session.closed:
                    session = self._session(parcel.peer)
            except LimitExceeded as error:
                self._turn_away(carrier, parcel, error)
                continue
            if parcel.data is not None:
                session.feed_bytes(parcel.data, parcel.envelope)
            elif (work := carrier.handle_event(session, parcel.event)) is not None:
                self.engine.spawn(work)
            if session.closed:
                self._drop_session(session)
        return True

    def _drop_session(self, session: Session) -> None:
        """A peer that has left is kept only until its calls have cleaned up."""
        self._ending = [each for each in self._ending if each.in_flight]
        del self.sessions[session.peer]
        if session.in_flight:
            self._ending.append(session)

    def _turn_away(self, carrier: Carrier, parcel: CarriedMessage, error: LimitExceeded) -> None:
        """Refuse the request of a peer if there is no room for a session. Anything else it sent is dropped."""
        message = decode(parcel.data) if parcel.data is not None else None
        if isinstance(message, Request):
            body = make_error_object(INTERNAL_ERROR, error.message, {"error_type": error.error_type, **error.data})
            reply = encode({"jsonrpc": "2.0", "id": message.id, "error": body})
            self.transport.send(carrier.wrap(reply, parcel.peer, parcel.envelope))

    def _outlet(self, peer: str) -> Callable[[OutgoingMessage], None]:
        carrier, transport, sessions, bulk = self.carrier, self.transport, self.sessions, self._bulk

        def write(outgoing: OutgoingMessage, taken: Callable[[], None]) -> None:
            transport.send(carrier.wrap(outgoing.data, peer, outgoing.envelope) if carrier else outgoing.data, taken)

        def send(outgoing: OutgoingMessage) -> None:
            if outgoing.bulk:
                bulk.add_message(outgoing, write)
            elif outgoing.data:
                if not outgoing.answers and transport.queued > MAX_QUEUED_BYTES and not outgoing.asks:
                    # Nobody waits for it, and who sends such messages may never stop.
                    if outgoing.taken is not None:
                        outgoing.taken()
                    return
                if bulk.waiting:
                    bulk.release_before(outgoing)
                data = carrier.wrap(outgoing.data, peer, outgoing.envelope) if carrier else outgoing.data
                transport.send(data, outgoing.taken)
            if self._untaken > 1 or self._flush_planned:
                return
            # The last answer is written at once, so that its reader need not wait until this call is tidied up.
            session = sessions.get(peer)
            if outgoing.answers and (session is None or not session.in_flight):
                transport.flush()
            elif not self._untaken:
                self._plan_flush()

        return send

    def _plan_flush(self) -> None:
        if not self.engine.ready:
            self.transport.flush()
            return
        self._flush_planned = True
        self.engine.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._bulk.waiting:
            self._bulk.advance()
        self.transport.flush()


# -- A queue for bulk messages in a pipe that several calls share. Other messages overtake those that wait here.


# How much bulk may be in the transport's own queue, where nothing can overtake it.
INSIDE_BYTES = 16 * 1024

Write: TypeAlias = Callable[[OutgoingMessage, Callable[[], None]], None]


class BulkQueue:
    """Bulk messages wait here in order. Their sender bounds the queue: it waits until a message was `taken`."""

    __slots__ = ("waiting", "_advancing", "_inside")

    def __init__(self) -> None:
        self.waiting: deque[tuple[OutgoingMessage, Write]] = deque()
        self._inside, self._advancing = 0, False

    def add_message(self, outgoing: OutgoingMessage, write: Write) -> None:
        """Keep a message until `advance` finds room and calls `write`."""
        self.waiting.append((outgoing, write))

    def release_before(self, outgoing: OutgoingMessage) -> None:
        """Write the waiting messages of the same call, because `outgoing` is written next and belongs behind them."""
        # The answers to a batch belong to no single call.
        everyone = outgoing.answers and outgoing.relates_to is None
        waiting, self.waiting = self.waiting, deque[tuple[OutgoingMessage, Write]]()
        for item in waiting:
            if everyone or item[0].relates_to is outgoing.relates_to:
                self._enter(*item)
            else:
                self.waiting.append(item)

    def advance(self) -> None:
        """Write waiting messages while there is room. A closed transport takes each at once, so this may be nested."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self.waiting and self._inside < INSIDE_BYTES:
                self._enter(*self.waiting.popleft())
        finally:
            self._advancing = False

    def close(self) -> None:
        """Drop what waits, and tell the senders."""
        waiting, self.waiting = self.waiting, deque[tuple[OutgoingMessage, Write]]()
        for outgoing, _ in waiting:
            if outgoing.taken is not None:
                outgoing.taken()

    def _enter(self, outgoing: OutgoingMessage, write: Write) -> None:
        size = len(outgoing.data)

        def on_sent_or_dropped() -> None:
            self._inside -= size
            if outgoing.taken is not None:
                outgoing.taken()
            self.advance()

        if outgoing.relates_to is not None and outgoing.relates_to.cancelled:
            if outgoing.taken is not None:
                outgoing.taken()
            return
        self._inside += size
        write(outgoing, on_sent_or_dropped)


# -- What ends a process that serves: signals, and a clock for code that does not listen to them.
#
# For pipes and outgoing connections. Over HTTP, `network.py` catches the signals.


INTERRUPTED_EXIT_CODE = 130
STUCK_LOOP_GRACE_SECONDS = 1.0


class ShutdownHandler:
    """SIGTERM drains, SIGINT ends, a second signal of either kind ends at once.

    Before and after serving, a signal cancels `main`, and so the code of a lifespan. A stuck loop does not react to
    signals, and code may swallow its cancellation. Then the process is ended anyway.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, composition: Composition) -> None:
        import asyncio

        self.loop, self.composition = loop, composition
        self.main: asyncio.Task[Any] | None = None
        self.over = asyncio.Event()
        self.seconds: float | None = None
        self.serving = self.interrupted = self.finished = False
        self._signalled = False
        self._sent = self._heard = 0
        self._again: asyncio.Future[None] = loop.create_future()

    def install_signal_handlers(self) -> None:
        for number, action in ((signal.SIGTERM, self._drain), (signal.SIGINT, self._interrupt)):
            try:
                self.loop.add_signal_handler(number, action)
                signal.signal(number, self._watch)
                signal.siginterrupt(number, False)
            except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, or Windows
                return

    async def run_until_second_signal(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do the work, unless another signal comes first."""
        import asyncio

        task = self.loop.create_task(work)
        await asyncio.wait((task, self._again), return_when=asyncio.FIRST_COMPLETED)
        task.cancel()

    def finish(self) -> None:
        """Nothing is left to end. A signal that comes from now on does not write to a loop that closes."""
        self.finished = True
        with suppress(ValueError):  # not the main thread
            signal.set_wakeup_fd(-1)

    def set_deadline(self, seconds: float) -> None:
        """Give the remaining work so many seconds."""
        self.loop.call_later(seconds, self.cancel_lifespan, STUCK_LOOP_GRACE_SECONDS)
        exit_process_unless(lambda: self.finished, seconds + STUCK_LOOP_GRACE_SECONDS, self.exit_code)

    @property
    def exit_code(self) -> int:
        return INTERRUPTED_EXIT_CODE if self.interrupted else 0

    def _watch(self, number: int, frame: Any) -> None:
        # Runs besides the loop's own handler, which a stuck loop never calls.
        self._sent += 1
        sent, interrupt = self._sent, number == signal.SIGINT
        seconds = STUCK_LOOP_GRACE_SECONDS if interrupt or self._heard < sent - 1 else self.composition.limits.drain
        exit_process_unless(
            lambda: self._heard >= sent or self.finished, seconds, INTERRUPTED_EXIT_CODE if interrupt else 0
        )

    def drain(self, seconds: float) -> None:
        """Give the running calls so many seconds, then end. A later call changes nothing."""
        if not self.over.is_set():
            self.seconds = seconds
            self.over.set()

    def handle_early_signal(self, number: int) -> None:
        """Take a signal that came before anything was served."""
        self._signalled = True
        if number == signal.SIGINT:
            self._interrupt()
        else:
            self.composition.service.stop(self.composition.limits.drain)

    def _drain(self) -> None:
        if self._signalled or not self.serving:
            self._stop()
            return
        self._signalled, self._heard = True, self._sent
        if not self.over.is_set():
            self.composition.service.stop(self.composition.limits.drain)

    def _interrupt(self) -> None:
        self.interrupted = True
        self._stop()

    def _stop(self) -> None:
        self._heard = self._sent
        if not self.serving:
            self.cancel_lifespan(STUCK_LOOP_GRACE_SECONDS if self.over.is_set() else self.composition.limits.drain)
        elif self.over.is_set() and not self._again.done():
            self._again.set_result(None)
        self.over.set()

    def cancel_lifespan(self, seconds: float) -> None:
        """Cancel the code of a lifespan. It may clean up for so many seconds."""
        if self.main is not None:
            self.main.cancel()
            exit_process_unless(lambda: self.finished, seconds, self.exit_code)


def exit_process_unless(happened: Callable[[], bool], seconds: float, code: int) -> None:
    """End the process after `seconds`, unless `happened()`. A thread does it, so that nothing can block it."""
    import os
    import time
    from _thread import start_new_thread

    def wait() -> None:
        time.sleep(seconds)
        if happened():
            return
        try:
            os.write(2, b"defserve: the event loop does not react; ended without it\n")
        finally:
            os._exit(code)

    try:
        # Not `threading`: it takes a lock that the interrupted code may hold.
        start_new_thread(wait, ())
    except RuntimeError:  # the system has no more threads
        pass
