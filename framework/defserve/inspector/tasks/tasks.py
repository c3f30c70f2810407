"""All started tools of an inspection, newest first."""

from __future__ import annotations

from typing import Final

from defserve.host.client import Client
from defserve.host.fields import Json
from defserve.inspector.protocol import BadMessage
from defserve.inspector.tasks.followed import FollowedTask, TaskHost
from defserve.inspector.tasks.record import FollowedRecord

MOST_TASKS: Final = 100
MOST_BYTES: Final = 32 * 1024 * 1024
"""Of results. Those of the oldest are forgotten first; the timeline has them still."""


class FollowedTasks:
    """Started tools by number. If there are too many, the oldest of those that are over is dropped."""

    def __init__(self, host: TaskHost) -> None:
        self._host = host
        self._tasks: dict[int, FollowedTask] = {}
        self._last = 0

    def start(self, era: str, tool: str, arguments: Json) -> FollowedTask:
        """Start a tool, and follow it."""
        task = self._add(era, tool, arguments)
        task.begin(arguments)
        return task

    async def resume(self, client: Client, id: str) -> FollowedTask:
        """Follow a task by its id. Raises PeerError if the server does not know it."""
        found = await client.task(id)
        task = self._add("stateless" if client.stateless else "handshake", "", {})
        task.resume(found)
        return task

    def _add(self, era: str, tool: str, arguments: Json) -> FollowedTask:
        self._make_room()
        self._last += 1
        task = self._tasks[self._last] = FollowedTask(self._host, FollowedRecord(self._last, era, tool, arguments))
        return task

    def _make_room(self) -> None:
        over = [number for number, task in self._tasks.items() if task.record.over is not None]
        if len(self._tasks) >= MOST_TASKS:
            if not over:
                raise BadMessage(f"{MOST_TASKS} tasks run already", fix="cancel some of them")
            del self._tasks[over[0]]
        kept = [task.record for task in reversed(self._tasks.values()) if task.record.result is not None]
        size = 0
        for record in kept:
            size += record.size
            if size > MOST_BYTES:
                record.forget_result()

    def __getitem__(self, number: int) -> FollowedTask:
        if (task := self._tasks.get(number)) is None:
            raise BadMessage("this task is not in the list any more")
        return task

    def wire(self) -> list[Json]:
        return [task.record.wire() for task in reversed(self._tasks.values())]

    def forget(self) -> None:
        """Drop all that are over."""
        self._tasks = {number: task for number, task in self._tasks.items() if task.record.over is None}

    async def aclose(self) -> None:
        for task in self._tasks.values():
            await task.aclose()
