"""One task that waits, parked, for a coroutine whose first step was taken in its name. For Python 3.11.

The coroutine cannot tell: `asyncio.current_task()` is the task that later has the rest of it, and the context is that
task's. So cancel scopes and timeouts that begin in the first step hold in the rest.
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

from defserve.core.stepping import rest

NOTHING: Any = object()
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
        self._waiting_for = NOTHING
        self._asked_to_cancel: tuple[Any] | None = None
        self.is_free = self._is_stepping = False
        self.task = loop.create_task(self._stand_by(), context=self._context)
        self._name = self.task.get_name()

    def fits(self, context: Context | None) -> bool:
        """Whether work that must begin in this context can begin here."""
        return context is not None and _are_same(context, self.before)

    def takes(self, work: Coroutine[Any, Any, None]) -> bool:
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
        self._is_stepping, waiting_for = True, NOTHING
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
        if waiting_for is not NOTHING:
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
            await rest(self._work, self._waiting_for)

    def _mark_awaited(self, is_awaited: bool) -> None:
        """Say whether a task is about to wait for the future. asyncio refuses a future that two say so of at a time."""
        if (future := self._awaited) is not None:
            future._asyncio_future_blocking = is_awaited  # pyright: ignore

    # -- as a future, for who cancels the task -----------------------------------------------------------

    def cancel(self, msg: Any = None) -> bool:
        if self._is_stepping:
            self._asked_to_cancel = (msg,)
            return True
        if self._waiting_for is NOTHING:
            self.is_free = False
            return super().cancel(msg)
        return (future := self._awaited) is not None and future.cancel(msg)

    def done(self) -> bool:
        if self._waiting_for is NOTHING:
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
