"""One conversation with one peer (JSON-RPC). No I/O, no clock, no protocol names: messages in, messages out.

How it works: bytes are decoded, and each message is dispatched here. A request becomes a `Call` (`call.py`), which may
wait for room, is run by the engine, and ends in one reply. What is not a single request, and our own requests to the
peer, are in `peer.py`. What is left of a session when it is written down is a record (below).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call, CallQueue, ExtensionLocals, FinalReply, ReplyBatch, can_skip_queue, queue_call
from defserve.core.extension import AddressedMessage, Offer, OutgoingMessage, SendRequest
from defserve.core.messages import (
    Message,
    Params,
    Reply,
    Request,
    RequestId,
    decode,
    encode,
    encode_at_startup,
    encode_notification,
    encode_result,
)
from defserve.core.peer import (
    TOO_MANY_CALLS_CODE,
    UNSENT_SIGN_IN_CODE,
    OutgoingRequests,
    SessionRequest,
    can_act_for,
    feed_batch,
    feed_non_request,
    refuse_malformed_message,
    unwrap_reply,
)
from defserve.errors import (
    CredentialEnded,
    Draining,
    InvalidRequest,
    LimitExceeded,
    MethodNotFound,
    NoBackChannel,
    NotOpen,
    PeerGone,
    StepUpRequired,
    TooManyCalls,
)

if TYPE_CHECKING:
    from defserve.core.composition import Composition, NegotiatedTerms
    from defserve.core.engine import Engine
    from defserve.core.peer import PeerIdentity
    from defserve.core.service import SessionHolder, SessionSharer


NO_REPLY: FinalReply = (b"", None)
_TOLD_TO_TRANSPORTS = ((TooManyCalls, TOO_MANY_CALLS_CODE), (StepUpRequired, UNSENT_SIGN_IN_CODE))

UNREAD_OFFER = Offer("", {}, {})
"""Stands for the offer of a request that has not been read yet."""


class Session(ExtensionLocals):
    """Takes frames with `feed_bytes`, gives each `OutgoingMessage` to `outlet`, lives as long as the peer's connection.

    `principal` names the caller that the session belongs to. `identity` is who opened it; what a request may do is up
    to the identity of its own call. An `is_local` peer is the user who runs this server. An `is_shared_identity`
    principal stands for many callers, so the limit for one caller does not apply. A stranger is limited by its
    `address`. Its `holder` can tell whether it is idle, and can end it when another one needs its place. A session that
    is not `counted` serves a single request, so it `is_short`; the session limits ignore it.

    `in_flight` holds the calls that run or wait. `queue` is None unless calls wait. `room` is how many calls may run.
    A transport that can stop reading sets `on_room`, and reads nothing while the session is `full`. `on_room` is called
    when it may read again; it may be called more often.
    """

    __slots__ = (
        "composition",
        "engine",
        "outlet",
        "principal",
        "is_local",
        "identity",
        "is_shared_identity",
        "address",
        "is_short",
        "holder",
        "peer",
        "terms",
        "ready",
        "closed",
        "in_flight",
        "room",
        "idle",
        "queue",
        "on_room",
        "_requests",
        "malformed_in_a_row",
    )

    def __init__(
        self,
        composition: Composition,
        engine: Engine,
        outlet: Callable[[OutgoingMessage], None],
        *,
        principal: str = "local",
        is_local: bool = True,
        identity: PeerIdentity | None = None,
        is_shared_identity: bool = False,
        address: str | None = None,
        peer: str = "",
        counted: bool = True,
    ) -> None:
        super().__init__()
        self.composition, self.engine, self.outlet = composition, engine, outlet
        self.principal, self.identity, self.peer = principal, identity, peer
        self.is_local, self.is_shared_identity = is_local, is_shared_identity
        self.address: str | None = address
        self.is_short = not counted
        self.holder: SessionHolder | None = None
        self.terms: NegotiatedTerms | None = None
        self.ready = self.closed = False
        self.in_flight: dict[RequestId, Call] = {}
        self.room, self.idle = composition.limits.in_flight, 0
        self.queue: CallQueue | None = None
        self.on_room: Callable[[], None] | None = None
        self._requests: OutgoingRequests[SessionRequest] | None = None
        self.malformed_in_a_row = 0
        if counted:
            composition.admit(self)
        else:
            composition.short_sessions.add(self)

    # -- in ----------------------------------------------------------------------------------------------

    def feed_bytes(self, data: bytes | None, envelope: object | None = None) -> bool:
        """One frame from the peer; None stands for one past the size limit.

        Returns False, and does nothing, if an answer needs an event loop and there is none yet.
        """
        limits = self.composition.limits
        if data is None:
            refuse_malformed_message(self, f"Invalid request: longer than {limits.message} bytes", envelope)
            return True
        message = decode(data, limits.depth, limits.keys)
        if type(message) is not Request:
            return self.feed_message(message, envelope)
        self.malformed_in_a_row = 0
        return self.feed_request(message, envelope)

    def feed_message(
        self, message: Message | list[Message], envelope: object | None = None, identity: PeerIdentity | None = None
    ) -> bool:
        """One decoded frame, for transports that decode it themselves; see `feed_bytes`.

        `identity` is who sent it, where that is known for each frame. Otherwise it is who opened the session.
        """
        if type(message) is Request:
            self.malformed_in_a_row = 0
            return self.feed_request(message, envelope, identity)
        if isinstance(message, list):
            return feed_batch(self, message, envelope, identity)
        return feed_non_request(self, message, envelope, identity)

    def start_call(
        self,
        request: Request,
        envelope: object | None = None,
        offer: Offer | None = UNREAD_OFFER,
        identity: PeerIdentity | None = None,
    ) -> Call | FinalReply:
        """Like `feed_request`, for a transport with one task a request. Returns the reply if it is there already.

        Otherwise returns the call. That task awaits its `rest`, and then takes its `reply`; or it has the reply sent to
        the outlet, by `Call.send_reply`. `offer` is the offer in the request, if the transport has read it.
        """
        self.malformed_in_a_row = 0
        call = self._call(request, envelope)
        if identity is not None:
            call.identity = identity
        call.held = True
        work = self._start(call, request, offer)
        if isinstance(work, bool) or (left := self.engine.run_call_here(call, work)) is None:
            return call.reply or NO_REPLY
        call.rest = left
        return call

    def feed_reply(self, reply: Reply, identity: PeerIdentity | None) -> None:
        """Take an answer to a question of ours, from who may give it."""
        if self._requests is not None and self.takes_answer(reply, identity):
            self._requests.set_reply(reply)

    def takes_answer(self, reply: Reply, identity: PeerIdentity | None) -> bool:
        """Whether this sender may answer. A question is for who made the call that asks, and who has its rights."""
        question = self._requests.get(reply.id) if self._requests is not None and reply.id is not None else None
        return question is None or can_act_for(identity, question.asker)

    def feed_request(
        self,
        request: Request,
        envelope: object | None,
        identity: PeerIdentity | None = None,
        batch: ReplyBatch | None = None,
    ) -> bool:
        """`feed_bytes` for a request that is decoded, and may be part of a batch."""
        call = self._call(request, envelope)
        if identity is not None:
            call.identity = identity
        if batch is not None:
            call.batch = batch
        work = self._start(call, request, UNREAD_OFFER)
        if isinstance(work, bool):
            return work
        self.engine.start_call(call, work)
        return True

    def _call(self, request: Request, envelope: object | None) -> Call:
        terms = self.terms or self.composition.unopened
        call = Call(self, request.id, request.method, request.params, request.raw, terms)
        if envelope is not None:
            call.envelope = envelope
        return call

    def _start(self, call: Call, request: Request, offer: Offer | None) -> Coroutine[Any, Any, Any] | bool:
        """The work a call needs. True when it has been answered already; False when it needs a loop and has none."""
        composition, terms, calls = self.composition, call.terms, self.in_flight
        try:
            if offer is UNREAD_OFFER:
                offer = composition.offer_in(request)
            if offer is not None:
                call.terms = terms = composition.negotiate_terms(offer)
            method = terms.methods.get(call.method)
            if method is None:
                raise self._unknown(call.method, terms)
            if not (method.immediate or self.engine.ready):
                return False
            if call.id in calls:
                raise InvalidRequest(f"Invalid request: id {call.id!r} is already in flight")
            if not method.immediate:  # immediate answers need no room: a ping is always answered
                limits = composition.limits
                if composition.draining and not method.vital:
                    raise Draining("the server is shutting down", data={"retry_after_ms": 1000})
                if (
                    self.queue is not None or len(calls) >= self.room or composition.running >= limits.in_flight_total
                ) and not can_skip_queue(self, method):
                    return queue_call(self, call, method)
            calls[call.id] = call
            composition.running += 1
        except Exception as error:
            self._reply(call, *encode_failure_reply(call, error, self._encode_failure))
            return True
        try:
            run = method.run  # looked up apart: an attribute that is called is taken for a method
            result: Any = run(call, call.params)
            if method.immediate and not self.engine.ready:
                result = encode_at_startup(call.terms.profile.result(call, result))
        except Exception as error:
            self.fail(call, error)
            return True
        if not method.immediate or result.__class__ is CoroutineType:  # it must ask another process after all
            return result
        self.settle(call, result)
        return True

    @property
    def full(self) -> bool:
        """Whether so many calls wait that nothing more should be read from the peer."""
        return self.queue is not None and self.queue.is_full

    def waits_for_room(self, envelope: object) -> bool:
        """Whether a call that came in this envelope has not begun."""
        return self.queue is not None and self.queue.has_waiting_call(envelope)

    def make_room(self, calls: int) -> None:
        """So many calls more, or less, wait for the peer or never end. They take no room, up to `in_flight_total`."""
        limits = self.composition.limits
        self.idle += calls
        self.room = min(limits.in_flight + self.idle, max(limits.in_flight, limits.in_flight_total))
        self.composition.adjust_idle_calls(calls)
        if self.queue is not None:
            self.queue.admit_waiting_calls()

    def _unknown(self, method: str, terms: NegotiatedTerms) -> Exception:
        if terms is self.composition.unopened and method in self.composition.known_methods:
            return NotOpen(f"{method} came before the conversation was opened")
        return MethodNotFound(f"Method not found: {method}")

    # -- out ---------------------------------------------------------------------------------------------

    def settle(self, call: Call, result: Any) -> None:
        """Answer a call. The first outcome counts; after a cancellation nothing is sent."""
        if call.settled:
            return
        code = None
        try:
            data = encode_result(call.id, call.terms.profile.result(call, result))
            if len(data) > self.composition.limits.response:
                raise make_too_large_error(call)
        except Exception as error:
            call.unsendable = error
            data, code = encode_failure_reply(call, error, self._encode_failure)
        self._end(call, data, code)

    def fail(self, call: Call, error: BaseException) -> None:
        """Answer a call with an exception, shaped by the terms of the call."""
        if not call.settled:
            self._end(call, *(NO_REPLY if call.cancelled else encode_failure_reply(call, error, self._encode_failure)))

    def _end(self, call: Call, data: bytes, code: int | None) -> None:
        call.settled = True
        if call.on_end is not None:
            call.on_end()
        del self.in_flight[call.id]
        composition = self.composition
        if call.queued is None:
            composition.running -= 1
        elif self.queue is not None:
            self.queue.remove(call)
        # An empty message tells a transport that this call is over without an answer.
        self._reply(call, b"" if call.cancelled else data, code)
        if composition.line:
            composition.admit_waiting_calls()
        if self.queue is not None:
            self.queue.admit_waiting_calls()

    def _encode_failure(self, call: Call, error: BaseException) -> FinalReply:
        body = make_reply_body_for_error(call, error)
        code = next((code for kind, code in _TOLD_TO_TRANSPORTS if isinstance(error, kind)), None)
        code = code or body.get("error", {}).get("code")
        return encode({"jsonrpc": "2.0", "id": call.id, **body}), code

    def _reply(self, call: Call, data: bytes, code: int | None) -> None:
        if call.held:
            call.reply = data, code
            return
        if call.batch is None:
            self.outlet(OutgoingMessage(data, call, True, call.envelope, code))
            return
        if data:
            call.batch.replies.append(data)
        call.batch.on_member_done(self.outlet)

    def notify(self, method: str, params: Params, *, audience: tuple[PeerIdentity, ...] | None = None) -> None:
        """Tell the peer something. `audience` says who may read it, as in `OutgoingMessage`."""
        data = encode_notification(method, params)
        self.outlet(OutgoingMessage(data, None) if audience is None else AddressedMessage(data, audience))

    async def request(
        self,
        method: str,
        params: Params,
        *,
        relates_to: Call | None = None,
        timeout: float | None = None,
        numbered: Callable[[RequestId], None] | None = None,
        identity: PeerIdentity | None = None,
    ) -> Any:
        """Ask the peer and wait for its answer. `numbered` is called with the request's id before it is sent.

        The question is for who made the call, else for `identity`, else for who opened the session.
        Raises PeerError if it answers with an error, PeerTimeout if it does not answer in time, PeerGone if it
        leaves first, NoBackChannel if this conversation cannot call back.
        """
        terms = relates_to.terms if relates_to is not None else self.terms
        if terms is None or not terms.profile.calls_back:
            raise NoBackChannel(f"{method}: this peer takes no requests")
        send: SendRequest = partial(self._send_request, terms, method, relates_to, timeout, identity)
        for wrap in self.composition.request_wrappers:
            send = partial(wrap, self, method, send)
        return await send(params, numbered)

    async def _send_request(
        self,
        terms: NegotiatedTerms,
        method: str,
        relates_to: Call | None,
        timeout: float | None,
        identity: PeerIdentity | None,
        params: Params,
        numbered: Callable[[RequestId], None] | None,
    ) -> Any:
        if self.closed:
            raise PeerGone(f"{method}: the peer has left")
        if self._requests is None:
            self._requests = OutgoingRequests(self.sharer.numbering if self.sharer is not None else "")
        requests, id = self._requests, self._requests.next_id()
        asker = relates_to.identity if relates_to is not None else identity or self.identity
        question = requests[id] = SessionRequest(id, method, self.engine.create_future(), relates_to, asker)
        if numbered is not None:
            numbered(id)
        asking = question.make_message(
            encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params}), asks=id
        )
        self.outlet(asking)
        seconds = timeout or self.composition.limits.question
        question.set_deadline(self.engine.call_later, seconds, "{method}: no answer within {seconds:g} s")
        try:
            return unwrap_reply(await question.reply, "the peer gave no reason")
        finally:
            question.stop_waiting()
            if asking.release is not None:
                asking.release()
            if requests.pop(id, None) is not None and (withdrawal := terms.profile.withdrawal(id)) is not None:
                self.outlet(question.make_message(encode_notification(*withdrawal)))

    # -- life --------------------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """The version that was agreed on; empty while the conversation is not open."""
        return self.terms.offer.version if self.terms is not None and self.terms.offer is not None else ""

    @property
    def takes_batches(self) -> bool:
        """Whether the peer may send several messages in one array."""
        return self.terms is not None and self.terms.profile.batches

    def open(self, offer: Offer) -> NegotiatedTerms:
        """Agree on terms that hold until the conversation ends."""
        self.terms = self.composition.negotiate_terms(offer)
        return self.terms

    @property
    def sharer(self) -> SessionSharer | None:
        """Who shares this session with other processes, if somebody does."""
        return self.holder.sharer if self.holder is not None else None

    def record(self) -> dict[str, Any]:
        """What another process must know to go on with this session."""
        return export_session_record(self)

    def restore(self, record: Mapping[str, Any]) -> None:
        """Go on with a session of another process."""
        restore_session(self, record)

    def mark_dirty(self) -> None:
        """What an extension keeps for this session (`Extension.export_state`) has changed."""
        if self.sharer is not None:
            self.sharer.mark_dirty()

    def belong_to(self, identity: PeerIdentity) -> None:
        """The peer has authenticated after the conversation began. Raises LimitExceeded if it has too many sessions."""
        before = self.principal, self.identity, self.address
        counted = identity.id != self.principal and self in self.composition.sessions
        if counted:
            self.composition.remove_session(self)
        self.principal, self.identity, self.address = identity.id, identity, None
        if counted:
            try:
                self.composition.admit(self)
            except LimitExceeded:
                self.principal, self.identity, self.address = before
                self.composition.admit(self)
                raise

    def cancel(self, id: RequestId, identity: PeerIdentity | None = None) -> None:
        """Stop a call for good: no reply follows. Unknown and finished ids are ignored.

        So are those of a call that this sender may not end.
        """
        if (call := self.in_flight.get(id)) is None:
            if self.sharer is not None:
                self.sharer.cancel_elsewhere(id, identity)
        elif can_act_for(identity, call.identity):
            self._cancel(call)

    def _cancel(self, call: Call) -> None:
        call.cancelled = True
        if call.queued is None:
            call.stop()
        else:
            self._end(call, *NO_REPLY)

    def end_credential(self, credential: str) -> None:
        """A credential has been revoked, or has expired: its calls fail, and what was done with it is forgotten."""
        for call in list(self.in_flight.values()):
            if call.identity is not None and call.identity.credential == credential:
                self.fail(call, CredentialEnded())
                call.stop()
        for credential_ended in self.composition.credential_enders:
            credential_ended(self, credential)

    @property
    def is_untouched(self) -> bool:
        """Whether nothing is left of what it served, so that it can be used again."""
        return not (self.in_flight or self.terms or self.closed) and self._locals is None and self._requests is None

    def close(self) -> None:
        """The peer has left: stop its calls, and fail our open requests to it."""
        if self.closed:
            return
        self.closed = True
        self.composition.remove_session(self)
        for call in list(self.in_flight.values()):
            self._cancel(call)
        if self._requests is not None:
            self._requests.fail_all_requests("the peer has left")
        for session_closed in self.composition.closers:
            session_closed(self)


# -- An exception as the reply to a call.


def encode_failure_reply(
    call: Call, error: BaseException, encode: Callable[[Call, BaseException], FinalReply]
) -> FinalReply:
    """The reply, and its code if it is an error. `encode` raises for what has no form on the wire."""
    try:
        data, code = encode(call, error)
    except Exception as unspeakable:  # the error's own data, or an author's class without `super().__init__`
        call.unsendable = unspeakable
        return encode(call, unspeakable)
    if len(data) > call.session.composition.limits.response:  # an author's message may hold anything
        call.unsendable = too_large = make_too_large_error(call)
        return encode(call, too_large)
    return data, code


def make_reply_body_for_error(call: Call, error: BaseException) -> Params:
    """What a reply says beside its id: `error`, or `result` if the model should read it."""
    return call.terms.table.failure(call, error) or call.terms.profile.failure(call, error)


def make_too_large_error(call: Call) -> LimitExceeded:
    """Says that a result is longer than a reply may be, and whose result it is."""
    limit, data = call.session.composition.limits.response, {"limit": "response"}
    if (server := getattr(call.subject, "server_id", None)) is None:
        return LimitExceeded(f"the result is larger than {limit} bytes", data=data)
    return LimitExceeded(
        f"the result of server {server!r} is larger than {limit} bytes", data={**data, "server_id": server}
    )


# -- What is left of a session when it is written down, so that another process can go on with it.


OFFER, READY, KEPT = "offer", "ready", "kept:"


def export_session_record(session: Session) -> dict[str, Any]:
    """The offer of an open session, whether its peer is ready, and what each extension keeps for it. JSON values."""
    assert session.terms is not None and session.terms.offer is not None
    offer = session.terms.offer
    record: dict[str, Any] = {OFFER: [offer.version, offer.capabilities, offer.info], READY: session.ready}
    for extension in session.composition.keepers:
        record |= {f"{KEPT}{extension.name}:{name}": value for name, value in extension.export_state(session).items()}
    return record


def restore_session(session: Session, record: Mapping[str, Any]) -> None:
    """Make a session as its record says. It may have been open before."""
    if session.terms is None:
        version, capabilities, info = record[OFFER]
        session.open(Offer(version, capabilities, info))
    session.ready = bool(record.get(READY))
    for extension in session.composition.keepers:
        mine = f"{KEPT}{extension.name}:"
        kept = {name.removeprefix(mine): value for name, value in record.items() if name.startswith(mine)}
        extension.import_state(session, kept)
