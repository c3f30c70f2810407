"""The tasks extension, plugged in like any other protocol. A server has it if a tool says `task=`, or may elsewhere."""

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
from defserve.protocols.mcp.tasks.elsewhere import TasksElsewhere
from defserve.protocols.mcp.tasks.listening import TaskListening
from defserve.protocols.mcp.tasks.offer import EXTENSION
from defserve.protocols.mcp.tasks.runner import TaskRunner
from defserve.protocols.mcp.tasks.section import TaskSection, new_record
from defserve.protocols.mcp.tasks.storage import TaskStorage
from defserve.protocols.mcp.tools.task_options import LONGEST_POLL, POLL_SECONDS, TASK, TaskOptions
from defserve.stores.memory import MemoryStore, is_in_memory

if TYPE_CHECKING:
    from defserve.protocols.mcp.resources.subscriptions import Subscriptions
    from defserve.protocols.mcp.tasks.elsewhere import TaskServers
    from defserve.protocols.mcp.tasks.record import TaskRecord
    from defserve.protocols.mcp.tools.tools import Tool
    from defserve.stores.store import Store


class Tasks(Extension):
    """Lets tools run as tasks, here or on `servers` elsewhere. Without a `store`, memory of this process keeps them."""

    name = "tasks"
    while_draining = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})

    def __init__(
        self,
        store: Store | None,
        limits: Limits,
        find_tool: Callable[[str], Tool | None],
        subscriptions: Subscriptions,
        servers: TaskServers | None = None,
    ) -> None:
        store = store or MemoryStore()
        self._is_alone, self._limits = is_in_memory(store), limits
        self._storage = TaskStorage(store)
        self._runners: dict[asyncio.AbstractEventLoop, TaskRunner] = {}
        self.elsewhere = TasksElsewhere(self._runner, servers, self._new_record) if servers is not None else None
        self._section = section = TaskSection(self._runner, find_tool, self.elsewhere)
        subscriptions.follow("taskIds", TaskListening(self._runner, section.find, section.look))

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

    def _new_record(self, call: Call, created: Mapping[str, Any]) -> TaskRecord:
        """The record of a task that a server elsewhere has begun. It is kept no longer than one of our own could be."""
        most = round(self._limits.task_ttl * 1000)
        ttl, poll = created.get("ttlMs"), created.get("pollIntervalMs")
        ttl = min(ttl, most) if type(ttl) is int else most
        poll = min(poll, round(LONGEST_POLL * 1000)) if type(poll) is int else round(POLL_SECONDS * 1000)
        return new_record(call, str(call.params.get("name")), self._runner(), ttl, poll)


def _begin(call: Call, item: Any, arguments: dict[str, Any]) -> AbstractAsyncContextManager[None] | None:
    """A stage around the function: the last thing before it runs is that its task begins."""
    options: TaskOptions = item.facets[TASK]
    return None if options.begins_later or current_task(call) is None else _begun(call)


@asynccontextmanager
async def _begun(call: Call) -> AsyncGenerator[None]:
    if (task := current_task(call)) is not None:
        await task.begin()
    yield
