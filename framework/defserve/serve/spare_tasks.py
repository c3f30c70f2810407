"""Eager tasks for Python 3.11, which has none: the first step of a coroutine is taken at once, as a spare task.

How it works: a spare task waits, parked, for a coroutine whose first step was taken in its name. The coroutine cannot
tell: `asyncio.current_task()` is the task that later has the rest of it, and the context is that task's. So cancel
scopes and timeouts that begin in the first step hold in the rest. Delete this file together with Python 3.11.
"""

from __future__ import annotations

import asyncio

# Documented in "Extending asyncio", for tasks of other libraries.
from asyncio.tasks import _enter_task, _leave_task  # pyright: ignore
from collections.abc import Coroutine
from contextvars import Context
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount

from defserve.core.engine import await_started_coroutine


class EagerTaskStarter:
    """Starts coroutines on one loop. It has a spare task as long as they end with their first step.

    For those that wait, a spare task is one step more than a plain one. If all of them wait, there is none.
    """

    __slots__ = ("loop", "_spare", "_ends_at_once")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._spare: SpareTask | None = None
        self._ends_at_once = False

    def start(self, work: Coroutine[Any, Any, None], context: Context | None) -> asyncio.Task[None] | None:
        """Like `create_task`. The context must be new; only `work` changes it. None stands for an empty one.

        Returns the task, for whoever must hold it; None if the work is done. The first step is taken before this
        returns, or soon if there is no spare task for this context.
        """
        spare = self._spare
        # Work is mostly begun in an empty context. The spare task need not be asked about that.
        if spare is None or not spare.is_free or ((context or spare.before) and not spare.can_start_in(context)):
            context = Context() if context is None else context
            return self.loop.create_task(self._apart(work, context.copy()), context=context)
        self._spare = None  # the work may start other work
        if spare.take_first_step(work):
            if self._ends_at_once:
                self._ends_at_once, self._spare = False, SpareTask(self.loop, spare.before)
            return spare.task
        self._ends_at_once = True
        self._spare = spare if spare.is_free else SpareTask(self.loop, spare.before)
        return None

    async def _apart(self, work: Coroutine[Any, Any, None], before: Context) -> None:
        try:
            waiting_for = work.send(None)
        except StopIteration:
            if self._spare is None or self._spare.task.done():
                self._spare = SpareTask(self.loop, before)
        else:
            await await_started_coroutine(work, waiting_for)

    async def close(self) -> None:
        """End the spare task."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.task.cancel()
            await asyncio.wait((spare.task,))


NOT_WAITING: Any = object()
"""Stands for what work waits for that does not wait."""


class SpareTask(asyncio.Future[None]):
    """What the `task` waits for until it has work. Work begins in the context `before`.

    It is free until work waits, or leaves a trace on the task. While the task has work and does not know it yet, this
    stands for what that work waits for: who cancels the task cancels that, and anyio asks whether it is done.
    """

    # Without them, each attribute of a future of ours costs as much as a call.
    __slots__ = (
        *("before", "task", "is_free"),
        *("_context", "_work", "_waiting_for", "_asked_to_cancel", "_is_stepping", "_name"),
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, before: Context) -> None:
        super().__init__(loop=loop)
        self.before, self._context = before, before.copy()
        self._work: Coroutine[Any, Any, None] | None = None
        self._waiting_for = NOT_WAITING
        self._asked_to_cancel: tuple[Any] | None = None
        self.is_free = self._is_stepping = False
        self.task = loop.create_task(self._stand_by(), context=self._context)
        self._name = self.task.get_name()

    def can_start_in(self, context: Context | None) -> bool:
        """Whether work that must begin in this context can begin here."""
        return context is not None and _are_same(context, self.before)

    def take_first_step(self, work: Coroutine[Any, Any, None]) -> bool:
        """Take the first step of `work` as this task. Whether there is a rest of it, which the task takes over."""
        task, loop, outer = self.task, self.get_loop(), None
        references, weak_references = getrefcount(task), getweakrefcount(task)
        try:
            _enter_task(loop, task)
        except RuntimeError:  # another task starts this one
            outer = asyncio.current_task(loop)
            assert outer is not None
            _leave_task(loop, outer)
            _enter_task(loop, task)
        self._is_stepping, waiting_for = True, NOT_WAITING
        try:
            waiting_for = self._context.run(work.send, None)
        except StopIteration:
            pass
        except BaseException as error:
            work, waiting_for = _failing(error), None
        finally:
            self._is_stepping = False
            _leave_task(loop, task)
            if outer is not None:
                _enter_task(loop, outer)
        if waiting_for is not NOT_WAITING:
            self._hand_over(work, waiting_for)
            return True
        # Whoever holds the task, or will be told of its end, must not take the next work for this one.
        if (
            getrefcount(task) != references
            or getweakrefcount(task) != weak_references
            or self._asked_to_cancel is not None
            or task._callbacks is not None  # pyright: ignore
            or task.get_name() is not self._name
            or ((self._context or self.before) and not _are_same(self._context, self.before))
        ):
            self._end()
        return False

    def _hand_over(self, work: Coroutine[Any, Any, None], waiting_for: Any) -> None:
        self.is_free, self._work, self._waiting_for = False, work, waiting_for
        self._mark_awaited(False)  # until this task waits for it, others may
        self.set_result(None)
        if self._asked_to_cancel is not None and not self.cancel(*self._asked_to_cancel):
            self._cancel_in_next_step(self._asked_to_cancel)

    def _end(self) -> None:
        self.is_free = False
        if self._asked_to_cancel is not None:
            self.cancel(*self._asked_to_cancel)
        else:
            self.set_result(None)

    def _cancel_in_next_step(self, message: tuple[Any, ...]) -> None:
        """As `cancel` does if there is nothing to cancel that the work waits for. It was counted already."""
        self.task.cancel(*message)
        self.task.uncancel()

    async def _stand_by(self) -> None:
        self.is_free = True
        try:
            await self
        except asyncio.CancelledError as error:
            if self._work is None:
                raise
            self._cancel_in_next_step(error.args)
        if self._work is not None:
            self._mark_awaited(True)
            await await_started_coroutine(self._work, self._waiting_for)

    def _mark_awaited(self, is_awaited: bool) -> None:
        """Say whether a task is about to wait for the future. asyncio refuses a future that two say so of at a time."""
        if (future := self._awaited) is not None:
            future._asyncio_future_blocking = is_awaited  # pyright: ignore

    # -- as a future, for who cancels the task -----------------------------------------------------------

    def cancel(self, msg: Any = None) -> bool:
        if self._is_stepping:
            self._asked_to_cancel = (msg,)
            return True
        if self._waiting_for is NOT_WAITING:
            self.is_free = False
            return super().cancel(msg)
        return (future := self._awaited) is not None and future.cancel(msg)

    def done(self) -> bool:
        if self._waiting_for is NOT_WAITING:
            return super().done()
        return (future := self._awaited) is not None and future.done()

    @property
    def _awaited(self) -> asyncio.Future[Any] | None:
        return self._waiting_for if asyncio.isfuture(self._waiting_for) else None


async def _failing(error: BaseException) -> None:
    raise error


def _are_same(one: Context, other: Context) -> bool:
    """Whether two contexts hold the same objects. `==` would ask the objects."""
    if len(one) != len(other):
        return False
    for variable, value in one.items():  # noqa: SIM110  `all(…)` costs a frame of its own for each variable
        if variable not in other or other[variable] is not value:
            return False
    return True
