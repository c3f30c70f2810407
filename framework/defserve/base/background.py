"""Tasks that run on their own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundTasks(set["asyncio.Task[Any]"]):
    """Those that have not ended. They are kept here because an event loop alone may lose a task before its end."""

    def start(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    def cancel(self) -> None:
        """Ask all of them to end."""
        for task in self:
            task.cancel()
