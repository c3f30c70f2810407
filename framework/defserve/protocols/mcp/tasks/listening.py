"""Notifications of tasks: `taskIds` in the filter of `subscriptions/listen`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from defserve.core.call import Call
from defserve.errors import DefserveError, InvalidParams, LimitExceeded
from defserve.protocols.mcp.resources.subscriptions import Followed, Tell
from defserve.protocols.mcp.tasks.record import TERMINAL, StoredTask
from defserve.protocols.mcp.tasks.runner import TaskRunner
from defserve.protocols.mcp.tasks.section import require_tasks
from defserve.wire.jsonvalue import is_array
from defserve.wire.messages import Params

CHANGED: Final = "notifications/tasks"
SHORTEST_POLL: Final = 0.5


class TaskListening:
    """Tells a listener of each task as it is now, and again after every change."""

    def __init__(
        self,
        runner: Callable[[], TaskRunner],
        find: Callable[[Call, str], Awaitable[StoredTask | None]],
        look: Callable[[Call, StoredTask], Awaitable[Params]],
    ) -> None:
        self._runner, self._find, self._look = runner, find, look

    async def __call__(self, call: Call, wanted: Any, tell: Tell) -> Followed:
        """Follow tasks. Ids that are unknown, or somebody else's, are left out."""
        require_tasks(call)
        if not is_array(wanted) or not all(isinstance(id, str) for id in wanted):
            raise InvalidParams("Invalid params: taskIds must be a list of ids")
        if len(wanted) > call.session.composition.limits.subscriptions:
            raise LimitExceeded("too many subscriptions in one request", data={"limit": "subscriptions"})
        follower = TaskFollower(self._runner(), tell)
        try:
            for id in dict.fromkeys(wanted):
                if (task := await self._find(call, id)) is None:
                    continue
                if task.record.elsewhere is not None and not task.record.is_over:
                    follower.polled[id] = PolledTask(partial(self._look, call, task), tell)
                else:
                    follower.follow(task)
        except BaseException:
            follower.end()
            raise
        return Followed([*follower.latest, *follower.polled], follower.begin, follower.end)


class TaskFollower:
    """Tells one listener of its tasks, from `begin` to `end`. `latest` is the newest that is known of each.

    Those in `polled` run elsewhere.
    """

    def __init__(self, runner: TaskRunner, tell: Tell) -> None:
        self.latest: dict[str, StoredTask] = {}
        self.polled: dict[str, PolledTask] = {}
        self._runner, self._tell, self._has_begun = runner, tell, False

    def follow(self, task: StoredTask) -> None:
        self.latest[task.record.id] = task
        if not task.record.is_over:
            self._runner.listen(task.record.id, self.changed)

    def changed(self, task: StoredTask) -> None:
        """What comes from the store may be older than what this process knows already."""
        if task.record.revision > self.latest[task.record.id].record.revision:
            self.latest[task.record.id] = task
            if self._has_begun:
                self._tell(CHANGED, task.detailed())

    def begin(self) -> None:
        self._has_begun = True
        for task in self.latest.values():
            self._tell(CHANGED, task.detailed())
        for polled in self.polled.values():
            polled.begin()

    def end(self) -> None:
        for id in self.latest:
            self._runner.unlisten(id, self.changed)
        for polled in self.polled.values():
            polled.end()


class PolledTask:
    """A task of a server elsewhere, which is asked again and again. `look` gives the task as it is."""

    def __init__(self, look: Callable[[], Awaitable[Params]], tell: Tell) -> None:
        self._look, self._tell = look, tell
        self._polling: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._polling = asyncio.create_task(self._poll())

    def end(self) -> None:
        if self._polling is not None:
            self._polling.cancel()

    async def _poll(self) -> None:
        told: Params = {}
        while told.get("status") not in TERMINAL:
            try:
                found = await self._look()
            except InvalidParams:
                return  # it has expired
            except DefserveError:
                found = told  # its server may come back
            if found != told:
                self._tell(CHANGED, found)
            told = found
            await asyncio.sleep(max(told.get("pollIntervalMs", 0) / 1000, SHORTEST_POLL))
