"""What the peer sends: each message goes to whoever waits for it, follows it, or answers it.

It knows two methods by name: `notifications/cancelled` and `notifications/progress`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from defserve.host.exchange.answering import PeerRequests
from defserve.host.exchange.pending import Answer, Follower, Heard, PendingRequest
from defserve.host.exchange.unreadable import CutMessage, Unreadable, UnreadableReply
from defserve.host.fields import number_of, text_of
from defserve.wire.codec import PARSE_ERROR, is_id
from defserve.wire.messages import Id, Malformed, Message, Notification, Reply, Request

log = logging.getLogger("defserve.host")


class IncomingMessages:
    """Takes the messages of one conversation.

    `pending` are its open requests. A request that is answered is taken out of it.
    """

    __slots__ = ("shown", "_answering", "_on_notification", "_on_request", "_pending")

    def __init__(
        self, pending: dict[Id, PendingRequest], answering: PeerRequests, on_request: Answer, on_notification: Heard
    ) -> None:
        self.shown: Callable[[bytes], bytes | str] = bytes
        self._pending, self._answering = pending, answering
        self._on_request, self._on_notification = on_request, on_notification

    def take(self, message: Message, data: bytes, beside: PendingRequest | None = None) -> None:
        """Take one message. `beside`: the request on whose stream it came."""
        try:
            self._dispatch(message, data, beside)
        except Exception:  # whatever the peer says, the next message is read
            log.exception("a message could not be taken: %.200r", self.shown(data))

    def awaited(self, id: Id | None) -> asyncio.Future[Reply] | None:
        """The reply that request `id` waits for. The request counts as answered from now on."""
        pending = self._pending.pop(id, None) if id is not None else None
        return None if pending is None or pending.reply.done() else pending.reply

    def _dispatch(self, message: Message, data: bytes, beside: PendingRequest | None) -> None:
        forward = None if beside is None else beside.forward
        if isinstance(message, Reply):
            self._replied(message, data)
        elif isinstance(message, Notification):
            self._notified(message, forward)
        elif isinstance(message, Request) and message.id in self._answering.tasks:
            log.warning("skipped a request whose id is in use: %.200r", self.shown(data))
        elif isinstance(message, Request) and self._answering.is_full:
            log.debug("skipped a request: the peer does not read its answers: %.200r", self.shown(data))
        elif isinstance(message, Request):
            answer = forward.on_request if forward else None
            self._answering.start(self._answering.answer(message, answer or self._on_request), message.id)
        else:
            self._malformed(message, data, beside)

    def _replied(self, reply: Reply, data: bytes) -> None:
        if awaited := self.awaited(reply.id):
            awaited.set_result(reply)
        else:
            log.debug("a reply that nobody waits for: %.200r", self.shown(data))

    def _malformed(self, message: Malformed, data: bytes, beside: PendingRequest | None) -> None:
        why = f"longer than {data.limit} bytes" if isinstance(data, CutMessage) else message.message
        log.warning("skipped a line that is not a message (%s): %.200r", why, self.shown(data))
        id = message.id
        # A line that can be read, and names no request of ours, answers none.
        if id is None and message.code == PARSE_ERROR and (line := Unreadable(data)).is_reply:
            # Who waits for it would wait to the limit.
            meant = [beside.id] if beside is not None else list(self._pending)
            id = line.id if line.id is not None else meant[0] if len(meant) == 1 else None
        if awaited := self.awaited(id):
            awaited.set_result(UnreadableReply(id, message.code, why))

    def _notified(self, note: Notification, forward: Follower | None) -> None:
        if note.method == "notifications/cancelled":
            id = note.params.get("requestId")
            if is_id(id):
                self._answering.cancel(id)
        elif note.method == "notifications/progress" and self._progressed(note.params):
            return
        own = forward.on_notification if forward else None
        self._hand(own or self._on_notification, note.method, note.params)

    def _hand(self, heard: Heard, method: str, params: dict[str, Any]) -> None:
        try:
            heard(method, params)
        except Exception:
            log.exception("the handler of %s failed", method)

    def _progressed(self, params: dict[str, Any]) -> bool:
        """Tell whoever wants the progress of this request. Whether nobody else may hear it."""
        token = params.get("progressToken")
        pending = self._pending.get(token) if is_id(token) else None
        if pending is None:
            return False
        if (forward := pending.forward) is not None:
            if forward.on_notification is not None:
                own = params if forward.token is None else {**params, "progressToken": forward.token}
                self._hand(forward.on_notification, "notifications/progress", own)
            return True
        if pending.on_progress is None:
            return False
        progress, total = number_of(params.get("progress")), number_of(params.get("total"))
        try:
            pending.on_progress(progress or 0, total, text_of(params.get("message")))
        except Exception:
            log.exception("the progress handler of %s failed", pending.method)
        return False
