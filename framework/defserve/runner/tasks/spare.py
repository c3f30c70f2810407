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


class Handover(asyncio.Future[None]):
    """What a spare task waits for. While the task has work and does not know it yet, it stands for what that waits for.

    Who cancels the task cancels that. anyio asks whether it is done.
    """

    is_stepping = False
    asked: tuple[Any] | None = None
    waiting_for: Any = NOTHING

    def cancel(self, msg: Any = None) -> bool:
        if self.is_stepping:
            self.asked = (msg,)
            return True
        if self.waiting_for is NOTHING:
            return super().cancel(msg)
        return isinstance(self.waiting_for, asyncio.Future) and self.waiting_for.cancel(msg)

    def done(self) -> bool:
        if self.waiting_for is NOTHING:
            return super().done()
        return isinstance(self.waiting_for, asyncio.Future) and self.waiting_for.done()


class SpareTask:
    """`before` is the context in which work begins. The task is free until work waits, or leaves a trace on it."""

    __slots__ = ("task", "before", "is_free", "_context", "_handover", "_work", "_name")

    def __init__(self, loop: asyncio.AbstractEventLoop, before: Context) -> None:
        self.before, self._context = before, before.copy()
        self._handover = Handover(loop=loop)
        self._work: Coroutine[Any, Any, None] | None = None
        self.is_free = False
        self.task = loop.create_task(self._stand_by(), context=self._context)
        self._name = self.task.get_name()

    def fits(self, context: Context) -> bool:
        """Whether work that must begin in this context can begin here."""
        return self.is_free and not self._handover.done() and _are_same(context, self.before)

    def takes(self, work: Coroutine[Any, Any, None]) -> bool:
        """Take the first step of `work` as this task. Whether there is a rest of it, which the task takes over."""
        task, handover = self.task, self._handover
        references, weak_references = getrefcount(task), getweakrefcount(task)
        handover.is_stepping = True
        try:
            waiting_for = self._step(work)
        except StopIteration:
            waiting_for = NOTHING
        except BaseException as error:
            work, waiting_for = _failing(error), None
        handover.is_stepping = False
        if waiting_for is not NOTHING:
            self._hand_over(work, waiting_for)
            return True
        # Whoever holds the task, or will be told of its end, must not take the next work for this one.
        if (
            getrefcount(task) != references
            or getweakrefcount(task) != weak_references
            or handover.asked is not None
            or task._callbacks is not None  # pyright: ignore
            or task.get_name() is not self._name
            or not _are_same(self._context, self.before)
        ):
            self._end()
        return False

    def _step(self, work: Coroutine[Any, Any, None]) -> Any:
        task, loop = self.task, self._handover.get_loop()
        outer = asyncio.current_task(loop)
        if outer is not None:
            _leave_task(loop, outer)
        _enter_task(loop, task)
        try:
            return self._context.run(work.send, None)
        finally:
            _leave_task(loop, task)
            if outer is not None:
                _enter_task(loop, outer)

    def _hand_over(self, work: Coroutine[Any, Any, None], waiting_for: Any) -> None:
        handover = self._handover
        self.is_free, self._work, handover.waiting_for = False, work, waiting_for
        handover.set_result(None)
        if handover.asked is not None and not handover.cancel(*handover.asked):
            self._cancel_in_next_step(handover.asked)

    def _end(self) -> None:
        self.is_free = False
        if self._handover.asked is not None:
            self._handover.cancel(*self._handover.asked)
        else:
            self._handover.set_result(None)

    def _cancel_in_next_step(self, message: tuple[Any, ...]) -> None:
        """As `cancel` does if there is nothing to cancel that the work waits for. It was counted already."""
        self.task.cancel(*message)
        self.task.uncancel()

    async def _stand_by(self) -> None:
        self.is_free = True
        handover = self._handover
        try:
            await handover
        except asyncio.CancelledError as error:
            self.is_free = False
            if self._work is None:
                raise
            self._cancel_in_next_step(error.args)
        if self._work is not None:
            await rest(self._work, handover.waiting_for)


async def _failing(error: BaseException) -> None:
    raise error


def _are_same(one: Context, other: Context) -> bool:
    """Whether two contexts hold the same objects. `==` would ask the objects."""
    if len(one) != len(other):
        return False
    return not one or all(variable in other and other[variable] is value for variable, value in one.items())
