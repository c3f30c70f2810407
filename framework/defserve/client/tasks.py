"""A tool call that goes on in the background, and what becomes of it (tasks extension, SEP-2663).

Without a session it is a task of the server, if the tool runs as one: it is asked for again and again. In a session,
and for a tool that answers at once, it is a plain call of which nobody waits for the result yet.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from defserve.client.answers import MAX_INPUT_REQUESTS, MAX_INPUT_ROUNDS, answer_input_requests
from defserve.client.conversation import ProgressHandler
from defserve.client.eras import MCP_KEY_PREFIX, SessionTerms
from defserve.client.replies import Json, number_or_none, object_or_empty
from defserve.core.peer import make_peer_error
from defserve.errors import PeerError, ProtocolError

if TYPE_CHECKING:
    from defserve.client.client import Client

TASKS: Final = "tasks"
TASKS_EXTENSION_ID: Final = MCP_KEY_PREFIX + TASKS
POLL_SECONDS: Final = 1.0
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 60.0
MAX_TASK_QUESTIONS: Final = MAX_INPUT_ROUNDS * MAX_INPUT_REQUESTS
"""As many as a call without a task may ask."""
FINAL_TASK_STATUSES: Final = frozenset(("completed", "failed", "cancelled"))
MISSING_CAPABILITY_ERROR_CODE: Final = -32021


def get_poll_seconds(task: Json) -> float:
    """Seconds to wait before asking for a task again, as its server wishes."""
    wanted = number_or_none(task.get("pollIntervalMs"))
    seconds = POLL_SECONDS if wanted is None else wanted / 1000
    return min(max(seconds, MIN_POLL_SECONDS), MAX_POLL_SECONDS)


def is_task_required_error(error: PeerError | ProtocolError) -> bool:
    """Whether a server refused a call because it can only be a task."""
    needed = object_or_empty(object_or_empty(object_or_empty(error.data).get("requiredCapabilities")).get("extensions"))
    return error.code == MISSING_CAPABILITY_ERROR_CODE and TASKS_EXTENSION_ID in needed


class StartedCall(ABC):
    """A call that runs in the background. `id` is None if it is no task of the server.

    `status` ("working", "input_required", "completed", "failed", "cancelled") and `message` are what was known last.
    """

    def __init__(self, client: Client, tool: str) -> None:
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

    def __init__(self, client: Client, tool: str, meta: Json, created: Json) -> None:
        super().__init__(client, tool)
        self._meta = meta
        self.told: Json = created
        """The task as the server told it last."""
        self._answered: set[str] = set()
        self.id = str(created.get("taskId"))
        self.apply_status(created)

    @property
    def is_over(self) -> bool:
        return self.status in FINAL_TASK_STATUSES

    @property
    def pause(self) -> float:
        """Seconds to wait before asking again, as the server wishes."""
        return get_poll_seconds(self.told)

    def apply_status(self, told: Json) -> None:
        """Take what the server tells of the task, such as in a `notifications/tasks`. What is over stays so."""
        if not self.is_over:
            if not self._client.stateless:
                # In a session a server asks with requests of its own.
                told = {name: value for name, value in told.items() if name != "inputRequests"}
            self.told, self.status = told, str(told.get("status"))
            self.message = str(told.get("statusMessage") or "")

    async def refresh(self) -> str:
        if not self.is_over:
            self.apply_status(await self._ask("tasks/get"))
        return self.status

    async def answer(self, given: Mapping[str, Any]) -> None:
        """Answer some of its questions: the key of each to the result of its request."""
        await self._ask("tasks/update", {"inputResponses": dict(given)})

    async def cancel(self) -> None:
        await self._ask("tasks/cancel")

    async def result_raw(self) -> Json:
        while not self.is_over:
            if self.status == "input_required":
                await self._answer()
            elif self.status != "working":
                raise PeerError(f"the task{self._of_tool} has a status that no task can have: {self.status[:80]!r}")
            await asyncio.sleep(self.pause)
            await self.refresh()
        if self.status == "completed":
            return object_or_empty(self.told.get("result"))
        if self.status == "cancelled":
            raise PeerError(f"the task{self._of_tool} was cancelled")
        raise make_peer_error(object_or_empty(self.told.get("error")), self.message or "the server gave no reason")

    @property
    def _of_tool(self) -> str:
        return f" of {self.tool}" if self.tool else ""

    async def _answer(self) -> None:
        # An answer may not show in the task yet. It must not be given twice.
        asked = object_or_empty(self.told.get("inputRequests"))
        new = {key: request for key, request in asked.items() if key not in self._answered}
        if len(self._answered) + len(new) > MAX_TASK_QUESTIONS:
            raise PeerError(f"the task{self._of_tool} still asks after {len(self._answered):,} questions")
        if new:
            given = await answer_input_requests({"inputRequests": new}, self._client.answers)
            await self.answer(given)
            self._answered |= new.keys()

    async def _ask(self, method: str, more: Mapping[str, Any] | None = None) -> Json:
        return await self._client.request(method, {"taskId": self.id, **(more or {}), "_meta": self._meta})


class CallWithoutTask(StartedCall):
    """A call whose answer has not come yet."""

    def __init__(self, client: Client, tool: str, work: asyncio.Task[Json]) -> None:
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


async def start_tool_call(
    client: Client,
    terms: SessionTerms,
    tool: str,
    arguments: Mapping[str, Any],
    on_progress: ProgressHandler | None = None,
    timeout: float | None = None,
) -> StartedCall:
    """Call a tool, and do not wait for its result."""
    if not terms.stateless:
        work = client.call_raw(tool, arguments, on_progress=on_progress, timeout=timeout)
        return CallWithoutTask(client, tool, asyncio.create_task(work))
    meta = terms.make_extension_meta(TASKS)
    result = await client.call_raw(tool, arguments, on_progress=on_progress, timeout=timeout, meta=meta)
    if result.get("resultType") == "task":
        if not isinstance(result.get("taskId"), str):
            raise PeerError(f"the server made a task of {tool}, and gave it no taskId")
        return ServerTask(client, tool, meta, result)
    done = CallWithoutTask(client, tool, asyncio.create_task(asyncio.sleep(0, result)))
    done.status = "completed"
    return done


async def fetch_server_task(client: Client, terms: SessionTerms, id: str, tool: str) -> ServerTask:
    """A task by its id."""
    meta = terms.make_extension_meta(TASKS)
    return ServerTask(client, tool, meta, await client.request("tasks/get", {"taskId": id, "_meta": meta}))
