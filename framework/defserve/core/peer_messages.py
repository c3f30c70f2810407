"""Messages beside a peer's single requests: batches, notifications, answers, unreadable ones, and our own requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.core.call import Call, ReplyBatch
from defserve.core.extension import AddressedMessage, OutgoingMessage, is_coroutine_function
from defserve.core.messages import (
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
from defserve.core.outgoing_requests import OutgoingRequest
from defserve.core.peer import CURRENT_SENDER, make_error_object
from defserve.errors import ProtocolError

if TYPE_CHECKING:
    from asyncio import Future

    from defserve.core.peer import PeerIdentity
    from defserve.core.session import Session


def feed_batch(session: Session, messages: list[Message], envelope: object | None, sender: PeerIdentity | None) -> bool:
    """Several messages in one frame; returns what `Session.take` does."""
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
            feed_other_message(session, message, envelope, sender)
    batch.on_member_done(session.outlet)
    return True


def feed_other_message(
    session: Session, message: Message, envelope: object | None, sender: PeerIdentity | None
) -> bool:
    """One message that is no request; returns what `Session.take` does."""
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
        import logging

        logging.getLogger("defserve").exception("%s failed", notification.method)
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
