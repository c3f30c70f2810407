"""What a peer sends beside single requests: batches, notifications, answers, and what cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.core.call import Batch
from defserve.core.extension import OutgoingMessage, is_coroutine_function
from defserve.core.identity import SENDER
from defserve.core.profile import error_object
from defserve.errors import ProtocolError
from defserve.wire.codec import INVALID_REQUEST, encode
from defserve.wire.messages import Malformed, Message, Notification, Params, Reply, Request

if TYPE_CHECKING:
    from defserve.core.identity import PeerIdentity
    from defserve.core.session import Session


def take_batch(session: Session, messages: list[Message], envelope: object | None, sender: PeerIdentity | None) -> bool:
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
            session.take_request(message, envelope, sender, batch)
        elif isinstance(message, Malformed):
            batch.replies.append(_refusal(session, message))
        else:
            take_other(session, message, envelope, sender)
    batch.one_done(session.outlet)
    return True


def take_other(session: Session, message: Message, envelope: object | None, sender: PeerIdentity | None) -> bool:
    """One message that is no request; returns what `Session.take` does."""
    if isinstance(message, Malformed):
        message = _meant(session, message)
    if isinstance(message, Malformed):
        refuse(session, message, envelope)
        return True
    session.malformed_in_a_row = 0
    if isinstance(message, Notification):
        return _notified(session, message, sender)
    if isinstance(message, Reply):
        session.answered(message, sender)
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


def _notified(session: Session, notification: Notification, sender: PeerIdentity | None) -> bool:
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
