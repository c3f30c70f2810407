"""Work that must not run twice, parked while its caller is asked (2026-07-28: multi round-trip requests).

An author's function runs again with the answers. Work that cannot (a call of another server, a program of a model) is
kept in this process instead. The reply holds the questions and a sealed handle. The repeated request finds the work by
its handle and goes on with it. Work that is gone is an error: it is never begun again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from secrets import token_urlsafe
from typing import Any, TypeVar

from defserve.core.call import Call, InnerCall
from defserve.errors import LimitExceeded, ToolError
from defserve.protocols.mcp.asking.round_trips import RoundTrips, digest_of
from defserve.protocols.mcp.lifecycle import dialect_of
from defserve.wire.messages import Params

T = TypeVar("T")

MOST, MOST_OF_ONE, MOST_BYTES = 64, 8, 64 * 1024 * 1024
SECONDS = 600.0
# Of what was done so far, in the sealed handle.
LONGEST_NOTE = 1_000


class ParkedWorkLost(ToolError):
    """The work that an answer belongs to is gone."""

    error_type = "parked_work_lost"

    def __init__(self, note: str) -> None:
        super().__init__(
            "What this answer belongs to is gone: the server was restarted, another process got the answer, or it came "
            f"too late. Nothing was done again. {note}".strip()
        )


class OpenQuestion:
    """A question that waits for its answer."""

    __slots__ = ("digest", "request", "acceptable", "answer")

    def __init__(self, request: Params, acceptable: Callable[[Any], bool]) -> None:
        self.digest = digest_of(request["method"], request["params"])
        self.request, self.acceptable = request, acceptable
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class ParkedWork:
    """Work that may outlive the request that began it. `call` is the request that waits for it, or waited last.

    `note` says what was done so far, for the caller whose work is lost. `prepare` is awaited before the work is parked;
    it gives the bytes that are kept. `attached` is called with the request that waits for it now.
    """

    def __init__(self, call: Call, outer: ParkedWork | None = None) -> None:
        self.call, self.id, self._outer = call, token_urlsafe(16), outer
        self.note: Callable[[], str] = str
        self.prepare: Callable[[], Awaitable[int]] | None = None
        self.attached: Callable[[Call], object] = bool
        self.size = 0
        self.open: dict[str, OpenQuestion] = {}
        self.task: asyncio.Task[Any] | None = None
        self._asked = 0
        self._news, self._has_caller = asyncio.Event(), asyncio.Event()
        self._has_caller.set()

    async def ask(
        self, method: str, params: Params, acceptable: Callable[[Any], bool], *, key: str | None = None
    ) -> Any:
        """Put a question to the caller, and wait for its answer. The caller may be another request by then."""
        if self._outer is not None:  # it is a part of work that is parked as a whole
            return await ask_parked(self.call, self._outer, method, params, acceptable, key)
        self._asked += 1
        name = key if key and key not in self.open else f"{key or method.partition('/')[0]}-{self._asked}"
        self.open[name] = question = OpenQuestion({"method": method, "params": params}, acceptable)
        self._news.set()
        try:
            return await question.answer
        finally:
            self.open.pop(name, None)

    async def caller(self) -> Call:
        """The request that waits for the work. While it is parked, wait for the next one."""
        await self._has_caller.wait()
        return self.call

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(lambda _: self._news.set())

    async def done_or_asking(self) -> bool:
        """Wait until it is done, which gives True, or until it asks."""
        assert self.task is not None
        while not (self.task.done() or self.open):
            self._news.clear()
            await self._news.wait()
        if not self.task.done():
            await asyncio.sleep(0)  # what is asked at once travels together
        return self.task.done()

    def attach(self, call: Call, rounds: RoundTrips) -> None:
        """Go on with the answers that a request brings."""
        self.call = call
        self.attached(call)
        self._has_caller.set()
        for name, question in list(self.open.items()):
            answer = rounds.answer(name, question.digest, question.acceptable, strict=True)
            if answer is not None and not question.answer.done():
                del self.open[name]
                question.answer.set_result(answer)

    @property
    def questions(self) -> dict[str, tuple[str, Params]]:
        """The open questions, each with its digest."""
        return {name: (question.digest, question.request) for name, question in self.open.items()}

    def detach(self) -> None:
        self._has_caller.clear()

    def refuse(self, error: Exception) -> None:
        """Fail every open question."""
        for question in list(self.open.values()):
            if not question.answer.done():
                question.answer.set_exception(error)
        self.open.clear()

    async def stop(self) -> None:
        """Cancel the work, and wait until it has ended."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])


