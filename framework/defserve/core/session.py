"""One conversation with one peer (JSON-RPC). No I/O, no clock, no protocol names: messages in, messages out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from defserve.core.call import Call
from defserve.core.extension import Offer, Outgoing, is_coroutine_function
from defserve.core.profile import error_object
from defserve.errors import (
    Draining,
    InvalidRequest,
    LimitExceeded,
    MethodNotFound,
    NoBackChannel,
    NotOpen,
    PeerError,
    PeerGone,
    PeerTimeout,
    ProtocolError,
)
from defserve.limits import Limits
from defserve.wire.codec import INVALID_REQUEST, decode, encode, encode_result, notification
from defserve.wire.messages import Id, Malformed, Message, Notification, Params, Reply, Request

if TYPE_CHECKING:
    from defserve.core.composition import Composition, Terms
    from defserve.core.engine import Engine, Pending

T = TypeVar("T")


class Batch:
    """The replies of one array of requests, sent together when the last is there."""

    __slots__ = ("waiting", "envelope", "replies")

    def __init__(self, envelope: object | None) -> None:
        self.waiting, self.envelope = 0, envelope
        self.replies: list[bytes] = []


class Session:
    """Takes frames with `receive`, gives `Outgoing` to `outlet`. Lives as long as the peer's connection or session.

    `is_local` peers are processes of the same user (stdio, unix socket, memory).
    """

    __slots__ = (
        "composition",
        "engine",
        "outlet",
        "principal",
        "is_local",
        "peer",
        "terms",
        "ready",
        "closed",
        "in_flight",
        "_locals",
        "_asked",
        "_next_id",
        "_malformed",
    )

    def __init__(
        self,
        composition: Composition,
        engine: Engine,
        outlet: Callable[[Outgoing], None],
        *,
        principal: str = "local",
        is_local: bool = True,
        peer: str = "",
    ) -> None:
        self.composition, self.engine, self.outlet = composition, engine, outlet
        self.principal, self.is_local, self.peer = principal, is_local, peer
        self.terms: Terms | None = None
        self.ready = self.closed = False
        self.in_flight: dict[Id, Call] = {}
        self._locals: dict[type, Any] | None = None
        self._asked: dict[Id, Pending] | None = None
        self._next_id = self._malformed = 0
        composition.admit(self)

    # -- in ----------------------------------------------------------------------------------------------

    def receive(self, data: bytes | None, envelope: object | None = None) -> bool:
        """One frame from the peer; None stands for one past the size limit.

        Returns False when it was left alone because answering it needs an event loop and there is none yet.
        """
        limits = self.composition.limits
        if data is None:
            text = f"Invalid request: longer than {limits.message} bytes"
            self._refuse(Malformed(INVALID_REQUEST, text), envelope)
            return True
        message = decode(data, depth=limits.depth, keys=limits.keys)
        if type(message) is Request:
            self._malformed = 0
            return self._request(message, envelope)
        if isinstance(message, list):
            return self._receive_batch(message, envelope)
        return self._other(message, envelope)

    def _other(self, message: Message, envelope: object | None) -> bool:
        if isinstance(message, Malformed):
            message = self._meant(message)
        if isinstance(message, Malformed):
            self._refuse(message, envelope)
            return True
        self._malformed = 0
        if isinstance(message, Notification):
            return self._notification(message)
        if isinstance(message, Reply):
            self._answer(message)
        return True

    def _meant(self, malformed: Malformed) -> Message:
        """What can be made of it after all: a notification with a null id, or a broken answer, which fails ours."""
        notification = malformed.notification
        if notification is not None and notification.method in self.composition.known_notifications:
            return notification
        if malformed.is_reply:
            return Reply(malformed.id, None, {"code": malformed.code, "message": malformed.message})
        return malformed

    def _receive_batch(self, messages: list[Message], envelope: object | None) -> bool:
        if not (self.terms and self.terms.profile.batches):
            text = "Invalid request: batches are not part of this protocol version"
            self._refuse(Malformed(INVALID_REQUEST, text), envelope)
            return True
        if not self.engine.ready:
            return False
        batch = Batch(envelope)
        batch.waiting = 1  # held open until every member has been looked at
        for message in messages:
            if isinstance(message, Malformed):
                message = self._meant(message)
            if isinstance(message, Request):
                self._malformed = 0
                batch.waiting += 1
                self._request(message, envelope, batch)
            elif isinstance(message, Malformed):
                batch.replies.append(self._refusal(message))
            else:
                self._other(message, envelope)
        self._batch_done(batch)
        return True

    def _request(self, request: Request, envelope: object | None, batch: Batch | None = None) -> bool:
        terms = self.terms or self.composition.unopened
        call = Call(self, request.id, request.method, request.params, request.raw, terms)
        call.envelope, call.batch = envelope, batch
        try:
            offer = self.composition.offer_in(request)
            if offer is not None:
                call.terms = terms = self.composition.agree(offer)
            method = terms.methods.get(request.method)
            if method is None:
                raise self._unknown(request.method, terms)
            if not (method.immediate or self.engine.ready):
                return False
            self._admit(call, immediate=method.immediate)
        except Exception as error:
            self._reply(call, self._failure(call, error))
            return True
        try:
            if method.immediate:
                self.settle(call, method.run(call, call.params))
            else:
                self.engine.start(call, method.run(call, call.params))
        except Exception as error:
            self.fail(call, error)
        return True

    def _unknown(self, method: str, terms: Terms) -> Exception:
        if terms is self.composition.unopened and method in self.composition.known_methods:
            return NotOpen(f"{method} came before the conversation was opened")
        return MethodNotFound(f"Method not found: {method}")

    def _admit(self, call: Call, *, immediate: bool) -> None:
        limits, in_flight = self.composition.limits, self.in_flight
        if call.id in in_flight:
            raise InvalidRequest(f"Invalid request: id {call.id!r} is already in flight")
        if not immediate:  # what is answered at once takes no room, and a ping has to be answered
            self._make_sure_there_is_room(limits)
        in_flight[call.id] = call
        self.composition.running += 1

    def _make_sure_there_is_room(self, limits: Limits) -> None:
        if self.composition.draining:
            raise Draining("the server is shutting down", data={"retry_after_ms": 1000})
        if len(self.in_flight) >= limits.in_flight:
            raise LimitExceeded(
                f"too many calls in flight: at most {limits.in_flight} a session",
                data={"limit": "in_flight", "retry_after_ms": 100},
            )
        if self.composition.running >= limits.in_flight_total:
            raise LimitExceeded(
                f"too many calls in flight: at most {limits.in_flight_total} in this server",
                data={"limit": "in_flight_total", "retry_after_ms": 100},
            )

    def _notification(self, notification: Notification) -> bool:
        terms = self.terms or self.composition.unopened
        try:
            offer = self.composition.offer_in(notification)
            if offer is not None:
                terms = self.composition.agree(offer)
            listeners = terms.listeners.get(notification.method, ())
            if not self.engine.ready and any(map(is_coroutine_function, listeners)):
                return False
            for listener in listeners:
                work = listener(self, notification.params)
                if work is not None:
                    self.engine.spawn(work)
        except ProtocolError:
            pass  # a broken notification is never answered
        except Exception:
            import logging

            logging.getLogger("defserve").exception("%s failed", notification.method)
        return True

    def _answer(self, reply: Reply) -> None:
        pending = self._asked.pop(reply.id, None) if self._asked and reply.id is not None else None
        if pending is None or pending.done():
            return
        if reply.error is None:
            pending.set_result(reply.result)
            return
        code, message = reply.error.get("code"), reply.error.get("message")
        pending.set_exception(
            PeerError(str(message), code=code if isinstance(code, int) else -32603, data=reply.error.get("data"))
        )

    # -- out ---------------------------------------------------------------------------------------------

    def settle(self, call: Call, result: Any) -> None:
        """Answer a call. The first outcome counts; after a cancellation nothing is sent."""
        if call.settled:
            return
        try:
            data = encode_result(call.id, call.terms.profile.result(call, result))
            if len(data) > self.composition.limits.response:
                raise LimitExceeded(
                    f"the result is larger than {self.composition.limits.response} bytes",
                    data={"limit": "response"},
                )
        except Exception as error:
            data = self._failure(call, error)
        self._end(call, data)

    def fail(self, call: Call, error: BaseException) -> None:
        """Answer a call with an exception, shaped by the terms of the call."""
        if not call.settled:
            self._end(call, b"" if call.cancelled else self._failure(call, error))

    def _end(self, call: Call, data: bytes) -> None:
        call.settled = True
        del self.in_flight[call.id]
        self.composition.running -= 1
        if not call.cancelled:
            self._reply(call, data)
        elif call.batch is not None:
            self._batch_done(call.batch)

    def _failure(self, call: Call, error: BaseException) -> bytes:
        try:
            return encode({"jsonrpc": "2.0", "id": call.id, **call.terms.profile.failure(call, error)})
        except ValueError as unspeakable:  # the error's own data has no JSON form
            return encode({"jsonrpc": "2.0", "id": call.id, **call.terms.profile.failure(call, unspeakable)})

    def _reply(self, call: Call, data: bytes) -> None:
        if call.batch is None:
            self.outlet(Outgoing(data, call, True, call.envelope))
        else:
            call.batch.replies.append(data)
            self._batch_done(call.batch)

    def _batch_done(self, batch: Batch) -> None:
        batch.waiting -= 1
        if batch.waiting == 0 and batch.replies:
            self.outlet(Outgoing(b"[%b]" % b",".join(batch.replies), None, envelope=batch.envelope))

    def _refuse(self, malformed: Malformed, envelope: object | None) -> None:
        # Two peers that answer each other's errors would never stop.
        self._malformed += 1
        if self._malformed <= self.composition.limits.malformed_in_a_row:
            self.outlet(Outgoing(self._refusal(malformed), None, envelope=envelope))

    def _refusal(self, malformed: Malformed) -> bytes:
        body: Params = {"jsonrpc": "2.0", "error": error_object(malformed.code, malformed.message)}
        if malformed.id is not None or (self.terms or self.composition.unopened).profile.null_id:
            body["id"] = malformed.id
        return encode(body)

    def notify(self, method: str, params: Params, *, relates_to: Call | None = None) -> None:
        """Tell the peer something."""
        self.outlet(Outgoing(notification(method, params), relates_to))

    async def request(
        self, method: str, params: Params, *, relates_to: Call | None = None, timeout: float | None = None
    ) -> Any:
        """Ask the peer and wait for its answer.

        Raises PeerError if it answers with an error, PeerTimeout if it does not answer in time, PeerGone if it
        leaves first, NoBackChannel if this conversation cannot call back.
        """
        terms = relates_to.terms if relates_to is not None else self.terms
        if terms is None or not terms.profile.calls_back:
            raise NoBackChannel(f"{method}: this peer takes no requests")
        if self.closed:
            raise PeerGone(f"{method}: the peer has left")
        self._next_id += 1
        id, pending = self._next_id, self.engine.pending()
        if self._asked is None:
            self._asked = {}
        self._asked[id] = pending
        self.outlet(Outgoing(encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params}), relates_to))
        try:
            return await self.engine.wait(pending, timeout or self.composition.limits.question)
        except TimeoutError:
            raise PeerTimeout(f"{method}: no answer within {timeout or self.composition.limits.question} s") from None
        finally:
            if self._asked.pop(id, None) is not None and not self.closed:
                withdrawal = terms.profile.withdrawal(id)
                if withdrawal is not None:
                    self.notify(*withdrawal, relates_to=relates_to)

    # -- life --------------------------------------------------------------------------------------------

    def open(self, offer: Offer) -> Terms:
        """Agree on terms that hold until the conversation ends."""
        self.terms = self.composition.agree(offer)
        return self.terms

    def local(self, kind: type[T]) -> T:
        """This conversation's own instance of `kind`, made on first use."""
        if self._locals is None:
            self._locals = {}
        if kind not in self._locals:
            self._locals[kind] = kind()
        return self._locals[kind]

    def peek(self, kind: type[T]) -> T | None:
        """This conversation's instance of `kind` if it was ever made."""
        return self._locals.get(kind) if self._locals else None

    def cancel(self, id: Id) -> None:
        """Stop a call for good: no reply follows. Unknown and finished ids are ignored."""
        call = self.in_flight.get(id)
        if call is None:
            return
        call.cancelled = True
        call.stop()

    def close(self) -> None:
        """The peer has left: nobody waits for answers any more, and nobody will give one."""
        if self.closed:
            return
        self.closed = True
        self.composition.dismiss(self)
        for call in list(self.in_flight.values()):
            call.cancelled = True
            call.stop()
        for pending in (self._asked or {}).values():
            if not pending.done():
                pending.set_exception(PeerGone("the peer has left"))
        for extension in self.composition.extensions:
            extension.session_closed(self)
