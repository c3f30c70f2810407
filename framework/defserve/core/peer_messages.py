"""Messages beside a peer's single requests: batches, notifications, answers, unreadable ones, and our own requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from defserve.core.call import Batch, Call
from defserve.core.extension import AddressedMessage, OutgoingMessage, is_coroutine_function
from defserve.core.messages import (
    INVALID_REQUEST,
    Id,
    Malformed,
    Message,
    Notification,
    Params,
    Reply,
    Request,
    encode,
    notification,
)
from defserve.core.peer import INTERNAL_ERROR, SENDER, Profile, error_object
from defserve.errors import PeerError, PeerGone, PeerTimeout, ProtocolError

if TYPE_CHECKING:
    from defserve.core.engine import Engine, PendingAnswer
    from defserve.core.peer import PeerIdentity
    from defserve.core.session import Session


def feed_batch(session: Session, messages: list[Message], envelope: object | None, sender: PeerIdentity | None) -> bool:
    """Several messages in one frame; returns what `Session.take` does."""
    if not session.takes_batches:
        refuse(session, "Invalid request: batches are not part of this protocol version", envelope)
        return True
    if not session.engine.ready:
        return False
    batch = Batch(envelope)
    for message in messages:
        if isinstance(message, Malformed):
            message = _meant(session, message)
        if isinstance(message, Request):
            session.malformed_in_a_row = 0
            batch.waiting += 1
            session.feed_request(message, envelope, sender, batch)
        elif isinstance(message, Malformed):
            batch.replies.append(_refusal(session, message))
        else:
            feed_other_message(session, message, envelope, sender)
    batch.one_done(session.outlet)
    return True


def feed_other_message(
    session: Session, message: Message, envelope: object | None, sender: PeerIdentity | None
) -> bool:
    """One message that is no request; returns what `Session.take` does."""
    if isinstance(message, Malformed):
        message = _meant(session, message)
    if isinstance(message, Malformed):
        refuse(session, message, envelope)
        return True
    session.malformed_in_a_row = 0
    if isinstance(message, Notification):
        return _dispatch_notification(session, message, sender)
    if isinstance(message, Reply):
        session.feed_reply(message, sender)
    return True


def refuse(session: Session, malformed: Malformed | str, envelope: object | None) -> None:
    """Answer what cannot be read, or what is refused for the reason that is given."""
    # Without a limit, two peers that answer each other's errors would never stop.
    session.malformed_in_a_row += 1
    if session.malformed_in_a_row <= session.composition.limits.malformed_in_a_row:
        wrong = Malformed(INVALID_REQUEST, malformed) if isinstance(malformed, str) else malformed
        session.outlet(OutgoingMessage(_refusal(session, wrong), None, envelope=envelope))


def _refusal(session: Session, malformed: Malformed) -> bytes:
    composition, code, text = session.composition, malformed.code, malformed.message
    body: Params = {"jsonrpc": "2.0", "error": error_object(code, text, composition.refusal(code, text))}
    if malformed.id is not None or (session.terms or composition.unopened).profile.null_id:
        body["id"] = malformed.id
    return encode(body)


def _meant(session: Session, malformed: Malformed) -> Message:
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
            terms = composition.agree(offer)
        listeners = terms.listeners.get(notification.method, ())
        if not session.engine.ready and any(map(is_coroutine_function, listeners)):
            return False
        token = SENDER.set(sender or session.identity)
        try:
            for listener in listeners:
                work = listener(session, notification.params)
                if work is not None:
                    session.engine.spawn(work)
        finally:
            SENDER.reset(token)
    except ProtocolError:
        pass  # a broken notification is never answered
    except Exception:
        import logging

        logging.getLogger("defserve").exception("%s failed", notification.method)
    return True


# -- Our own requests to the peer, until they are answered.


class OutgoingRequests:
    """Requests of ours that the peer has not answered yet. A session makes it for its first request.

    With a `prefix`, their ids are texts that begin with it.
    """

    __slots__ = ("_pending", "_askers", "_last", "_prefix")

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._pending: dict[Id, PendingAnswer] = {}
        self._askers: dict[Id, PeerIdentity] = {}
        self._last = 0

    async def ask(
        self,
        engine: Engine,
        outlet: Callable[[OutgoingMessage], None],
        profile: Profile,
        question: OutgoingRequest,
    ) -> Any:
        """Send a request and wait for its answer. A request that is given up is withdrawn."""
        self._last += 1
        id: Id = f"{self._prefix}{self._last}" if self._prefix else self._last
        pending = engine.pending()
        self._pending[id] = pending
        if question.asker is not None:
            self._askers[id] = question.asker
        if question.numbered is not None:
            question.numbered(id)
        body = {"jsonrpc": "2.0", "id": id, "method": question.method, "params": question.params}
        asking = question.message(encode(body), asks=id)
        outlet(asking)
        try:
            return await engine.wait(pending, question.timeout)
        except TimeoutError:
            raise PeerTimeout(f"{question.method}: no answer within {question.timeout:g} s") from None
        finally:
            self._askers.pop(id, None)
            if asking.release is not None:
                asking.release()
            if self._pending.pop(id, None) is not None and (taken_back := profile.withdrawal(id)) is not None:
                outlet(question.message(notification(*taken_back)))

    def asker(self, reply: Reply) -> PeerIdentity | None:
        """For whom the question was asked that this answers, if that is known."""
        return self._askers.get(reply.id) if reply.id is not None else None

    def answer(self, reply: Reply) -> None:
        """Take the peer's answer. An answer to an unknown request is ignored."""
        pending = self._pending.pop(reply.id, None) if reply.id is not None else None
        if pending is None or pending.done():
            return
        if reply.error is None:
            pending.set_result(reply.result)
            return
        code, message = reply.error.get("code"), reply.error.get("message")
        number = code if isinstance(code, int) else INTERNAL_ERROR
        pending.set_exception(
            PeerError(str(message or "the peer gave no reason"), code=number, data=reply.error.get("data"))
        )

    def close(self) -> None:
        """The peer has left: fail every open request."""
        asked, self._pending = self._pending, {}
        for pending in asked.values():
            if not pending.done():
                pending.set_exception(PeerGone("the peer has left"))


class OutgoingRequest:
    """One request to the peer, and the call that it belongs to, if any.

    `numbered` is called with the request's id before it is sent, for peers that refer to it before they answer.
    `asker` is for whom it is asked.
    """

    __slots__ = ("method", "params", "relates_to", "timeout", "numbered", "asker")

    def __init__(
        self,
        method: str,
        params: Params,
        relates_to: Call | None,
        timeout: float,
        numbered: Callable[[Id], None] | None = None,
    ) -> None:
        self.method, self.params, self.relates_to, self.timeout = method, params, relates_to, timeout
        self.numbered = numbered
        self.asker: PeerIdentity | None = None

    def message(self, data: bytes, *, asks: Id | bool = False) -> OutgoingMessage:
        """A message that goes where the answer comes from."""
        if self.relates_to is not None or self.asker is None:
            return OutgoingMessage(data, self.relates_to, asks=asks)
        return AddressedMessage(data, (self.asker,), asks=asks)
