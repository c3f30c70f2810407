"""Connects a transport and its sessions: frames in, messages out, one session for each peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from defserve.core.call import Call
from defserve.core.composition import Composition
from defserve.core.engine import Engine, NoLoopYet
from defserve.core.extension import CarriedMessage, Carrier, OutgoingMessage
from defserve.core.identity import PeerIdentity
from defserve.core.profile import error_object
from defserve.core.session import Session
from defserve.errors import LimitExceeded
from defserve.runner.bulk_queue import BulkQueue
from defserve.wire.codec import decode, encode
from defserve.wire.messages import INTERNAL_ERROR, Request

if TYPE_CHECKING:
    import asyncio


# To a peer for whom more waits, only answers and questions are sent.
MOST_UNREAD = 4 * 1024 * 1024


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


def known_of(identity: PeerIdentity) -> dict[str, Any]:
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
        self.engine: Engine = NoLoopYet()  # pyright: ignore[reportAttributeAccessIssue]
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
        self._take = self._unwrap if self._only is None else self._only.receive

    def attach(self, engine: Engine) -> None:
        """A loop is running: take the frames that had to wait for it."""
        self.engine = engine
        for session in self.sessions.values():
            session.engine = engine
        waiting, self.waiting = self.waiting, []
        if waiting:
            self.received(waiting)

    def received(self, frames: list[bytes | None]) -> None:
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
        known: dict[str, Any] = {"principal": self.principal} if self.caller is None else known_of(self.caller(peer))
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
                session.receive(parcel.data, parcel.envelope)
            elif (work := carrier.happened(session, parcel.event)) is not None:
                self.engine.spawn(work)
            if session.closed:
                self._forget(session)
        return True

    def _forget(self, session: Session) -> None:
        """A peer that has left is kept only until its calls have cleaned up."""
        self._ending = [each for each in self._ending if each.in_flight]
        del self.sessions[session.peer]
        if session.in_flight:
            self._ending.append(session)

    def _turn_away(self, carrier: Carrier, parcel: CarriedMessage, error: LimitExceeded) -> None:
        """Refuse the request of a peer if there is no room for a session. Anything else it sent is dropped."""
        message = decode(parcel.data) if parcel.data is not None else None
        if isinstance(message, Request):
            body = error_object(INTERNAL_ERROR, error.message, {"error_type": error.error_type, **error.data})
            reply = encode({"jsonrpc": "2.0", "id": message.id, "error": body})
            self.transport.send(carrier.wrap(reply, parcel.peer, parcel.envelope))

    def _outlet(self, peer: str) -> Callable[[OutgoingMessage], None]:
        carrier, transport, sessions, bulk = self.carrier, self.transport, self.sessions, self._bulk

        def write(outgoing: OutgoingMessage, taken: Callable[[], None]) -> None:
            transport.send(carrier.wrap(outgoing.data, peer, outgoing.envelope) if carrier else outgoing.data, taken)

        def send(outgoing: OutgoingMessage) -> None:
            if outgoing.bulk:
                bulk.put(outgoing, write)
            elif outgoing.data:
                if not outgoing.answers and transport.queued > MOST_UNREAD and not outgoing.asks:
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
        self.engine.soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._bulk.waiting:
            self._bulk.advance()
        self.transport.flush()
