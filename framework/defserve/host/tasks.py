"""A tool call that goes on in the background, and what becomes of it (tasks extension, SEP-2663).

Without a session it is a task of the server, if the tool runs as one: it is asked for again and again. In a session,
and for a tool that answers at once, it is a plain call of which nobody waits for the result yet.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Protocol

from defserve.errors import PeerError
from defserve.host.answers import Answers, responses
from defserve.host.eras import PREFIX, SessionTerms, merged
from defserve.host.fields import Json, object_of

EXTENSION: Final = PREFIX + "tasks"
CAPABILITIES: Final = PREFIX + "clientCapabilities"
POLL_SECONDS: Final = 1.0
SHORTEST_POLL, LONGEST_POLL = 0.02, 60.0
OVER: Final = frozenset(("completed", "failed", "cancelled"))


class TaskCaller(Protocol):
    """The verbs of `Client` that a started call uses; see there what each does and raises."""

    answers: Answers

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Json: ...

    async def call_raw(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, meta: Mapping[str, Any] | None = None
    ) -> Json: ...

    async def value(self, tool: str, result: Json) -> Any: ...


class StartedCall(ABC):
    """A call that runs in the background. `id` is None if it is no task of the server.

    `status` ("working", "input_required", "completed", "failed", "cancelled") and `message` are what was known last.
    """

    def __init__(self, client: TaskCaller, tool: str) -> None:
        self._client, self.tool = client, tool
        self.id: str | None = None
        self.status, self.message = "working", ""

    @abstractmethod
    async def refresh(self) -> str:
        """Ask the server how far the call is; returns the status."""

    @abstractmethod
    async def result_raw(self) -> Json:
        """The result unchanged, also one with `isError`, when it is there.

        Questions of the server are answered meanwhile. Raises PeerError if the call has failed or was cancelled.
        """

    @abstractmethod
    async def cancel(self) -> None:
        """Ask the server to stop. It may end all the same."""

    async def result(self) -> Any:
        """The value, as `Client.call` returns it, when it is there. Raises ToolError if the tool failed."""
        return await self._client.value(self.tool, await self.result_raw())


class ServerTask(StartedCall):
    """A task of the server. Cancelling a method here does not cancel the task."""

    def __init__(self, client: TaskCaller, tool: str, meta: Json, created: Json) -> None:
        super().__init__(client, tool)
        self._meta, self._task = meta, created
        self._answered: set[str] = set()
        self.id = str(created.get("taskId"))
        self._take(created)

    async def refresh(self) -> str:
        if self.status not in OVER:
            self._take(await self._ask("tasks/get"))
        return self.status

    async def cancel(self) -> None:
        await self._ask("tasks/cancel")

    async def result_raw(self) -> Json:
        while self.status not in OVER:
            if self.status == "input_required":
                await self._answer()
            await asyncio.sleep(self._pause())
            await self.refresh()
        if self.status == "completed":
            return object_of(self._task.get("result"))
        if self.status == "cancelled":
            raise PeerError(f"the task of {self.tool} was cancelled")
        error = object_of(self._task.get("error"))
        text = error.get("message") or self.message or "the server gave no reason"
        code = error.get("code")
        raise PeerError(str(text), code=code if isinstance(code, int) else PeerError("").code, data=error.get("data"))

    async def _answer(self) -> None:
        # An answer may not show in the task yet. It must not be given twice.
        asked = object_of(self._task.get("inputRequests"))
        new = {key: request for key, request in asked.items() if key not in self._answered}
        if new:
            given = await responses({"inputRequests": new}, self._client.answers)
            self._answered |= new.keys()
            await self._ask("tasks/update", {"inputResponses": given})

    async def _ask(self, method: str, more: Mapping[str, Any] | None = None) -> Json:
        return await self._client.request(method, {"taskId": self.id, **(more or {}), "_meta": self._meta})

    def _take(self, task: Json) -> None:
        self._task, self.status = task, str(task.get("status"))
        self.message = str(task.get("statusMessage") or "")

    def _pause(self) -> float:
        given = self._task.get("pollIntervalMs")
        seconds = given / 1000 if isinstance(given, int | float) else POLL_SECONDS
        return min(max(seconds, SHORTEST_POLL), LONGEST_POLL)


class PlainCall(StartedCall):
    """A call whose answer has not come yet."""

    def __init__(self, client: TaskCaller, tool: str, work: asyncio.Task[Json]) -> None:
        super().__init__(client, tool)
        self._work = work
        work.add_done_callback(self._done)

    async def refresh(self) -> str:
        await asyncio.sleep(0)
        return self.status

    async def result_raw(self) -> Json:
        await asyncio.wait((self._work,))
        if self._work.cancelled():
            raise PeerError(f"the call of {self.tool} was cancelled")
        return self._work.result()

    async def cancel(self) -> None:
        self._work.cancel()
        await asyncio.wait((self._work,))

    def _done(self, work: asyncio.Task[Json]) -> None:
        if work.cancelled():
            self.status = "cancelled"
        else:
            self.status = "completed" if work.exception() is None else "failed"


async def start(client: TaskCaller, terms: SessionTerms, tool: str, arguments: Mapping[str, Any]) -> StartedCall:
    """Call a tool, and do not wait for its result."""
    if not terms.stateless:
        return PlainCall(client, tool, asyncio.create_task(client.call_raw(tool, arguments)))
    offered = object_of(terms.envelope.get(CAPABILITIES))
    meta = {CAPABILITIES: merged(offered, {"extensions": {EXTENSION: {}}})}
    result = await client.call_raw(tool, arguments, meta=meta)
    if result.get("resultType") == "task":
        return ServerTask(client, tool, meta, result)
    done = PlainCall(client, tool, asyncio.create_task(_given(result)))
    done.status = "completed"
    return done


async def _given(result: Json) -> Json:
    return result
