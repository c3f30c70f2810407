"""A request of ours that waits for its reply, and who follows it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from defserve.errors import PeerTimeout
from defserve.transports.arrival import Arrival
from defserve.wire.messages import Id, Reply, Request

Progress: TypeAlias = Callable[[float, float | None, str | None], object]
"""Called with progress, total and message."""
Heard: TypeAlias = Callable[[str, dict[str, Any]], object]
"""Called with the method and params of a notification."""
Answer: TypeAlias = Callable[[Request], Awaitable[Any]]
"""Gives the result of a request of the peer; a ProtocolError becomes its error."""


T = TypeVar("T")


class RequestObserver(Protocol):
    """Follows one request, which may be sent several times."""

    def begins(self) -> Id:
        """The request is about to be sent. Gives its id, which must be new."""
        ...

    def waits(self) -> bool:
        """The deadline has passed. Whether to wait once more."""
        ...

    @property
    def repeatable(self) -> bool:
        """Whether the request may be sent again after a failure."""
        ...


class Follower(Protocol):
    """Hears what belongs to one request that is passed on for somebody else, who has a progress `token` of their own.

    See `ClientConversation.forward`. None: the conversation's own handler.
    """

    @property
    def token(self) -> Any: ...

    @property
    def on_notification(self) -> Heard | None: ...

    @property
    def on_request(self) -> Answer | None: ...


class Forward:
    """A `Follower` made of functions."""

    __slots__ = ("on_notification", "on_request", "token")

    def __init__(self, on_notification: Heard | None, on_request: Answer | None, token: Any) -> None:
        self.on_notification, self.on_request, self.token = on_notification, on_request, token


class PendingRequest:
    """A request that was sent: its id, and a future for the whole reply.

    task     exchanges it, on a link where every request has an exchange of its own and nobody waits for this one
    unsent   what to await before the reply: the link has not written all of it yet
    """

    __slots__ = ("id", "method", "reply", "on_progress", "forward", "task", "unsent", "_timer")

    def __init__(
        self, id: Id, method: str, on_progress: Progress | None = None, forward: Follower | None = None
    ) -> None:
        self.unsent: Awaitable[None] | None = None
        self.id, self.method, self.on_progress, self.forward = id, method, on_progress, forward
        self.task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.reply: asyncio.Future[Reply] = Arrival(loop=asyncio.get_running_loop())

    def expire(self, within: float, waits: Callable[[], object]) -> None:
        """Fail with PeerTimeout in `within` seconds, unless `waits` then says to wait as long again."""

        def over() -> None:
            if self.reply.done():
                return
            if waits():
                self._timer = loop.call_later(within, over)
            else:
                self.reply.set_exception(PeerTimeout(f"no answer to {self.method} within {within:g} s"))

        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(within, over)

    async def unless_settled(self, work: Awaitable[T]) -> T | None:
        """Await `work`. Gives it up, for None, once there is a reply, the deadline has passed or the peer has left."""

        task, is_over, is_given_up = asyncio.current_task(), False, False
        assert task is not None
        others = task.cancelling()

        def give_up(_: object) -> None:
            nonlocal is_given_up
            if not is_over:  # the work may be done at the same moment
                is_given_up = True
                task.cancel()

        # `asyncio.timeout` in a few lines: a proxy does this for every call.
        self.reply.add_done_callback(give_up)
        try:
            return await work
        except asyncio.CancelledError:
            if is_given_up and task.uncancel() <= others:
                return None
            raise
        finally:
            is_over = True
            self.reply.remove_done_callback(give_up)

    def settle(self) -> None:
        """Nobody waits any more."""
        if self.reply.done():
            retrieve(self.reply)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def retrieve(reply: asyncio.Future[Reply]) -> None:
    """A reply that nobody waits for any more must not be reported as an unretrieved exception."""
    if not reply.cancelled():
        reply.exception()
