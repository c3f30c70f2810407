"""Requests that we send to the peer, until they are answered. Servers and clients use the same.

How it works: an open request is a row in a table, by its id, with a future for the reply. Three things end it, and the
first one counts: the reply with its id, its deadline, or the end of the peer. How a request gets to the peer, and how
the peer learns that nobody waits any more, is up to who sends it: `core.session` and `client.conversation`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from defserve.core.messages import INTERNAL_ERROR, Params, Reply, RequestId
from defserve.errors import PeerError, PeerGone, PeerTimeout

if TYPE_CHECKING:
    from asyncio import Future

    from defserve.core.engine import CallLater, CancellableTask


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

    def fail_all(self, problem: str) -> None:
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
