"""The tasks extension, plugged in like any other protocol. A server has it if one of its tools says `task=`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from defserve.core.call import Call
from defserve.core.extension import Extension, Handler, Offer, Wrapper
from defserve.core.stages import Stages
from defserve.limits import Limits
from defserve.protocols.mcp.tasks.current import current_task
from defserve.protocols.mcp.tasks.listening import TaskListening
from defserve.protocols.mcp.tasks.runner import TaskRunner
from defserve.protocols.mcp.tasks.section import EXTENSION, TaskSection
from defserve.protocols.mcp.tasks.storage import TaskStorage
from defserve.protocols.mcp.tools.task_options import TASK, TaskOptions
from defserve.stores.memory import MemoryStore

if TYPE_CHECKING:
    from defserve.protocols.mcp.resources.subscriptions import Subscriptions
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.stores.store import Store


class Tasks(Extension):
    """Lets tools run as tasks. Without a `store`, tasks are kept in the memory of this process."""

    name = "tasks"
    while_draining = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})

    def __init__(
        self,
        store: Store | None,
        limits: Limits,
        find_tool: Callable[[str], Tool | None],
        subscriptions: Subscriptions,
    ) -> None:
        store = store or MemoryStore()
        self._is_alone, self._limits = isinstance(store, MemoryStore), limits
        self._storage = TaskStorage(store)
        self._runners: dict[asyncio.AbstractEventLoop, TaskRunner] = {}
        self._section = TaskSection(self._runner, find_tool)
        subscriptions.follow("taskIds", TaskListening(self._runner, self._section.find))

    def negotiate(self, offer: Offer) -> object | None:
        # Active for all of them: who did not declare tasks is told so, and not that the method does not exist.
        return self if offer.stateless else None

    def capabilities(self, offer: Offer) -> Mapping[str, Any]:
        return {"extensions": {EXTENSION: {}}} if offer.stateless else {}

    def methods(self) -> Mapping[str, Handler]:
        section = self._section
        return {"tasks/get": section.get, "tasks/update": section.update, "tasks/cancel": section.cancel}

    def around(self) -> Mapping[str, Wrapper]:
        return {"tools/call": self._section.around_call}  # pyright: ignore[reportReturnType]

    def stages(self) -> Stages:
        return Stages(admit=self._section.admit, hold=_begin, concerns=lambda item, active: TASK in item.facets)

    @asynccontextmanager
    async def _living(self) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        self._runners[loop] = runner = TaskRunner(self._storage, self._limits, is_alone=self._is_alone)
        try:
            yield
        finally:
            await runner.end()
            del self._runners[loop]
            if not self._runners:
                await self._storage.store.close()

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        return self._living()

    def _runner(self) -> TaskRunner:
        return self._runners[asyncio.get_running_loop()]


def _begin(call: Call, item: Any, arguments: dict[str, Any]) -> AbstractAsyncContextManager[None] | None:
    """A stage around the function: the last thing before it runs is that its task begins."""
    options: TaskOptions = item.facets[TASK]
    return None if options.begins_later or current_task(call) is None else _begun(call)


@asynccontextmanager
async def _begun(call: Call) -> AsyncGenerator[None]:
    if (task := current_task(call)) is not None:
        await task.begin()
    yield
