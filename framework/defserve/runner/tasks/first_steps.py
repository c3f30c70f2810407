"""Takes the first step of a coroutine at once, as the task that has the rest of it. Most have no rest.

A task for each of them would cost a turn of the loop: 9 µs of a 49 µs call. From Python 3.12 on there are eager tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from defserve.core.stepping import rest
from defserve.runner.tasks.spare import SpareTask

EAGER = hasattr(asyncio, "eager_task_factory")


class FirstSteps:
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
        if EAGER:
            eager: Any = {"eager_start": True}
            context = Context() if context is None else context
            task = asyncio.Task(work, loop=self.loop, context=context, **eager)
            return None if task.done() else task
        spare = self._spare
        # Work is mostly begun in an empty context. The spare task need not be asked about that.
        if spare is None or not spare.is_free or ((context or spare.before) and not spare.fits(context)):
            context = Context() if context is None else context
            return self.loop.create_task(self._apart(work, context.copy()), context=context)
        self._spare = None  # the work may start other work
        if spare.takes(work):
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
            await rest(work, waiting_for)

    async def close(self) -> None:
        """End the spare task."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.task.cancel()
            await asyncio.wait((spare.task,))
