"""The peer's own requests. Each is answered in a task, which ends when the peer cancels the request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from defserve.errors import PeerError, ProtocolError
from defserve.host.exchange.pending import Answer
from defserve.wire.codec import encode
from defserve.wire.messages import INTERNAL_ERROR, Id, Request

MOST: Final = 1_024
T = TypeVar("T")

log = logging.getLogger("defserve.host")


class PeerRequests:
    """`tasks` are the answers under way, by the id of their request. `send` takes an encoded answer."""

    __slots__ = ("tasks", "_send", "_own_work")

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self.tasks: dict[object, asyncio.Task[None]] = {}
        self._send, self._own_work = send, 0

    @property
    def is_working(self) -> bool:
        """Whether the peer waits for a person or a handler of ours.

        It does not while an answer is being written: that is for the peer to read. Nor for a ping, which needs no work.
        """
        return self._own_work > 0

    @property
    def is_full(self) -> bool:
        """Whether so many answers are under way that no more are begun. A peer may ask, and not read the answers."""
        return len(self.tasks) >= MOST

    def start(self, work: Coroutine[Any, Any, None], id: Id | None = None, *, is_own_work: bool = False) -> None:
        """Run `work` in a task. `is_own_work`: the peer waits for all of it."""
        key = object() if id is None else id
        task = self.tasks[key] = asyncio.create_task(work)
        self._own_work += is_own_work

        def forget(_: object) -> None:
            self.tasks.pop(key, None)
            self._own_work -= is_own_work

        task.add_done_callback(forget)

    async def _work(self, work: Awaitable[T]) -> T:
        self._own_work += 1
        try:
            return await work
        finally:
            self._own_work -= 1

    def cancel(self, id: Id) -> None:
        if task := self.tasks.get(id):
            task.cancel()

    async def answer(self, request: Request, answer: Answer) -> None:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request.id}
        try:
            found = answer(request)
            reply["result"] = await (found if request.method == "ping" else self._work(found))
        except ProtocolError as error:
            data = {} if error.data is None else {"data": error.data}
            reply["error"] = {"code": error.code, "message": error.message, **data}
        except Exception as error:
            log.exception("answering %s failed", request.method)
            reply["error"] = {"code": INTERNAL_ERROR, "message": f"{type(error).__name__}: {error}"}
        try:
            await self._send(_encoded(reply, request))
        except PeerError as error:
            log.debug("the peer did not take the answer to %s: %s", request.method, error)


def _encoded(reply: dict[str, Any], request: Request) -> bytes:
    try:
        return encode(reply)
    except ValueError as error:
        log.error("the answer to %s has no JSON form: %s", request.method, error)
        failure = {"code": INTERNAL_ERROR, "message": "the answer has no JSON form"}
        return encode({"jsonrpc": "2.0", "id": request.id, "error": failure})