class Parking:
    """The parked work of one server: bounded in number, for each principal, in bytes, and in time."""

    def __init__(
        self, *, most: int = MOST, of_one: int = MOST_OF_ONE, most_bytes: int = MOST_BYTES, seconds: float = SECONDS
    ) -> None:
        self._most, self._of_one, self._most_bytes, self._seconds = most, of_one, most_bytes, seconds
        self._parked: dict[str, tuple[ParkedWork, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._parked)

    async def run(self, call: Call, begin: Callable[[ParkedWork], Coroutine[Any, Any, T]]) -> T:
        """Begin work, or go on with the work that this request answers. Returns or raises as the work does.

        Raises ParkedWorkLost. A request that is cancelled, or runs out of time, ends its work.
        """
        rounds = call.root.local(RoundTrips)
        outer = parked_work(call)
        if outer is not None or rounds.parked is None:
            work = ParkedWork(call, outer)
            work.begin(begin(work))
        else:
            work = self._taken(rounds.parked)
            work.attach(call, rounds)
        is_parked = False
        try:
            while not await work.done_or_asking():
                try:
                    await self._park(work)
                except LimitExceeded as full:
                    work.refuse(full)
                    continue
                is_parked = True
                rounds.park(call, {"id": work.id, "note": work.note()[:LONGEST_NOTE]}, work.questions)
                await call.engine.pending()
            assert work.task is not None
            return work.task.result()
        finally:
            if not is_parked:
                await work.stop()

    async def close(self) -> None:
        """End everything that is parked."""
        parked, self._parked = self._parked, {}
        for work, timer in parked.values():
            timer.cancel()
            await work.stop()

    async def _park(self, work: ParkedWork) -> None:
        """Keep work until it is asked for, or its time is over. Raises LimitExceeded."""
        work.size = await work.prepare() if work.prepare is not None else 0
        owner, works = work.call.principal, [one for one, _ in self._parked.values()]
        if len(works) >= self._most or sum(one.call.principal == owner for one in works) >= self._of_one:
            raise LimitExceeded("too many calls wait for an answer", data={"limit": "parked"})
        if sum(one.size for one in works) + work.size > self._most_bytes:
            raise LimitExceeded("calls that wait for an answer take too much memory", data={"limit": "parked_bytes"})
        work.detach()
        timer = asyncio.get_running_loop().call_later(self._seconds, self._expire, work.id)
        self._parked[work.id] = work, timer

    def _taken(self, handle: Params) -> ParkedWork:
        work, timer = self._parked.pop(handle["id"], (None, None))
        if timer is not None:
            timer.cancel()
        if work is None or work.task is None or work.task.get_loop() is not asyncio.get_running_loop():
            raise ParkedWorkLost(handle["note"])
        return work

    def _expire(self, id: str) -> None:
        work, _ = self._parked.pop(id, (None, None))
        if work is not None and work.task is not None:
            work.task.cancel()


class AsksParked:
    """Says of a call that its questions park the work it belongs to."""

    work: ParkedWork | None = None


def parked_work(call: Call) -> ParkedWork | None:
    """The work that a question of this call would park; None if it suspends the call, or can be asked in place."""
    if not dialect_of(call).stateless:
        return None
    inner: Call | None = call
    while inner is not None:
        if (found := inner.peek(AsksParked)) is not None:
            return found.work
        inner = inner.outer
    return None


async def ask_parked(
    call: Call, work: ParkedWork, method: str, params: Params, acceptable: Callable[[Any], bool], key: str | None
) -> Any:
    """Ask for a call that belongs to parked work. Its time stands still meanwhile."""
    asking = work.ask(method, params, acceptable, key=key)
    return await (call.paused(asking) if isinstance(call, InnerCall) else asking)
