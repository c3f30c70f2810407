"""The peer of a conversation: who it is, how replies look to it, what we ask of it, and what it sends beside requests.

How it works: who the peer is comes first, as far as a conversation has to know it. Then the requests that we send to
it, until they are answered: servers and clients use the same. Then what a session does with batches, notifications,
answers and messages that nobody can read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from defserve.base.peer_bounds import MAX_PEER_TEXT_LENGTH, truncate_text
from defserve.core.call import Call, ReplyBatch
from defserve.core.extension import AddressedMessage, OutgoingMessage, is_coroutine_function
from defserve.core.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MalformedMessage,
    Message,
    Notification,
    Params,
    Reply,
    Request,
    RequestId,
    encode,
)
from defserve.errors import PeerError, PeerGone, PeerTimeout, ProtocolError, Refused

if TYPE_CHECKING:
    from asyncio import Future

    from defserve.core.engine import CallLater, CancellableTask
    from defserve.core.session import Session


class PeerIdentity(Protocol):
    """One caller, as it has shown itself with one credential. A caller may have several, with different rights."""

    @property
    def id(self) -> str:
        """The principal. Sessions and state belong to it."""
        ...

    @property
    def kind(self) -> str: ...

    @property
    def is_shared_identity(self) -> bool:
        """Whether many callers have it, who cannot be told apart."""
        ...

    @property
    def credential(self) -> str:
        """Names the key or token that was shown, without giving it away."""
        ...

    @property
    def rights(self) -> Any:
        """What `has_rights` reads, as a JSON value: for rights that must be remembered elsewhere."""
        ...

    def has_rights(self, rights: Any) -> bool:
        """Whether it has at least the rights that another credential of the same principal had."""
        ...

    def covers(self, other: Any) -> bool:
        """Whether it is the same principal, with the same credential or with at least the rights of `other`."""
        ...


CURRENT_SENDER: ContextVar[PeerIdentity | None] = ContextVar("defserve_sender", default=None)
"""Who sent the notification whose listener is running; None stands for a local process. Tasks of it inherit this."""


def can_act_for(one: PeerIdentity | None, other: PeerIdentity | None) -> bool:
    """Whether who sent a message may answer, cancel or end what another message began.

    A local process, None, is alone at its end of the pipe.
    """
    return one is other or one is None or other is None or one.covers(other)


# -- How replies look to a peer. The base class is plain JSON-RPC 2.0; a protocol's negotiated state may refine it.


UNSENT_SIGN_IN_CODE = 401
"""Tells a transport that its client should sign a person in again. It is never sent."""

TOO_MANY_CALLS_CODE = 429
"""Tells a transport that there was no room for the call. It is never sent: codes of our own are forbidden there."""


class Profile:
    """Plain JSON-RPC. If an extension's `negotiate` returns a Profile, that profile shapes all replies.

    `batches`: the peer may send arrays. `null_id`: an error without a readable id says `"id": null` rather
    than nothing. `calls_back`: requests may be sent to the peer.
    """

    __slots__ = ("batches", "null_id", "calls_back")

    def __init__(self, *, batches: bool = False, null_id: bool = True, calls_back: bool = True) -> None:
        self.batches, self.null_id, self.calls_back = batches, null_id, calls_back

    def result(self, call: Call, result: Any) -> Any:
        """The result as this peer wants it."""
        return result

    def failure(self, call: Call, error: BaseException) -> Params:
        """An exception as the rest of a reply: `{"error": …}`, or `{"result": …}` if the model should read it."""
        if isinstance(error, ProtocolError):
            return {"error": make_error_object(error.code, error.message, error.data)}
        if isinstance(error, Refused):
            data = {"error_type": error.error_type, **error.data}
            return {"error": make_error_object(INTERNAL_ERROR, error.message, data)}
        return {"error": make_error_object(INTERNAL_ERROR, mask_unexpected_error(call, error))}

    def withdrawal(self, id: RequestId) -> tuple[str, Params] | None:
        """The notification that takes back a request of ours, if the protocol has one."""
        return None


def make_error_object(code: int, message: str, data: Any = None) -> Params:
    error: Params = {"code": code, "message": truncate_text(message, MAX_PEER_TEXT_LENGTH)}
    if data is not None:
        error["data"] = data
    return error


def mask_unexpected_error(call: Call, error: BaseException) -> str:
    """Log an unexpected exception under a new id. The returned text, for the peer, holds only that id."""
    # Imported only on failure: `logging` alone costs several ms at start.
    import secrets

    from defserve.base.redaction import get_logger

    error_id = secrets.token_hex(6)
    if isinstance(error, TypeError) and (fix := _needless_await(error)):
        error.add_note(f"  fix: {fix}")
    get_logger().error("internal error %s in %s", error_id, call.title, exc_info=error, extra={"error_id": error_id})
    return f"internal error (id {error_id})"


def _needless_await(error: TypeError) -> str | None:
    """What to write where code awaits what gives nothing to await: elsewhere, logs and progress are awaited."""
    import re
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    if not frames or "NoneType" not in str(error) or "await" not in str(error):
        return None
    called = re.search(r"\bawait\s+([\w.]+)\(", frames[-1].line or "")
    return f"{called[1]}(…) gives nothing to await; write it without await" if called else None


# -- Requests that we send to the peer, until they are answered. Servers and clients use the same.


UNEXPLAINED = "error without a message"


class OutgoingRequest:
    """A request that was sent, and a future for its whole reply."""

    __slots__ = ("id", "method", "reply", "_timer")

    def __init__(self, id: RequestId, method: str, reply: Future[Reply]) -> None:
        self.id, self.method, self.reply = id, method, reply
        self._timer: CancellableTask | None = None

    def set_deadline(
        self, call_later: CallLater, seconds: float, problem: str, is_extended: Callable[[], object] | None = None
    ) -> None:
        """Fail with PeerTimeout in so many seconds, unless `is_extended` then says to wait as long again.

        `problem` is its text, where `{method}` and `{seconds}` are filled in.
        """

        def on_timeout() -> None:
            if self.reply.done():
                return
            if is_extended is not None and is_extended():
                self._timer = call_later(seconds, on_timeout)
            else:
                self.reply.set_exception(PeerTimeout(problem.format(method=self.method, seconds=seconds)))

        self._timer = call_later(seconds, on_timeout)

    def stop_waiting(self) -> None:
        """Nobody waits any more."""
        if self.reply.done():
            mark_error_retrieved(self.reply)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


RequestT = TypeVar("RequestT", bound=OutgoingRequest)


class OutgoingRequests(dict[RequestId, RequestT]):
    """The open requests of one conversation. With a `prefix`, `next_id` gives texts that begin with it."""

    __slots__ = ("next_id",)

    def __init__(self, prefix: str = "") -> None:
        next_number = count(1).__next__
        self.next_id: Callable[[], RequestId] = (lambda: f"{prefix}{next_number()}") if prefix else next_number

    def pop_future(self, id: RequestId | None) -> Future[Reply] | None:
        """What the sender of request `id` awaits. The request counts as answered from now on."""
        request = self.pop(id, None) if id is not None else None
        return None if request is None or request.reply.done() else request.reply

    def set_reply(self, reply: Reply) -> bool:
        """Hand a reply to who waits for it. Whether somebody does."""
        if (awaited := self.pop_future(reply.id)) is not None:
            awaited.set_result(reply)
        return awaited is not None

    def fail_all_requests(self, problem: str) -> None:
        """The peer has left: no reply will come."""
        requests = list(self.values())
        self.clear()
        for request in requests:
            if not request.reply.done():
                # An exception each: one that is raised twice keeps the first traceback.
                request.reply.set_exception(PeerGone(problem))


def mark_error_retrieved(reply: Future[Reply]) -> None:
    """A failure that nobody waits for any more must not be reported as an unretrieved exception."""
    if not reply.cancelled():
        reply.exception()


def unwrap_reply(reply: Reply, unexplained: str = UNEXPLAINED) -> Any:
    """Raises PeerError if the reply is an error; see `make_peer_error`."""
    if reply.error is not None:
        raise make_peer_error(reply.error, unexplained)
    return reply.result


def make_peer_error(error: Params, unexplained: str = UNEXPLAINED) -> PeerError:
    """A JSON-RPC error object as an exception. One without a message says what is `unexplained`."""
    code = error.get("code")
    number = code if isinstance(code, int) else INTERNAL_ERROR
    return PeerError(str(error.get("message") or unexplained), code=number, data=error.get("data"))


# -- Messages beside a peer's single requests: batches, notifications, answers, unreadable ones, and our own requests.


def feed_batch(session: Session, messages: list[Message], envelope: object | None, sender: PeerIdentity | None) -> bool:
    """Several messages in one frame; returns what `Session.feed_message` does."""
    if not session.takes_batches:
        refuse_malformed_message(session, "Invalid request: batches are not part of this protocol version", envelope)
        return True
    if not session.engine.ready:
        return False
    batch = ReplyBatch(envelope)
    for message in messages:
        if isinstance(message, MalformedMessage):
            message = _meant(session, message)
        if isinstance(message, Request):
            session.malformed_in_a_row = 0
            batch.waiting += 1
            session.feed_request(message, envelope, sender, batch)
        elif isinstance(message, MalformedMessage):
            batch.replies.append(_refusal(session, message))
        else:
            feed_non_request(session, message, envelope, sender)
    batch.on_member_done(session.outlet)
    return True


def feed_non_request(session: Session, message: Message, envelope: object | None, sender: PeerIdentity | None) -> bool:
    """One message that is no request; returns what `Session.feed_message` does."""
    if isinstance(message, MalformedMessage):
        message = _meant(session, message)
    if isinstance(message, MalformedMessage):
        refuse_malformed_message(session, message, envelope)
        return True
    session.malformed_in_a_row = 0
    if isinstance(message, Notification):
        return _dispatch_notification(session, message, sender)
    if isinstance(message, Reply):
        session.feed_reply(message, sender)
    return True


def refuse_malformed_message(session: Session, malformed: MalformedMessage | str, envelope: object | None) -> None:
    """Answer what cannot be read, or what is refused for the reason that is given."""
    # Without a limit, two peers that answer each other's errors would never stop.
    session.malformed_in_a_row += 1
    if session.malformed_in_a_row <= session.composition.limits.malformed_in_a_row:
        wrong = MalformedMessage(INVALID_REQUEST, malformed) if isinstance(malformed, str) else malformed
        session.outlet(OutgoingMessage(_refusal(session, wrong), None, envelope=envelope))


def _refusal(session: Session, malformed: MalformedMessage) -> bytes:
    composition, code, text = session.composition, malformed.code, malformed.message
    body: Params = {"jsonrpc": "2.0", "error": make_error_object(code, text, composition.refusal(code, text))}
    if malformed.id is not None or (session.terms or composition.unopened).profile.null_id:
        body["id"] = malformed.id
    return encode(body)


def _meant(session: Session, malformed: MalformedMessage) -> Message:
    """The message that was meant: a notification with a null id, or a broken answer. Else the malformed one."""
    notification = malformed.notification
    if notification is not None and notification.method in session.composition.known_notifications:
        return notification
    if malformed.is_reply:
        return Reply(malformed.id, None, {"code": malformed.code, "message": malformed.message})
    return malformed


def _dispatch_notification(session: Session, notification: Notification, sender: PeerIdentity | None) -> bool:
    composition = session.composition
    terms = session.terms or composition.unopened
    try:
        offer = composition.offer_in(notification)
        if offer is not None:
            terms = composition.negotiate_terms(offer)
        listeners = terms.listeners.get(notification.method, ())
        if not session.engine.ready and any(map(is_coroutine_function, listeners)):
            return False
        token = CURRENT_SENDER.set(sender or session.identity)
        try:
            for listener in listeners:
                work = listener(session, notification.params)
                if work is not None:
                    session.engine.spawn(work)
        finally:
            CURRENT_SENDER.reset(token)
    except ProtocolError:
        pass  # a broken notification is never answered
    except Exception:
        from defserve.base.redaction import get_logger

        get_logger().exception("%s failed", notification.method)
    return True


# -- Our own requests to the peer.


class SessionRequest(OutgoingRequest):
    """A request of a session, the call that it belongs to, if any, and for whom it is asked."""

    __slots__ = ("relates_to", "asker")

    def __init__(
        self, id: RequestId, method: str, reply: Future[Reply], relates_to: Call | None, asker: PeerIdentity | None
    ) -> None:
        super().__init__(id, method, reply)
        self.relates_to, self.asker = relates_to, asker

    def make_message(self, data: bytes, *, asks: RequestId | bool = False) -> OutgoingMessage:
        """A message that goes where the answer comes from."""
        if self.relates_to is not None or self.asker is None:
            return OutgoingMessage(data, self.relates_to, asks=asks)
        return AddressedMessage(data, (self.asker,), asks=asks)
