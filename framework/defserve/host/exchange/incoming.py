"""What the peer sends: each message goes to whoever waits for it, follows it, or answers it.

It knows two methods by name: `notifications/cancelled` and `notifications/progress`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from defserve.errors import PeerGone
from defserve.host.exchange.answering import PeerRequests
from defserve.host.exchange.pending import Answer, Follower, Heard, PendingRequest
from defserve.host.exchange.unreadable import CutMessage, Unreadable, UnreadableReply
from defserve.host.fields import number_of, text_of
from defserve.wire.codec import PARSE_ERROR, is_id
from defserve.wire.messages import Id, Malformed, Message, Notification, Reply, Request

MOST_LOGGED: Final = 10
"""What is wrong with messages, for one conversation: a peer must not fill our log."""
MOST_MALFORMED = 10_000
"""Lines in a row. Programs print much on the wrong stream and are sound: they get to their messages."""
ROW_SECONDS: Final = 1.0
"""Silence ends a row: a line that keeps a connection alive does no harm, however often it comes."""

log = logging.getLogger("defserve.host")


class IncomingMessages:
    """Takes the messages of one conversation.

    `pending` are its open requests. A request that is answered is taken out of it. `malformed` counts the lines since
    the last message.
    """

    __slots__ = (
        "malformed", "shown", "_answering", "_logged", "_malformed_at", "_on_notification", "_on_request", "_pending",
    )  # fmt: skip

    def __init__(
        self, pending: dict[Id, PendingRequest], answering: PeerRequests, on_request: Answer, on_notification: Heard
    ) -> None:
        self.shown: Callable[[bytes], bytes | str] = bytes
        self.malformed = self._logged = 0
        self._malformed_at = 0.0
        self._pending, self._answering = pending, answering
        self._on_request, self._on_notification = on_request, on_notification

    def take(self, message: Message, data: bytes, beside: PendingRequest | None = None) -> None:
        """Take one message. `beside`: the request on whose stream it came.

        Raises PeerGone if the peer sends so many lines that are no messages that none is to be expected.
        """
        if isinstance(message, Malformed):
            self._count_malformed()
        else:
            self.malformed = 0
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
            self._warn("skipped a request whose id is in use", data)
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

    def _count_malformed(self) -> None:
        now = monotonic()
        self.malformed = 1 if now - self._malformed_at > ROW_SECONDS else self.malformed + 1
        self._malformed_at = now
        if self.malformed > MOST_MALFORMED:
            self.malformed = 0
            raise PeerGone(
                f"it sent more than {MOST_MALFORMED:,} lines in a row that are no JSON-RPC messages"
                "\n  fix: have it write what it logs to standard error"
            )

    def _warn(self, problem: str, data: bytes) -> None:
        """Log what is wrong with a message. Only the first times: what the peer sends has no end."""
        self._logged += 1
        if self._logged <= MOST_LOGGED:
            more = "; more of this peer's messages are skipped silently" if self._logged == MOST_LOGGED else ""
            log.warning("%s: %.200r%s", problem, self.shown(data), more)

    def _malformed(self, message: Malformed, data: bytes, beside: PendingRequest | None) -> None:
        why = f"longer than {data.limit} bytes" if isinstance(data, CutMessage) else message.message
        self._warn(f"skipped a line that is not a message ({why})", data)
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
