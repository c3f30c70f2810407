"""Events and messages that a server sent: given to the host's handler, or kept until somebody reads them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from defserve.errors import PeerError
from defserve.host.answers import settled
from defserve.host.fields import Json, text_of

T = TypeVar("T")

ROOM: Final = 1_000


class Inbox(Generic[T]):
    """`async for item in inbox`. It ends when the client closes, and raises PeerGone if the server left."""

    def __init__(self, room: int = ROOM) -> None:
        self._items: deque[T] = deque()
        self._room, self._ended = room, False
        self._reason: PeerError | None = None
        self._news = asyncio.Event()

    def put(self, item: T) -> bool:
        """Whether there was room for it."""
        if self._ended or len(self._items) >= self._room:
            return False
        self._items.append(item)
        self._news.set()
        return True

    def end(self, reason: PeerError | None = None) -> None:
        """Take nothing more. Items that are there can still be read."""
        if not self._ended:
            self._ended, self._reason = True, reason
            self._news.set()

    def __aiter__(self) -> Inbox[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._ended:
                raise self._reason or StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._items.popleft()


async def take(item: T, handler: Callable[[T], Any] | None, inbox: Inbox[T], answer: type[Any]) -> tuple[Json, bool]:
    """The answer to the server, and whether to remember it. `answer` is EventAnswer or MessageAnswer.

    A handler's False declines. A string accepts, and is the id of what the host started. Anything else accepts.
    """
    if handler is not None:
        reply = await settled(handler(item))
        return (reply if isinstance(reply, answer) else answer(reply is not False, text_of(reply))).wire(), True
    if inbox.put(item):
        return answer().wire(), True
    # Not remembered: the server may send it again once somebody reads.
    return answer(False, reason="the host's inbox is full").wire(), False


def answer_wire(accepted: bool, name: str, id: str | None, reason: str | None) -> Json:
    """An answer as JSON for the server (§9.3, §14)."""
    if not accepted:
        return {"accepted": False, "reason": reason or "declined"}
    return {"accepted": True} if id is None else {"accepted": True, name: id}
